"""Where the user's files are: configuration, caches and data, the home and the working directory.

Any of them may be missing: a process in a container has no home and no entry in /etc/passwd, and its working
directory may have been deleted. Knows no file in them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import platformdirs

from specllama.config.text_file import expanded
from specllama.errors import ConfigError

NOWHERE = Path(os.devnull) / "specllama"
"""In place of a directory that there is not: it holds nothing, and nothing can be written there."""


def home() -> Path | None:
    """The user's home directory; None without HOME and without an entry in the list of users."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def working_directory() -> Path | None:
    """The working directory; None if it has been deleted or may not be read."""
    try:
        return Path.cwd()
    except OSError:
        return None


def near(path: Path) -> str:
    """The path of a file; in the working directory ./NAME."""
    return f"./{path.name}" if path.parent == working_directory() else str(path)


def is_same(path: Path, other: Path) -> bool:
    """Whether both lead to the same file."""
    try:
        return path.samefile(other)
    except OSError:
        return False


def in_project(cwd: Path, name: str) -> Path | None:
    """What has this name in a directory or the nearest one above, up to the repository's root or the home."""
    for directory in (cwd, *cwd.parents):
        if os.path.lexists(path := directory / name):
            return path
        if (directory / ".git").exists() or directory == home():
            return None
    return None


def of_user(environ: Mapping[str, str], variable: str, path: Path, what: str) -> Path | None:
    """A file of the user's own, by its path; None if there is none. variable: that may name it. what: is in
    it. Raises ConfigError if something else is there, or the variable names no file.
    """
    if path.is_file():
        return path
    if environ.get(variable):
        raise ConfigError(f"{variable} names {path}, which is not a file")
    if path.exists():
        raise ConfigError(f"{path}, the place of {what}, is not a file", "rename or remove it")
    return None


def user_directory(kind: Literal["config", "cache", "data"]) -> Path:
    """The user's directory of this kind for specllama, or NOWHERE."""
    try:
        directory = Path(getattr(platformdirs, f"user_{kind}_dir")("specllama", appauthor=False))
    except RuntimeError:
        return NOWHERE
    return directory if directory.is_absolute() else NOWHERE


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The data directory: SPECLLAMA_DATA, else the user's data directory for specllama."""
    return from_variable(environ, "SPECLLAMA_DATA") or user_directory("data")


def from_variable(environ: Mapping[str, str], name: str) -> Path | None:
    """The path in an environment variable, with the home directory for ~; None if it is empty or not set."""
    given = environ.get(name)
    return expanded(given) if given else None


def close_to_others(path: Path) -> None:
    """Make a directory that others may enter the user's alone. Raises OSError, also for one that belongs to
    somebody else.
    """
    info = os.stat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise NotADirectoryError(20, "not a directory", str(path))
    if info.st_uid != os.geteuid():
        raise PermissionError(1, "belongs to another user", str(path))
    if stat.S_IMODE(info.st_mode) & 0o077:
        path.chmod(0o700)


def missing(environ: Mapping[str, str]) -> str:
    """What is missing of these directories and what that means, in a line; "" if nothing is."""
    if working_directory() is None:
        return "the working directory is gone: files are found by their whole paths alone"
    set_apart = all(environ.get(name) for name in ("SPECLLAMA_CONFIG", "SPECLLAMA_CACHE", "SPECLLAMA_DATA"))
    if (
        home() is None
        and not set_apart
        and NOWHERE in (user_directory("config"), user_directory("cache"), user_directory("data"))
    ):
        return (
            "there is no home directory (HOME is not set, and the user has no entry): no settings are read, "
            "and nothing is kept"
        )
    return ""
