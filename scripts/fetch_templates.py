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
from pathlib import Path, PurePosixPath

PACKAGE = "llama-cpp-python"
TARGET = Path(sys.prefix) / "share" / "llama.cpp-templates"
SECONDS, MAX_BYTES = 600, 4 << 20


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
            reason = getattr(error, "stderr", "") or str(error)
            last = reason.strip().splitlines()[-1:] or [type(error).__name__]
            print(f"specllama: no templates, their tests are skipped: {last[0][:300]}", file=sys.stderr)
            return 1
    return 0


def download(version: str, directory: Path) -> Path:
    """Downloads the source package with pip."""
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
    command += ["--retries", "1", "--timeout", "20", "--no-binary", PACKAGE, "--dest", str(directory)]
    subprocess.run(
        [*command, f"{PACKAGE}=={version}"], check=True, timeout=SECONDS, capture_output=True, text=True
    )
    return next(directory.glob("*.tar.gz"))


def extract(package: Path, directory: Path) -> Path:
    """Extracts the templates, each under its own name, into a new directory."""
    directory.mkdir()
    with tarfile.open(package) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if (
                path.match("llama.cpp/models/templates/*.jinja")
                and member.isfile()
                and member.size < MAX_BYTES
            ):
                content = archive.extractfile(member)
                assert content is not None
                (directory / path.name).write_bytes(content.read())
    if not any(directory.iterdir()):
        raise tarfile.TarError(f"{package.name} has no templates")
    return directory


if __name__ == "__main__":
    sys.exit(main())
