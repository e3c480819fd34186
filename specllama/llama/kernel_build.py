"""Compiles the plug-in with specllama's kernels (native/) into one shared object, in seconds.

Imports no package but specllama, and of that what needs the standard library alone, so that the build of a
wheel and the installation of a clone can use it before any package is installed. As a program it compiles the
ready-made object of the package.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from specllama.processor_time import TooLongError, kill_tree, outputs_of, processes

NATIVE = Path(__file__).parent / "native"
OBJECT = NATIVE / "specllama_kernels.so"  # ready-made: in a wheel, and in a clone that was installed
LEVELS: Mapping[str, tuple[str, ...]] = {  # the compiler's options for each instruction set
    "avx2": (),
    "avxvnni": ("-mavxvnni",),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
    "neon": (),
}
OF_MACHINE: Mapping[str, tuple[str, ...]] = {"x86_64": ("avx2", "avxvnni", "avx512"), "aarch64": ("neon",)}
FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fno-rtti", "-w")
COMMON = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
_COMPILERS = ("g++", "c++", "clang++")
_SECONDS = 300  # of work, for the compiler of one of them
_MAX_OBJECT = 64 << 20  # bytes of an object that are read: a compiled one has 1 to 4 MB
compiles = threading.Lock()  # held by the thread that compiles


class Unusable(Exception):
    """Why the kernels are not used, in words for the user."""


def sources() -> str:
    """The checksum of the kernels' sources and of how they are compiled, 16 hexadecimal digits."""
    digest = hashlib.sha256(repr((FLAGS, COMMON, LEVELS, OF_MACHINE)).encode())
    for path in sorted([*NATIVE.glob("*.h"), *NATIVE.glob("*.cpp"), *NATIVE.glob("ggml/*.h")]):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def unsupported() -> str:
    """Why there are no kernels for this system, "" where there are."""
    if platform.system() == "Linux" and platform.machine() in OF_MACHINE:
        return ""
    return f"they are for Linux on x86-64 and aarch64, this is {platform.system()} on {platform.machine()}"


def is_current(path: Path, checksum: str = "") -> bool:
    """Whether the file is an object of these sources, or of those with this checksum; a longer one than any
    that is compiled is not.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_OBJECT + 1)
        return len(data) <= _MAX_OBJECT and (checksum or sources()).encode() in data
    except OSError:
        return False


def compile_object(
    to: Path, environ: Mapping[str, str] = os.environ, report: Callable[[float], None] = lambda _: None
) -> None:
    """Compile the object into the file `to`. report: gets the share that is done. Raises Unusable."""
    compiler = compiler_of(environ)
    with folder_for(to, OBJECT.name) as directory:
        _compile(compiler, directory, report)


@contextlib.contextmanager
def folder_for(to: Path, name: str) -> Iterator[Path]:
    """A folder to compile in. What is compiled there by this name becomes the file `to`, whole or not at all.
    Raises Unusable.
    """
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        own = f".compiling-{platform.node()}-"  # other machines may share the folder
        running = {str(pid) for pid in processes()}
        for left in to.parent.iterdir():
            of = re.fullmatch(rf"{re.escape(own)}(\d+)-\w+", left.name)
            if running and of is not None and of[1] not in running:  # its process was killed
                shutil.rmtree(left, ignore_errors=True)
        with compiles, tempfile.TemporaryDirectory(prefix=f"{own}{os.getpid()}-", dir=to.parent) as directory:
            yield Path(directory)
            Path(directory, name).replace(to)
    except OSError as error:
        raise unwritable(to.parent, error) from None


def unwritable(folder: Path, error: OSError) -> Unusable:
    """Why nothing can be compiled into this folder."""
    other = "" if folder == NATIVE else "; SPECLLAMA_CACHE names another cache directory"
    return Unusable(f"{folder}: {error.strerror or error}{other}")


def compiler_of(environ: Mapping[str, str]) -> list[str]:
    """The C++ compiler's command: CXX, or one on the path. Raises Unusable."""
    given = environ.get("CXX")
    try:
        commands = [shlex.split(given)] if given else [[name] for name in _COMPILERS]
    except ValueError as error:
        raise Unusable(f"CXX is {given!r}, which is not a command: {error}") from None
    for command in commands:
        if command and shutil.which(command[0]):
            return command
    if given:
        raise Unusable(f"CXX is {given!r}, which is not on the path")
    raise Unusable("no C++ compiler was found to compile them (Debian: apt install g++)")


