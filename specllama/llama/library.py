"""The shared library: checked, loaded and started once, and what this build of it supports.

Importing this module loads llama.cpp. It raises EngineError if llama-cpp-python is absent, has another
version or cannot be loaded.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import shlex
import sys
import types
from collections import deque
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from specllama.errors import EngineError, UsageError, option
from specllama.llama.kernels import load
from specllama.llama.vision_build import TESTED

_WARNING, _ERROR, _CONTINUATION = 3, 4, 5  # ggml_log_level
_KEPT = 200  # lines
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)  # ggml_log_callback


class LlamaLog:
    """Keeps llama.cpp's last lines of level warning and error, which explain a failed load. verbose: also
    writes every line to stderr.
    """

    def __init__(self) -> None:
        self.verbose = False
        self.callback = _CALLBACK(self._receive)
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._level = 0

    def clear(self) -> None:
        """Forget the lines so far, before a load whose `reason` may be needed."""
        self._lines.clear()

    def reason(self) -> str:
        """The last three warnings and errors in one line."""
        return "; ".join(list(self._lines)[-3:]) or "llama.cpp gave no reason"

    def line_with(self, word: str) -> str:
        """The last warning or error with this word, "" for none."""
        last_line = next((line for line in reversed(self._lines) if word in line), "")
        return last_line.partition("\n")[0].removeprefix("warning: ")

    def _receive(self, level: int, text: bytes, _user: object) -> None:
        line = text.decode("utf-8", "replace")
        if self.verbose:
            sys.stderr.write(line)
        self._level = level if level != _CONTINUATION else self._level
        if self._level in (_WARNING, _ERROR) and line.strip(" .\n"):
            self._lines.append(line.strip())


log = LlamaLog()


_CMAKE_ARGS = 'CMAKE_ARGS="-DGGML_RPC=ON -DGGML_RPC_RDMA=OFF"'


def _command(with_pip: str, with_uv: str) -> str:
    """The command that compiles llama-cpp-python, with RPC, into this environment: with its own pip, or with
    uv where it has none.
    """
    python = shlex.quote(sys.executable)
    source = "--no-binary llama-cpp-python"  # not a wheel, which may lack RPC
    if importlib.util.find_spec("pip"):
        program = f"{python} -m pip install {source} --no-cache-dir {with_pip}"
    else:
        program = f"uv pip install --python {python} {source} --no-cache {with_uv}"
    return f"{_CMAKE_ARGS} {' '.join(program.split())} llama-cpp-python=={TESTED}"


INSTALL = _command("", "")
_AGAIN = f"install it again: {INSTALL}"
ADD_RPC = _command("--force-reinstall --no-deps", "--reinstall --no-deps")

try:
    _installed = metadata.version("llama-cpp-python")
except metadata.PackageNotFoundError:
    raise EngineError("llama-cpp-python is not installed", f"install it: {INSTALL}") from None
if _installed != TESTED:
    raise EngineError(
        f"llama-cpp-python {_installed} is installed, specllama needs {TESTED}", f"install it: {INSTALL}"
    )
_loaded = "llama-cpp-python"
if folder := os.environ.pop("LLAMA_CPP_LIB_PATH", ""):  # of llama-cpp-python, which looks for "." elsewhere
    os.environ["LLAMA_CPP_LIB_PATH"] = folder = os.path.abspath(os.path.expanduser(folder))
    _loaded = f"the llama.cpp in {folder}, which LLAMA_CPP_LIB_PATH names,"
    _AGAIN = "unset LLAMA_CPP_LIB_PATH, or name the folder that contains libllama"
# OpenMP threads spin at every barrier, for milliseconds by default: where another program keeps a core busy,
# a decode then takes hundreds of times as long. With this limit it takes three times as long.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
# The package imports its own engine with jinja2, diskcache and others, which takes longer than all else
# here; the functions of llama.cpp are in another module.
_engine = types.ModuleType("llama_cpp.llama")
_unused = sys.modules.setdefault(_engine.__name__, _engine) is _engine
try:
    import llama_cpp as llama
    from llama_cpp.llama_cpp import _lib
except (ImportError, RuntimeError, FileNotFoundError, OSError) as error:
    raise EngineError(f"{_loaded} cannot be loaded: {error}", _AGAIN) from None
finally:
    if _unused:
        del sys.modules[_engine.__name__]

__all__ = ["llama"]

# ggml's functions, found through llama.cpp, which is linked to them: llama_cpp._ggml loads a second copy of
# the library, whose list of devices llama.cpp never sees.
ggml: Any = _lib

for _name, _result, _args in (
    ("ggml_backend_dev_count", ctypes.c_size_t, []),
    ("ggml_backend_dev_get", ctypes.c_void_p, [ctypes.c_size_t]),
    ("ggml_backend_dev_name", ctypes.c_char_p, [ctypes.c_void_p]),
    ("ggml_backend_dev_description", ctypes.c_char_p, [ctypes.c_void_p]),
    ("ggml_backend_dev_type", ctypes.c_int, [ctypes.c_void_p]),
    ("ggml_backend_dev_memory", None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    ("ggml_backend_dev_buffer_type", ctypes.c_void_p, [ctypes.c_void_p]),
    ("ggml_backend_dev_backend_reg", ctypes.c_void_p, [ctypes.c_void_p]),
    ("ggml_backend_buft_name", ctypes.c_char_p, [ctypes.c_void_p]),
    ("ggml_backend_reg_count", ctypes.c_size_t, []),
    ("ggml_backend_reg_get", ctypes.c_void_p, [ctypes.c_size_t]),
    ("ggml_backend_reg_name", ctypes.c_char_p, [ctypes.c_void_p]),
    ("ggml_backend_load_all_from_path", None, [ctypes.c_char_p]),
    ("ggml_version", ctypes.c_char_p, []),
):
    try:
        _function = getattr(ggml, _name)
    except AttributeError:
        raise EngineError(f"{_loaded} was compiled without exporting {_name}", _AGAIN) from None
    _function.restype, _function.argtypes = _result, _args

llama.llama_log_set(log.callback, ctypes.c_void_p(0))
llama.llama_backend_init()
if not ggml.ggml_backend_reg_count():  # backends are loadable; llama-cpp-python does not load them
    ggml.ggml_backend_load_all_from_path(os.fsencode(os.path.dirname(_lib._name)))
KERNELS = load(ggml)


def build_info() -> dict[str, Any]:
    """The build of llama.cpp: versions, registered backends, whether it supports GPU offload, mmap, mlock and
    RPC; and specllama's kernels, or why they are not used. Fields of client.model_info.BuildInfo.
    """
    registered = (ggml.ggml_backend_reg_get(i) for i in range(ggml.ggml_backend_reg_count()))
    return {
        "llama_cpp_python": _installed,
        "llama_cpp": llama.llama_version().decode(),
        "ggml": ggml.ggml_version().decode(),
        "backends": [ggml.ggml_backend_reg_name(reg).decode() for reg in registered],
        "gpu_offload": bool(llama.llama_supports_gpu_offload()),
        "mmap": bool(llama.llama_supports_mmap()),
        "mlock": bool(llama.llama_supports_mlock()),
        "rpc": bool(llama.llama_supports_rpc()),
        "kernels": KERNELS.level + "+amx" * KERNELS.amx,
        "kernels_reason": KERNELS.reason,
    }


def system_info() -> str:
    """llama.cpp's line of the features that are enabled, by backend."""
    text: bytes = llama.llama_print_system_info()
    return text.decode()


