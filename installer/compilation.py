"""Compiles llama-cpp-python from its source package."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from .demo import DemoDownload
from .errors import RESOURCES, InstallError, explained
from .progress import BuildProgress
from .ready_made import PACKAGE
from .tools import COMPILE_BYTES, LOCAL, Tools
from .wheels import WheelCache, compiler, key

WHAT = "compiling llama.cpp"


def wheel_key(tools: Tools) -> str:
    """The key in the cache of the wheel that `compile_llama` makes."""
    request = tools.request
    parts = {"version": request.version, "device": request.device, "amx": str(request.amx)}
    sources = [*request.native.glob("*.cmake"), request.native / "amx.h"]
    return key(parts, sources, request.environ, Path("/proc/cpuinfo"))


def compile_llama(tools: Tools, cache: WheelCache, demo: DemoDownload, compilers: Mapping[str, str]) -> None:
    """Compile and install llama-cpp-python; the wheel is kept in the cache. compilers: variables that name
    others than the user's. Raises InstallError.
    """
    request, progress = tools.request, tools.progress
    if not compilers:
        check_compiler(tools)
    tools.check_room(COMPILE_BYTES)
    progress.say(
        f"compiling llama.cpp for '{request.device}' on this machine, 1 to 3 minutes on two idle cores, "
        "longer where other programs run"
    )
    demo.begin()
    state, built = BuildProgress(), tools.work / "built"
    shutil.rmtree(built, ignore_errors=True)
    raw = ["--progress-bar", "raw"] if _pip_version(tools) >= (24, 1) else []
    command = tools.pip_command("wheel", "-v", *raw, "--no-deps", "--no-binary", PACKAGE, "-w", built)
    code, output = tools.children.run(
        tools.constrained(*command, f"{PACKAGE}=={request.version}"),
        lambda: progress.show(state.text()),
        state.feed,
        environ=build_environment(tools) | compilers,
    )
    if code:
        raise explained(output, WHAT)
    wheel = next(built.glob("*.whl"))
    try:
        cache.store(wheel_key(tools), wheel)
    except OSError as error:
        progress.say(f"the compiled wheel is not kept for later: {cache.root}: {error.strerror or error}")
    tools.call(tools.pip_command(*LOCAL, wheel), "installing llama.cpp")


def check_compiler(tools: Tools) -> None:
    """Raise InstallError without a C++ compiler."""
    environ = tools.request.environ
    if compiler("CXX", environ):
        return
    given = environ.get("CXX")
    raise InstallError(
        f"CXX is '{given}', which is not on the path"
        if given
        else "no C++ compiler was found, and llama.cpp has to be compiled",
        "install one (Debian: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install)",
        RESOURCES,
    )


def build_environment(tools: Tools) -> dict[str, str]:
    """The variables for the compilation.

    What pip has downloaded before comes from its cache, but the wheel does not get into it: pip does not know
    for which device, and with which changes, a wheel was compiled.
    """
    request = tools.request
    given = request.environ.get("CMAKE_ARGS", "")
    found = {
        "CMAKE_ARGS": f"{shlex.join(request.cmake_arguments())} {given}".strip(),
        "TMPDIR": str(tools.work),
    }
    if request.amx:
        given = request.environ.get("CXXFLAGS", "")
        found["CXXFLAGS"] = f'-include "{request.native / "amx.h"}" {given}'.strip()
    cache = tools.work / "pip-cache"
    shutil.rmtree(cache, ignore_errors=True)  # of a build with other compilers
    cache.mkdir()
    code, output = tools.try_pip("preparing to compile llama.cpp", "cache", "dir")
    if code == 0 and output.strip():
        downloads = Path(output.split("\n")[0]) / ("http-v2" if _pip_version(tools) >= (23, 3) else "http")
        with contextlib.suppress(OSError):
            downloads.mkdir(parents=True, exist_ok=True)
            (cache / downloads.name).symlink_to(downloads)
    return {**found, "PIP_CACHE_DIR": str(cache)}


def _pip_version(tools: Tools) -> tuple[int, ...]:
    """Of .venv's pip, () where it is unknown."""
    for found in tools.packages.glob("pip-*.dist-info"):
        with contextlib.suppress(ValueError):
            return tuple(map(int, found.name.removesuffix(".dist-info").split("-")[1].split(".")[:2]))
    return ()
