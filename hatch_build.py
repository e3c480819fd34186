"""The wheel's build: specllama's kernels are compiled into it where that is possible.

With them the wheel is for this platform, and its users need no compiler. Without (another system, no
compiler) it is for any, and the kernels are compiled at the first start, where there are any.
"""

from __future__ import annotations

import importlib
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = "specllama.llama.kernel_build"


class KernelsHook(BuildHookInterface[Any]):
    """Adds the compiled object to a wheel. An editable installation compiles at the first start."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the object, unless `version` is "editable", and add it to the wheel."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)  # the package is not installed yet
        build = importlib.import_module(BUILD)
        self._directory = tempfile.mkdtemp()
        compiled = Path(self._directory) / build.OBJECT.name
        try:
            if why := build.unsupported():
                raise build.Unusable(why)
            build.compile_object(compiled)
        except build.Unusable as error:
            self.app.display_warning(f"the wheel has no compiled kernels: {error}")
            return
        build_data["force_include"][str(compiled)] = build.OBJECT.relative_to(self.root).as_posix()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"

    def finalize(self, *_: object) -> None:
        """Remove the compiled object, which is in the wheel."""
        shutil.rmtree(getattr(self, "_directory", ""), ignore_errors=True)