def objects(machine: str) -> dict[str, list[str]]:
    """The object files of a processor, and the compiler's arguments for each, without FLAGS."""
    outputs = {"plugin.o": [str(NATIVE / "plugin.cpp"), f'-DSPECLLAMA_SOURCES="{sources()}"']}
    at_least = COMMON if machine == "x86_64" else ()
    outputs["sampling.o"] = [str(NATIVE / "sampling.cpp"), *at_least]
    for level in OF_MACHINE[machine]:
        if level == "neon":
            outputs[f"{level}.o"] = [str(NATIVE / "neon.cpp")]
        else:
            options = (f"-DSPECLLAMA_LEVEL={level}", *COMMON, *LEVELS[level])
            outputs[f"{level}.o"] = [str(NATIVE / "kernels.cpp"), *options]
    return outputs


def _compile(compiler: list[str], directory: Path, report: Callable[[float], None]) -> None:
    """Compile the object in `directory`; two instruction sets at a time."""
    jobs = list(objects(platform.machine()).items())
    for i in range(0, len(jobs), 2):
        report(i / len(jobs))
        pair = [(name, _known(compiler, given)) for name, given in jobs[i : i + 2]]
        commands = [[*compiler, *FLAGS, "-c", *given, "-o", name] for name, given in pair]
        run_compilers(commands, directory)
    # libstdc++ is not linked statically: llama.cpp needs it anyway, Fedora's g++ lacks libstdc++.a, and with
    # Debian's the object would need a newer C library.
    run_compilers([[*compiler, "-shared", "-o", OBJECT.name, *(name for name, _ in jobs), "-ldl"]], directory)


def _known(compiler: list[str], given: list[str]) -> list[str]:
    """The arguments without the instruction sets of LEVELS that the compiler does not know: GCC has -mavxvnni
    since version 11. The level is then compiled like the one below it.
    """
    extra = [option for options in LEVELS.values() for option in options if option in given]
    trial = [*compiler, *extra, "-fsyntax-only", "-x", "c++", os.devnull]
    if not extra or subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
        return given
    return [option for option in given if option not in extra]


def run_compilers(commands: list[list[str]], directory: Path) -> None:
    """Run them at the same time, in `directory`; if one fails, the others are ended. Raises Unusable."""
    running = [
        subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        for command in commands
    ]
    try:
        for command, process in zip(commands, running, strict=True):
            name = f"CXX={command[0]}" if os.environ.get("CXX") else command[0]
            try:
                _, printed = outputs_of(process, _SECONDS)
            except TooLongError as late:
                raise Unusable(f"{name} was ended before it had compiled them: it {late}") from None
            if process.returncode:
                lines = [line for line in printed.splitlines() if "error" in line] or printed.splitlines()
                said = lines[0].strip() if lines else f"exit code {process.returncode}"
                raise Unusable(f"{name} does not compile them: {said}")
            if not (directory / command[command.index("-o") + 1]).exists():
                raise Unusable(f"{name} has compiled nothing")
    finally:
        for process in running:
            with process:
                if process.poll() is None:
                    kill_tree(process.pid)


def main() -> int:
    """Compile the ready-made object unless it is current, or this system has no kernels; 1, with the reason
    on stderr, if that fails.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an interrupted installation: nothing is left
    try:
        if not unsupported() and not is_current(OBJECT):
            compile_object(OBJECT)
    except Unusable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
