"""Trying an installed llama.cpp before it is used: a wrong build can crash, for instance where the compiler
gave each library a C++ runtime of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from .tools import Tools
from .wheels import compiler, sha256

SECONDS = 300.0  # of work
_SYSTEM = {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")}
_WHERE = Path("/usr/bin")


def works(tools: Tools, kernels: bool) -> bool:
    """Whether the embedded pair writes eight tokens, in decodes of one row and of several, in a process of
    its own. kernels: whether specllama's are there; the trial compiles nothing. Raises TooLongError.
    """
    work = tools.work
    (work / "empty.toml").touch()
    environ = {name: "" for name in tools.request.environ if name.startswith("SPECLLAMA_")}
    environ["SPECLLAMA_KERNELS"] = "" if kernels else "off"
    environ |= {"SPECLLAMA_CONFIG": str(work / "empty.toml"), "SPECLLAMA_CACHE": str(work / "cache")}
    arguments = ("run", "-m", "pydoc", "-p", "hello", "-n", "8", "--draft-max", "4", "--no-calibrate")
    command = (tools.request.venv / "bin" / "specllama", *arguments)
    return tools.run(command, "testing llama.cpp", environ, seconds=SECONDS)[0] == 0


def system_compilers(environ: Mapping[str, str], where: Path = _WHERE) -> dict[str, str]:
    """The system's compilers as variables for a compilation; {} where they were used already, or are missing.

    where: the directory of the system's programs.
    """
    found = {}
    for name, candidates in _SYSTEM.items():
        path = next((where / one for one in candidates if (where / one).exists()), None)
        if path is None:
            return {}
        found[name] = str(path)
    if all(_is(compiler(name, environ), path) for name, path in found.items()):
        return {}
    return {**found, "CUDAHOSTCXX": found["CXX"]}


def unusual_compiler(environ: Mapping[str, str], where: Path = _WHERE) -> str:
    """The C++ compiler that CXX names, "" where it is one of the system's, or none is named."""
    found = compiler("CXX", environ)
    usual = any(_is(found, str(where / one)) for one in _SYSTEM["CXX"])
    return "" if not environ.get("CXX") or not found or usual else environ["CXX"]


def _is(command: list[str], path: str) -> bool:
    """Whether the command runs this program alone."""
    found = shutil.which(command[0]) if command else None
    return found is not None and len(command) == 1 and Path(found).resolve() == Path(path).resolve()


def link_duplicates(folder: Path) -> int:
    """Replace copies of libraries, which wheels have under several names, by links to one of them; returns
    the bytes that this saves. One file under several names is loaded once, its copies several times.
    """
    saved, kept = 0, dict[str, Path]()
    for file in sorted([*folder.glob("*.so*"), *folder.glob("*.dylib")], key=lambda path: len(path.name)):
        if file.is_symlink() or not file.is_file():
            continue
        first = kept.setdefault(sha256(file), file)
        if first is file:
            continue
        saved += file.stat().st_size
        link = file.with_name(f".{file.name}.link")
        link.unlink(missing_ok=True)
        link.symlink_to(first.name)
        link.replace(file)
    return saved
