"""The plug-in with specllama's kernels (native/): found or compiled, loaded into llama.cpp, and checked.

`load` never raises where the kernels are not demanded: without them llama.cpp computes everything itself, and
the reason is kept for the user. Knows nothing about models.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.config.store import cache_dir
from specllama.errors import EngineError, UsageError

GGML = "0.25.3"  # the version of ggml whose private structures the plug-in knows
NATIVE = Path(__file__).parent / "native"
OBJECT = "specllama_kernels.so"  # the ready-made object in a wheel
VARIABLE = "SPECLLAMA_KERNELS"
LEVELS: Mapping[str, tuple[str, ...]] = {  # the compiler's options for each instruction set
    "avx2": (),
    "avxvnni": ("-mavxvnni",),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
}
FLAGS = ("-std=c++17", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fno-rtti", "-w")
COMMON = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
_COMPILERS = ("g++", "c++", "clang++")
_SECONDS = 300  # for the compiler
_F32, _F16 = 0, 1  # ggml_type


class Unusable(Exception):
    """Why the kernels are not used, in words for the user."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """level: the instruction set in use, "" if llama.cpp computes everything itself; reason: why it does.
    identity: distinguishes the kernels in stored figures, "" if they are not in use.
    """

    level: str
    reason: str
    identity: str


def load(library: Any, environ: Mapping[str, str] = os.environ) -> Kernels:
    """Load the kernels into the llama.cpp of `library` (a CDLL) before it loads a model.

    SPECLLAMA_KERNELS: "off" leaves them out; "on" raises EngineError where they cannot be used; "auto", the
    default, continues without them; the name of an instruction set is "on" for that one. Raises UsageError
    for other values.
    """
    wanted = environ.get(VARIABLE) or "auto"
    if wanted not in ("off", "on", "auto", *LEVELS):
        allowed = ", ".join(("off", "on", "auto", *LEVELS))
        raise UsageError(f"{VARIABLE} is {wanted!r}, which is not one of {allowed}")
    if wanted == "off":
        return Kernels("", f"{VARIABLE} is off", "")
    try:
        return _start(library, wanted if wanted in LEVELS else "", environ)
    except Unusable as error:
        if wanted != "auto":
            raise EngineError(f"specllama's kernels cannot be used: {error}", f"unset {VARIABLE}") from None
        return Kernels("", str(error), "")


def sources() -> str:
    """The checksum of the kernels' sources and of how they are compiled, 16 hexadecimal digits."""
    digest = hashlib.sha256(repr((FLAGS, COMMON, LEVELS)).encode())
    for path in sorted([*NATIVE.glob("*.h"), *NATIVE.glob("*.cpp"), *NATIVE.glob("ggml/*.h")]):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_object(to: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Compile the object into the file `to`. Raises Unusable."""
    compiler = _compiler(environ)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent) as directory:
            _compile(compiler, Path(directory)).replace(to)
    except OSError as error:
        raise Unusable(f"{to.parent}: {error.strerror or error}") from None


def _compiler(environ: Mapping[str, str]) -> list[str]:
    given = environ.get("CXX")
    for command in [shlex.split(given)] if given else [[name] for name in _COMPILERS]:
        if command and shutil.which(command[0]):
            return command
    if given:
        raise Unusable(f"CXX is {given!r}, which is not on the path")
    raise Unusable("no C++ compiler was found to compile them (Debian: apt install g++)")


def _compile(compiler: list[str], directory: Path) -> Path:
    """The object, compiled in `directory`; two instruction sets at a time."""
    jobs = [["plugin.cpp", "-o", "plugin.o", f'-DSPECLLAMA_SOURCES="{sources()}"']]
    for level, options in LEVELS.items():
        jobs.append(["kernels.cpp", "-o", f"{level}.o", f"-DSPECLLAMA_LEVEL={level}", *COMMON, *options])
    for pair in (jobs[i : i + 2] for i in range(0, len(jobs), 2)):
        commands = [[*compiler, *FLAGS, "-c", str(NATIVE / source), *rest] for source, *rest in pair]
        _run(commands, directory)
    objects = [rest[1] for _, *rest in jobs]
    _run([[*compiler, "-shared", "-o", OBJECT, *objects, "-ldl"]], directory)
    return directory / OBJECT


def _run(commands: list[list[str]], directory: Path) -> None:
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
            _, printed = process.communicate(timeout=_SECONDS)
            if process.returncode:
                lines = [line for line in printed.splitlines() if "error" in line] or printed.splitlines()
                said = lines[0].strip() if lines else f"exit code {process.returncode}"
                raise Unusable(f"{command[0]} does not compile them: {said}")
    except subprocess.TimeoutExpired:
        raise Unusable(f"{commands[0][0]} took longer than {_SECONDS} s to compile them") from None
    finally:
        for process in running:
            with process:
                process.kill()


def _start(library: Any, level: str, environ: Mapping[str, str]) -> Kernels:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Unusable(f"they are for Linux on x86-64, this is {platform.system()} on {platform.machine()}")
    version = library.ggml_version().decode() if hasattr(library, "ggml_version") else "unknown"
    if version != GGML:
        raise Unusable(f"they are for ggml {GGML}, this is {version}")
    plugin = load_object(environ)
    why = plugin.specllama_start(library._handle, level.encode())
    if why is not None:
        raise Unusable(why.decode())
    try:
        check(library, plugin)
    except Unusable:
        plugin.specllama_stop()
        raise
    name = plugin.specllama_level().decode()
    return Kernels(name, "", f"{sources()} {name}")


def load_object(environ: Mapping[str, str] = os.environ) -> Any:
    """The ready-made object if there is one of these sources, else the compiled one in the cache."""
    here = sources()
    cached = cache_dir() / "kernels" / f"{here}.so"
    for path in (NATIVE / OBJECT, cached):
        if path.is_file():
            found = _open(path)
            if found is not None and found.specllama_sources().decode() == here:
                return found
    compile_object(cached, environ)
    compiled = _open(cached)
    if compiled is None:
        raise Unusable(f"{cached} cannot be loaded")
    return compiled


def _open(path: Path) -> Any:
    try:
        plugin = ctypes.CDLL(str(path))
        for name in ("specllama_start", "specllama_level", "specllama_sources"):
            getattr(plugin, name).restype = ctypes.c_char_p
        plugin.specllama_start.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        plugin.specllama_computed.restype = ctypes.c_long
    except (OSError, AttributeError):
        return None
    return plugin


class _Room(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def check(library: Any, plugin: Any) -> None:
    """Compute a small product and a small attention with ggml. Raises Unusable unless the kernels have
    computed them, correctly.
    """
    rng = np.random.default_rng(0)
    weights, batch = rng.normal(size=(24, 64)), rng.normal(size=(3, 64))
    keys, values, queries = (rng.normal(size=(2, n, 64)) for n in (40, 40, 3))
    scores = queries @ keys.transpose(0, 2, 1) / 8
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    attended = (shares / shares.sum(-1, keepdims=True)) @ values
    room = _call(library, "ggml_init", ctypes.c_void_p, _Room(4 << 20, None, False))
    pointer = ctypes.c_void_p
    try:
        put = [_put(library, room, a, kind) for a, kind in ((weights, _F16), (batch, _F32))]
        product = _call(library, "ggml_mul_mat", pointer, pointer(room), *put)
        put = [_put(library, room, a, kind) for a, kind in ((queries, _F32), (keys, _F16), (values, _F16))]
        numbers = (ctypes.c_float(1 / 8), ctypes.c_float(0), ctypes.c_float(0))
        attention = _call(
            library, "ggml_flash_attn_ext", pointer, pointer(room), *put, pointer(None), *numbers
        )
        for kind, (node, expected) in enumerate(
            ((product, batch @ weights.T), (attention, attended.transpose(1, 0, 2)))
        ):
            before = plugin.specllama_computed(kind)
            found = _compute(library, room, node, expected.shape)
            if plugin.specllama_computed(kind) == before:
                raise Unusable("this llama.cpp does not use them")
            if not np.allclose(found, expected, atol=0.02):
                raise Unusable("a test of them gave another result than numpy")
    except AttributeError as error:
        raise Unusable(f"this llama.cpp lacks a function: {error}") from None
    finally:
        _call(library, "ggml_free", None, pointer(room))


def _call(library: Any, name: str, result: Any, *arguments: Any) -> Any:
    # A new function object, so that the types that others have set for this function stay.
    function = ctypes.CFUNCTYPE(result, *map(type, arguments))((name, library))
    return function(*arguments)


def _put(library: Any, room: int, values: NDArray[np.float64], kind: int) -> ctypes.c_void_p:
    dense = np.ascontiguousarray(values, np.float16 if kind == _F16 else np.float32)
    shape = [ctypes.c_int64(n) for n in [*reversed(dense.shape), 1, 1][:4]]
    shape += [ctypes.c_int64(1)] * (4 - len(shape))
    tensor = _call(
        library,
        "ggml_new_tensor_4d",
        ctypes.c_void_p,
        ctypes.c_void_p(room),
        ctypes.c_int(kind),
        *shape,
    )
    address = _call(library, "ggml_get_data", ctypes.c_void_p, ctypes.c_void_p(tensor))
    ctypes.memmove(address, dense.ctypes.data, dense.nbytes)
    return ctypes.c_void_p(tensor)


def _compute(library: Any, room: int, node: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    pointer = ctypes.c_void_p
    graph = _call(library, "ggml_new_graph", pointer, pointer(room))
    _call(library, "ggml_build_forward_expand", None, pointer(graph), pointer(node))
    arguments = (pointer(room), pointer(graph), ctypes.c_int(1))
    if _call(library, "ggml_graph_compute_with_ctx", ctypes.c_int, *arguments) != 0:
        raise Unusable("a test of them failed")
    found = np.empty(shape, np.float32)
    address = _call(library, "ggml_get_data", pointer, pointer(node))
    ctypes.memmove(found.ctypes.data, address, found.nbytes)
    return found
