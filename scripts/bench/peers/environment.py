"""The environment of a measurement: machine, versions, command line."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import specllama
from specllama.models.memory.available import physical_cores

ROOT = Path(__file__).resolve().parents[3]
_SIMD = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "amx_int8",
    "asimd",
    "i8mm",
    "sve",
)  # llama.cpp chooses its kernels by these


def machine() -> str:
    """Processor, instructions, cores, system."""
    try:
        info = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        info = ""
    name = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    simd = [flag for flag in _SIMD if flags and flag in flags[1].split()]
    parts = [name[1] if name else platform.processor() or platform.machine(), *simd]
    parts.append(f"{physical_cores()} physical cores, {os.cpu_count()} logical")
    return f"{', '.join(parts)}; {platform.system()} {platform.machine()}"


def commit() -> str:
    """specllama's version and, in a checkout, its commit, with a + if files differ from it."""
    version = specllama.__version__
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{version} ({done.stdout.strip()})" if done.returncode == 0 else version


def peer(tools: Path) -> str:
    """The version that llama.cpp's tools print."""
    command = [str(tools / "llama-completion"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^version:\s*([^\s(]+)", done.stdout + done.stderr, re.MULTILINE)
    return found[1] if found else "unknown"


def binding() -> str:
    """The version of llama-cpp-python that specllama uses."""
    return metadata.version("llama-cpp-python")


def command(argv: Sequence[str]) -> str:
    """A command line, with paths reduced to their last parts."""

    def short(part: str) -> str:
        head, equals, path = part.rpartition("=") if part.startswith("-") else ("", "", part)
        return head + equals + (Path(path).name if "/" in path else path)

    script = Path(argv[0])
    name = script.parent.name if script.name == "__main__.py" else script.stem
    return " ".join([f"python -m scripts.bench.{name}", *map(short, argv[1:])])
