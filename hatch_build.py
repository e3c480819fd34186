"""The wheel's build: specllama's kernels are compiled into it where that is possible, and llama.cpp's libmtmd
where SPECLLAMA_LLAMA_CPP_SOURCE names its source.

With them the wheel is for this platform, and its users need no compiler. Without (another system, no
compiler) it is for any, and they are compiled when they are needed first, where there are any kernels.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD, VISION = "specllama.llama.kernel_build", "specllama.llama.vision_build"


class KernelsHook(BuildHookInterface[Any]):
    """Adds the compiled object to a wheel. An editable installation compiles at the first start."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the objects, unless `version` is "editable", and add them to the wheel."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)  # the package is not installed yet
        build = importlib.import_module(BUILD)
        self._directory = tempfile.mkdtemp()
        vision = importlib.import_module(VISION)
        try:
            if why := build.unsupported():
                raise build.Unusable(why)
            self._add(build, build_data)
        except build.Unusable as error:
            self.app.display_warning(f"the wheel has no compiled kernels: {error}")
        try:
            if os.environ.get(vision.VARIABLE) and platform.system() == "Linux":
                self._add(vision, build_data)
        except build.Unusable as error:
            self.app.display_warning(f"the wheel has no compiled libmtmd: {error}")

    def _add(self, build: Any, build_data: dict[str, Any]) -> None:
        compiled = Path(self._directory) / build.OBJECT.name
        build.compile_object(compiled)
        build_data["force_include"][str(compiled)] = build.OBJECT.relative_to(self.root).as_posix()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"

    def finalize(self, *_: object) -> None:
        """Remove the compiled objects, which are in the wheel."""
        shutil.rmtree(getattr(self, "_directory", ""), ignore_errors=True)
