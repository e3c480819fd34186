"""Compiled wheels of llama-cpp-python, kept in the user's cache directory for specllama.

A wheel is found by a key, a checksum of everything that its compilation depends on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from specllama.processor_time import output_of

KEPT = 3  # keys
COMPILERS = {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")}
_CPU = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "Features")


def cache_directory(environ: Mapping[str, str], system: str = sys.platform) -> Path:
    """The cache directory of specllama, the same as `cache_dir` of specllama/config/store.py."""
    if given := environ.get("SPECLLAMA_CACHE"):
        return Path(given)
    if os.path.isabs(base := environ.get("XDG_CACHE_HOME", "")):
        return Path(base) / "specllama"
    return Path(os.path.expanduser("~/Library/Caches" if system == "darwin" else "~/.cache")) / "specllama"


def compiler(name: str, environ: Mapping[str, str]) -> list[str]:
    """The command of the compiler, CC or CXX; [] if none is found."""
    path = environ.get("PATH")
    if given := shlex.split(environ.get(name, "")):
        return given if shutil.which(given[0], path=path) else []
    return next(([found] for one in COMPILERS[name] if (found := shutil.which(one, path=path))), [])


def key(parts: Mapping[str, str], sources: Sequence[Path], environ: Mapping[str, str], cpuinfo: Path) -> str:
    """The key of a wheel, 24 hexadecimal digits.

    parts: what this installation asks for. sources: files that change llama.cpp. cpuinfo: /proc/cpuinfo.
    """
    found = dict(parts)
    for name in ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CMAKE_BUILD_TYPE"):
        found[name] = environ.get(name, "")
    for name in COMPILERS:
        found[name] = _version(compiler(name, environ), environ)
    if of_device := {"cuda": "nvcc", "hip": "hipcc"}.get(parts.get("device", "")):
        found[of_device] = _version([of_device], environ)
    found["machine"] = " ".join((sys.platform, platform.machine(), *platform.libc_ver()))
    found["cpu"] = processor(cpuinfo)
    digest = hashlib.sha256(repr(sorted(found.items())).encode())
    for source in sorted(sources, key=lambda file: file.name):
        digest.update(f"\0{source.name}\0".encode() + source.read_bytes())
    return digest.hexdigest()[:24]


def processor(cpuinfo: Path) -> str:
    """What compilation for this processor depends on. Where it is unknown, the name of the machine."""
    with contextlib.suppress(OSError):
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
        found = dict(
            reversed([(k.strip(), v.strip()) for k, _, v in (line.partition(":") for line in lines)])
        )
        if kept := [f"{name}={found[name]}" for name in _CPU if name in found]:
            return " ".join(kept)
    found_name = (output_of(["sysctl", "-n", "machdep.cpu.brand_string"], 5.0) or "").strip()
    return found_name or f"of {platform.node()}"


class WheelCache:
    """The directory `wheels` in the cache directory: one directory a key, the newest KEPT stay."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, wanted: str) -> Path | None:
        """The wheel under a key, or None. A damaged one is removed; raises ValueError then."""
        folder = self.root / wanted
        try:
            wheels = sorted(folder.glob("*.whl"))
            if not wheels:
                return None
            expected = wheels[0].with_name(wheels[0].name + ".sha256").read_text("ascii").strip()
            intact = sha256(wheels[0]) == expected
        except (OSError, ValueError):
            intact = False
        if not intact:
            self.remove(wanted)
            raise ValueError(f"the wheel in {folder} is damaged")
        with contextlib.suppress(OSError):
            os.utime(folder)  # the newest now
        return wheels[0]

    def store(self, wanted: str, wheel: Path) -> None:
        """Keep a copy of a wheel under a key, and remove old ones. Raises OSError if it cannot be written."""
        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=self.root) as scratch:
            copy = Path(scratch, "wheel", wheel.name)
            copy.parent.mkdir()
            shutil.copyfile(wheel, copy)
            copy.with_name(copy.name + ".sha256").write_text(f"{sha256(copy)}\n", "ascii")
            self.remove(wanted)
            copy.parent.replace(self.root / wanted)
        found = [entry for entry in self.root.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        for old in sorted(found, key=lambda entry: entry.stat().st_mtime, reverse=True)[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)

    def remove(self, wanted: str) -> None:
        """Remove the wheel under a key."""
        shutil.rmtree(self.root / wanted, ignore_errors=True)


def sha256(file: Path) -> str:
    """The hash of a file, in hexadecimal digits."""
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _version(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """The first line that a compiler prints about its version, "" if it cannot be run."""
    if not command:
        return ""
    printed = output_of([*command, "--version"], 30.0, dict(environ)) or ""
    return " ".join(printed.splitlines()[:1])
