"""What `doctor` reports on the machine: versions, processor, memory, GPUs, according to the system."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import Any, TypedDict

import specllama
from specllama.cli.doctor import Problem
from specllama.models.memory.available import UNKNOWN, available_memory, gpus_present, physical_cores
from specllama.processor_time import output_of

_CMAKE = {"cuda": "-DGGML_CUDA=ON", "metal": "-DGGML_METAL=ON", "vulkan": "-DGGML_VULKAN=ON"}
_COMPILERS = {"cuda": ("nvcc", "the CUDA toolkit"), "vulkan": ("glslc", "the Vulkan SDK")}


class Versions(TypedDict):
    """Versions, None for a part that does not load."""

    specllama: str
    python: str
    python_path: str
    system: str
    llama_cpp_python: str | None
    llama_cpp: str | None
    ggml: str | None


class GpuReport(TypedDict):
    """A GPU that is present. usable: by this build of llama.cpp; rebuild: the command that makes it so."""

    backend: str
    usable: bool
    rebuild: str


class MachineReport(TypedDict):
    """Processor, bytes of memory and GPUs."""

    cpu: str
    physical_cores: int
    logical_cpus: int | None
    memory_total: int | None
    memory_available: int | None
    gpus: list[GpuReport]


def versions(engine: Mapping[str, Any]) -> Versions:
    """Versions of specllama, Python, system and llama.cpp; None for a part that does not load."""
    return {
        "specllama": specllama.__version__,
        "python": platform.python_version(),
        "python_path": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "llama_cpp_python": engine.get("llama_cpp_python", _installed()),
        "llama_cpp": engine.get("llama_cpp"),
        "ggml": engine.get("ggml"),
    }


def machine(engine: Mapping[str, Any], problems: list[Problem]) -> MachineReport:
    """Processor, memory in bytes (None where unknown), the GPUs and whether the build uses them."""
    usable = any(device["gpu"] for device in engine.get("devices", []))
    present = gpus_present()
    for name in present:
        if engine["ok"] and not usable:
            tool, kit = _COMPILERS.get(name, ("", ""))
            missing = f" (needs {kit}; {tool} is not on the path)" if tool and not which(tool) else ""
            what = f"a GPU is present ({name}), and this build of llama.cpp cannot use it"
            problems.append(Problem(what, f"rebuild it: {rebuild(name)}{missing}"))
    available = available_memory()
    return {
        "cpu": processor(engine),
        "physical_cores": physical_cores(),
        "logical_cpus": os.cpu_count(),
        "memory_total": total_memory(),
        "memory_available": None if available >= UNKNOWN else available,
        "gpus": [{"backend": name, "usable": usable, "rebuild": rebuild(name)} for name in present],
    }


def processor(engine: Mapping[str, Any], root: Path = Path("/")) -> str:
    """The processor's name according to llama.cpp, else to the system."""
    for device in engine.get("devices", []):
        if not device["gpu"] and device["name"] == "CPU":
            return str(device["description"])
    if platform.system() == "Darwin":
        name = output_of(["sysctl", "-n", "machdep.cpu.brand_string"], 5.0) or ""
        return name.strip() or platform.machine()
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    return platform.processor() or platform.machine()


def total_memory() -> int | None:
    """Bytes of the machine's memory, None where unknown."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def rebuild(backend: str) -> str:
    """The command that builds llama.cpp for a backend: this checkout's script, or pip's."""
    if (Path(specllama.__file__).parent.parent / "scripts" / "specllama").is_file():
        return f"SPECLLAMA_BACKEND={backend} scripts/specllama"
    version = _installed()
    package = f"llama-cpp-python=={version}" if version else "llama-cpp-python"
    pip = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python"
    return f"CMAKE_ARGS={_CMAKE[backend]} {pip} {package}"


def _installed() -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("llama-cpp-python")
    return None
