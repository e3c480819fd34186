"""Copies the chat templates in llama.cpp's source to .venv/share, for tests/unit/text/test_real_templates.py.

usage: python scripts/fetch_templates.py

The templates are not part of this repository. They come from the source package of the installed
llama-cpp-python, which pip downloads from its configured index: about 75 MB, once for each version. Without
them it ends with exit code 1, and their tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

from specllama.llama.vision_build import PACKAGE, download, reason_of, unpacked

TARGET = Path(sys.prefix) / "share" / "llama.cpp-templates"


def main() -> int:
    """Fetches the templates of the installed version unless they are there; returns the exit code."""
    version = metadata.version(PACKAGE)
    marker = TARGET / "VERSION"
    if marker.is_file() and marker.read_text() == version:
        return 0
    print(f"specllama: getting the chat templates of {PACKAGE} {version} for the tests", file=sys.stderr)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TARGET.parent, prefix=".templates-") as scratch:
        try:
            found = extract(download(version, Path(scratch)), Path(scratch) / "found")
            (found / "VERSION").write_text(version)
            shutil.rmtree(TARGET, ignore_errors=True)
            found.rename(TARGET)
        except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
            print(f"specllama: no templates, their tests are skipped: {reason_of(error)}", file=sys.stderr)
            return 1
    return 0


def extract(package: Path, directory: Path) -> Path:
    """Extracts the templates, each under its own name, into a new directory."""
    directory.mkdir()
    for path, data in unpacked(package, ("models/templates/*.jinja",)):
        (directory / path.name).write_bytes(data)
    if not any(directory.iterdir()):
        raise tarfile.TarError(f"{package.name} has no templates")
    return directory


if __name__ == "__main__":
    sys.exit(main())
