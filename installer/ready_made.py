"""Ready-made builds of llama-cpp-python on this machine: installed for the Python that makes .venv, in pip's
find-links, in pip's cache. Only one of exactly the pinned version is used.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

PACKAGE = "llama-cpp-python"
Pip = Callable[..., tuple[int, str]]


@dataclass(frozen=True)
class ReadyMade:
    """A build: a wheel, or an installed distribution. where: for messages."""

    where: str
    wheel: Path | None = None
    installed: metadata.Distribution | None = None


def ready_made(version: str, pip: Pip, scratch: Path, log: Callable[[str], None]) -> Iterator[ReadyMade]:
    """The builds of this version, in the order in which they are preferred.

    pip: runs the venv's pip, returns exit code and output. scratch: an empty directory for copies.
    """
    if found := _installed(version, log):
        yield found
    scratch.mkdir(parents=True, exist_ok=True)
    pip(
        "download",
        "--no-index",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        scratch,
        f"{PACKAGE}=={version}",
    )
    for wheel in sorted(scratch.glob("*.whl")):
        yield ReadyMade("pip's find-links", wheel)
    code, output = pip("cache", "list", "llama_cpp_python", "--format", "abspath")
    for line in output.splitlines() if code == 0 else ():
        path = Path(line.strip())
        if path.suffix != ".whl" or not path.is_file():
            continue
        if is_version(path.name, version):
            yield ReadyMade("pip's cache", path)
        else:
            log(f"{path}: another version than {version}, ignored")


def is_version(wheel: str, version: str) -> bool:
    """Whether a wheel of this name is of the package and version."""
    return re.match(rf"llama_cpp_python-{re.escape(version)}-", wheel, re.I) is not None


def _installed(version: str, log: Callable[[str], None]) -> ReadyMade | None:
    """The distribution of the running Python, unless it is an editable one or has no list of files."""
    try:
        found = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    where = str(found.locate_file(""))
    if found.version != version:
        log(f"{PACKAGE} {found.version} in {where}: another version than {version}, ignored")
        return None
    names = {PurePosixPath(str(file)).parts[0] for file in found.files or ()}
    if "llama_cpp" not in names or found.read_text("RECORD") is None:
        log(f"{PACKAGE} in {where}: not all of its files are listed, ignored")
        return None
    return ReadyMade(where, installed=found)


def copy_installed(found: metadata.Distribution, target: Path) -> None:
    """Copy a distribution into another directory of packages, its record included; no compiled Python."""
    for file in found.files or ():
        parts = PurePosixPath(str(file)).parts
        if ".." in parts or "__pycache__" in parts:
            continue
        copy = target.joinpath(*parts)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(str(file.locate()), copy)
