"""The plug-in with specllama's kernels (native/): found or compiled, loaded into llama.cpp, and checked.

`load` raises only if the kernels are required: otherwise llama.cpp computes everything itself, and the reason
is kept for the user. Knows nothing about models.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.config.store import cache_dir
from specllama.core.sampling import native
from specllama.errors import EngineError, UsageError
from specllama.llama.kernel_build import (
    LEVELS,
    OBJECT,
    Unusable,
    compile_object,
    is_current,
    sources,
    unsupported,
)

GGML = "0.25.3"  # the version of ggml whose private structures the plug-in knows
VARIABLE = "SPECLLAMA_KERNELS"
CPUINFO = Path("/proc/cpuinfo")
_F32, _F16 = 0, 1  # ggml_type
_failures: list[Unusable] = []  # of compile_into_cache


@dataclass(frozen=True, slots=True)
class Kernels:
    """level: the instruction set in use, "" if llama.cpp computes everything itself; reason: why it does.
    identity: distinguishes the kernels in stored figures, "" if they are not in use. amx: whether weights are
    packed for AMX.
    """

    level: str
    reason: str
    identity: str
    amx: bool = False


def load(library: Any, environ: Mapping[str, str] = os.environ) -> Kernels:
    """Load the kernels into the llama.cpp of `library` (a CDLL) before it loads a model.

    SPECLLAMA_KERNELS: "off" leaves them out; "on" raises EngineError where they cannot be used; "auto", the
    default, continues without them, and leaves them out on aarch64; the name of an instruction set is "on"
    for that one. Raises UsageError for other values.
    """
    wanted = environ.get(VARIABLE) or "auto"
    if wanted not in ("off", "on", "auto", *LEVELS):
        allowed = ", ".join(("off", "on", "auto", *LEVELS))
        raise UsageError(f"{VARIABLE} is {wanted!r}, which is not one of {allowed}", f"unset {VARIABLE}")
    if wanted == "off":
        return Kernels("", f"{VARIABLE} is off", "")
    if wanted == "auto" and (why := _left_out()):
        return Kernels("", why, "")
    try:
        return _start(library, wanted if wanted in LEVELS else "", environ)
    except Unusable as error:
        if wanted != "auto":
            what = f"{VARIABLE} is {wanted}, and specllama's kernels cannot be used: {error}"
            raise EngineError(what, f"unset {VARIABLE}") from None
        return Kernels("", str(error), "")


def _with_cpu(library: Any) -> Any:
    """The library in which ggml's functions for the CPU are found. Where backends are loadable, llama.cpp is
    not linked to it: the one that has been loaded.
    """
    if hasattr(library, "ggml_graph_compute_with_ctx"):
        return library
    with open("/proc/self/maps") as maps:
        loaded = {line.split(maxsplit=5)[-1].strip() for line in maps if "libggml-cpu" in line}
    if not loaded:
        raise Unusable("no CPU backend of ggml has been loaded")
    try:
        return ctypes.CDLL(loaded.pop())
    except OSError as error:
        raise Unusable(f"ggml's CPU backend cannot be loaded: {error}") from None


def _left_out() -> str:
    """Why the kernels are off by default on this machine, "" if they are on."""
    if platform.machine() != "aarch64":
        return ""
    return f"how fast they are on aarch64 has not been measured; {VARIABLE}=on uses them"


def processor_flags() -> set[str]:
    """The names of what the processor can do, as Linux on x86-64 lists them; empty where they are unknown."""
    try:
        match = re.search(r"^flags\s*:(.*)$", CPUINFO.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return set()
    return set(match[1].split()) if match is not None else set()


def _lacking() -> str:
    """The feature that this processor lacks to run them, "" if nothing is known; the object checks again at
    its start.
    """
    flags = processor_flags()
    lacks = platform.machine() == "x86_64" and flags and not {"avx2", "fma", "f16c"} <= flags
    return "this processor lacks AVX2" if lacks else ""


def _start(library: Any, level: str, environ: Mapping[str, str]) -> Kernels:
    if why := unsupported() or _lacking():
        raise Unusable(why)
    version = library.ggml_version().decode() if hasattr(library, "ggml_version") else "unknown"
    if version != GGML:
        raise Unusable(f"they are for ggml {GGML}, this is {version}")
    plugin = load_object(environ)
    library = _with_cpu(library)
    problem = plugin.specllama_start(library._handle, level.encode())
    if problem is not None:
        raise Unusable(problem.decode())
    try:
        check(library, plugin)
    except Unusable:
        plugin.specllama_stop()
        raise
    native.functions = plugin.sampling
    name, amx = plugin.specllama_level().decode(), bool(plugin.specllama_uses_amx())
    return Kernels(name, "", f"{sources()} {name}{' amx' * amx}", amx)


def must_compile(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `load` would compile the object first."""
    wanted = environ.get(VARIABLE) or "auto"
    left_out = wanted == "off" or (wanted == "auto" and _left_out())
    unusable = unsupported() or _lacking()
    return not left_out and not unusable and not any(map(_is_usable, (OBJECT, _cached())))


