"""Builds llama.cpp's tools from the source package of the installed llama-cpp-python, in the user's cache."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

import platformdirs

PACKAGE = "llama-cpp-python"
AMX = Path(__file__).resolve().parents[3] / "specllama" / "llama" / "native" / "amx.h"  # empty without AMX
TOOLS = ("llama-speculative-simple", "llama-completion", "llama-server", "llama-bench")


def tools(given: Path | None) -> Path:
    """The directory of the tools: `given`, or one that is built once per version (8 minutes)."""
    if given is not None:
        missing = [name for name in TOOLS[:2] if not (given / name).exists()]
        if missing:
            raise SystemExit(f"{given} has no {missing[0]}")
        return given
    version = metadata.version(PACKAGE)
    home = Path(platformdirs.user_cache_dir("specllama", appauthor=False)) / "peers" / version
    done = home / "built"
    if not done.exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        source = _source(version, home)
        _compile(source, home / "build")
        done.touch()
    return home / "build" / "bin"


def _source(version: str, home: Path) -> Path:
    print(f"getting the source of {PACKAGE} {version}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
        command += ["--no-deps", "--no-binary", PACKAGE, "--dest", scratch, f"{PACKAGE}=={version}"]
        subprocess.run(command, check=True)
        archive = next(Path(scratch).glob("*.tar.gz"))
        with tarfile.open(archive) as tar:
            tar.extractall(home, filter="data")
    return next(home.glob("llama_cpp_python-*")) / "vendor" / "llama.cpp"


def _compile(source: Path, build: Path) -> None:
    print(f"building {', '.join(TOOLS)}; about 8 minutes on two cores", file=sys.stderr)
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_RPC=ON", "-DGGML_RPC_RDMA=OFF", "-DLLAMA_CURL=OFF"]
    options += ["-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_UI=OFF"]
    options += os.environ.get("CMAKE_ARGS", "").split()
    if platform.machine() == "x86_64":
        options.append(f'-DCMAKE_CXX_FLAGS=-include "{AMX}" {os.environ.get("CXXFLAGS", "")}')
    cmake = shutil.which("cmake")
    if cmake is None:
        raise SystemExit("cmake is needed to build llama.cpp's tools (pip install cmake)")
    subprocess.run([cmake, "-S", source, "-B", build, *options], check=True, stdout=subprocess.DEVNULL)
    jobs = str(os.cpu_count() or 1)
    subprocess.run(
        [cmake, "--build", build, "-j", jobs, "--target", *TOOLS], check=True, stdout=subprocess.DEVNULL
    )