@functools.cache
def compiled() -> str:
    """An identifier of this build of llama.cpp, 16 hexadecimal digits: a hash over the checksums of its
    libraries recorded at installation, or over their sizes and times if there is no record, and over the
    kernels in use.
    """
    files = metadata.distribution("llama-cpp-python").files or []
    kept = [f"{file.name} {file.hash.value}" for file in files if file.hash and file.parent.name == "lib"]
    if not kept:
        here = os.path.dirname(_lib._name)
        entries = [entry for entry in os.scandir(here) if entry.is_file()] if os.path.isdir(here) else []
        kept = [f"{one.name} {one.stat().st_size} {one.stat().st_mtime_ns}" for one in entries]
    kept = [*sorted(kept), *filter(None, (KERNELS.identity,))]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]


_GPU_TYPES = (1, 2)  # ggml_backend_dev_type: GPU, integrated GPU


@dataclass(frozen=True, slots=True)
class Device:
    """A device of this build.

    gpu: llama.cpp counts an RPC worker as one, whatever its hardware. remote: the device of an RPC worker,
    whose description is the worker's address. free, total: bytes of memory. handle: ggml_backend_dev_t.
    """

    name: str
    description: str
    gpu: bool
    remote: bool
    free: int
    total: int
    handle: int


def devices() -> list[Device]:
    """All devices of the build, the CPU among them, and those of the RPC workers that were added."""
    listed = []
    for i in range(ggml.ggml_backend_dev_count()):
        dev = ggml.ggml_backend_dev_get(i)
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        ggml.ggml_backend_dev_memory(dev, ctypes.byref(free), ctypes.byref(total))
        name = ggml.ggml_backend_dev_name(dev).decode()
        about = ggml.ggml_backend_dev_description(dev).decode()
        gpu = ggml.ggml_backend_dev_type(dev) in _GPU_TYPES
        remote = ggml.ggml_backend_reg_name(ggml.ggml_backend_dev_backend_reg(dev)) == b"RPC"
        listed.append(Device(name, about, gpu, remote, free.value, total.value, dev))
    return listed


def buffer_type(name: str) -> int:
    """The ggml_backend_buffer_type_t with this name. Raises UsageError listing the known names."""
    known = {}
    for device in devices():
        handle = ggml.ggml_backend_dev_buffer_type(device.handle)
        known[ggml.ggml_backend_buft_name(handle).decode()] = handle
    if name not in known:
        raise UsageError(
            f"no buffer type {name!r} for {option('override_tensor')}", f"there are: {', '.join(known)}"
        )
    return int(known[name])