def _is_usable(path: Path) -> bool:
    """Whether it is an object of these sources, and no FIFO, at whose opening one would wait."""
    return path.is_file() and is_current(path)


def compile_into_cache(report: Callable[[float], None], environ: Mapping[str, str] = os.environ) -> None:
    """Compile the object for `load`, which reports it if that fails. report: gets the share that is done."""
    try:
        compile_object(_cached(), environ, report)
    except Unusable as error:
        _failures.append(error)


def load_object(environ: Mapping[str, str] = os.environ) -> Any:
    """The ready-made object or the one in the cache; compiled into the cache if there is none of these
    sources that can be loaded. Raises Unusable.
    """
    for path in (OBJECT, _cached()):
        if _is_usable(path):
            with contextlib.suppress(Unusable):
                return _open(path)
    if _failures:
        raise _failures[0]
    compile_object(_cached(), environ)
    return _open(_cached())


def _cached() -> Path:
    return cache_dir() / "kernels" / f"{sources()}.so"


def _open(path: Path) -> Any:
    try:
        plugin: Any = ctypes.CDLL(str(path))
        for name in ("specllama_start", "specllama_level", "specllama_sources"):
            getattr(plugin, name).restype = ctypes.c_char_p
        plugin.specllama_start.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        plugin.specllama_computed.restype = ctypes.c_long
        plugin.specllama_uses_amx.restype = ctypes.c_bool
        plugin.sampling = native.NativeFunctions(plugin)
    except (OSError, AttributeError) as error:
        raise Unusable(f"their object cannot be loaded: {error}") from None
    return plugin


class _Room(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def _scattered(*shape: int) -> NDArray[np.float64]:
    """Numbers from -1 to 1 without a pattern; importing numpy.random would take longer than all else here."""
    numbers: NDArray[np.float64] = np.sin(np.arange(1, math.prod(shape) + 1) ** 2.0)
    return numbers.reshape(shape)


def check(library: Any, plugin: Any) -> None:
    """Compute a small product and a small attention with ggml. Raises Unusable unless the kernels have
    computed them, correctly.
    """
    weights, batch = _scattered(24, 64), _scattered(3, 64)
    keys, values, queries = _scattered(2, 40, 64), _scattered(2, 41, 64)[:, 1:], _scattered(2, 3, 64)
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
            computed = _compute(library, room, node, expected.shape)
            if plugin.specllama_computed(kind) == before:
                raise Unusable("this llama.cpp does not use them")
            if not np.allclose(computed, expected, atol=0.02):
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
    pointer, shape = ctypes.c_void_p, [ctypes.c_int64(n) for n in [*reversed(dense.shape), 1, 1][:4]]
    tensor = _call(library, "ggml_new_tensor_4d", pointer, pointer(room), ctypes.c_int(kind), *shape)
    address = _call(library, "ggml_get_data", pointer, pointer(tensor))
    ctypes.memmove(address, dense.ctypes.data, dense.nbytes)
    return pointer(tensor)


def _compute(library: Any, room: int, node: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    pointer = ctypes.c_void_p
    graph = _call(library, "ggml_new_graph", pointer, pointer(room))
    _call(library, "ggml_build_forward_expand", None, pointer(graph), pointer(node))
    arguments = (pointer(room), pointer(graph), ctypes.c_int(1))
    if _call(library, "ggml_graph_compute_with_ctx", ctypes.c_int, *arguments) != 0:
        raise Unusable("a test of them failed")
    product = np.empty(shape, np.float32)
    address = _call(library, "ggml_get_data", pointer, pointer(node))
    ctypes.memmove(product.ctypes.data, address, product.nbytes)
    return product
