"""ggml's RPC backend: adds workers as devices of this process, and serves devices of this machine.

Probe an address before adding it: ggml aborts the process if anything but a worker listens there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from specllama.errors import EngineError, NetworkError
from specllama.llama.library import ADD_RPC, Device, ggml

_ABORT = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_MEMORY = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_GET_MEMORY = 2  # index of get_memory in ggml_backend_device_i
_kept: list[object] = []  # objects that ggml keeps pointers to

for _name, _result, _args in (
    ("ggml_backend_reg_by_name", ctypes.c_void_p, [ctypes.c_char_p]),
    ("ggml_backend_reg_get_proc_address", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
    ("ggml_backend_reg_dev_get", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]),
    ("ggml_backend_register", None, [ctypes.c_void_p]),
    ("ggml_backend_dev_init", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
    ("ggml_set_abort_callback", ctypes.c_void_p, [_ABORT]),
):
    _function = getattr(ggml, _name)
    _function.restype, _function.argtypes = _result, _args


def _procedure(name: str, result: type[Any] | None, *args: type[Any]) -> Callable[..., Any]:
    """A function of ggml's RPC backend. Raises EngineError if the build has none."""
    reg = ggml.ggml_backend_reg_by_name(b"RPC")
    address = ggml.ggml_backend_reg_get_proc_address(reg, name.encode()) if reg else None
    if not address:
        raise EngineError(
            "this build of llama.cpp has no RPC backend", f"compile it again with RPC: {ADD_RPC}"
        )
    return ctypes.CFUNCTYPE(result, *args)(address)


def require_rpc() -> None:
    """Raise EngineError, with the command that adds it, if this build has no RPC backend."""
    _procedure("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)


def add_worker(address: str) -> None:
    """Add the devices of a worker (IPv4:port) to this process and hold a connection to it, so that it serves
    nobody else. Raises NetworkError for a worker without devices, EngineError for a build without RPC.
    """
    add = _procedure("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    reg = add(address.encode())
    if not reg:
        raise NetworkError(f"the RPC worker {address} has no devices")
    ggml.ggml_backend_dev_init(ggml.ggml_backend_reg_dev_get(reg, 0), None)  # this holds the connection
    ggml.ggml_backend_register(reg)


def on_abort(report: Callable[[str], None]) -> None:
    """Call `report` with ggml's message before it aborts the process; the message also goes to stderr.

    It runs in the thread that ggml aborts in, while other threads continue.
    """

    def aborting(text: bytes) -> None:
        message = text.decode("utf-8", "replace")
        sys.stderr.write(message + "\n")
        sys.stderr.flush()
        report(message)

    callback = _ABORT(aborting)
    _kept.append(callback)
    ggml.ggml_set_abort_callback(callback)


def bound_memory(device: Device, limit: int, available: Callable[[], int] | None) -> None:
    """Limit the free memory that a device reports to `available()` and to `limit` bytes (0: no limit).

    ggml reports all of the machine's memory as free for the CPU and has no setting for a limit. Clients plan
    with the reported number; ggml does not enforce it when they allocate.
    """
    functions = ctypes.cast(device.handle, ctypes.POINTER(ctypes.c_void_p))
    original = _MEMORY(functions[_GET_MEMORY] or 0)

    def bounded(_device: int, free: Any, total: Any) -> None:
        original(device.handle, free, total)
        limits = [limit] if limit else []
        total[0] = min([total[0], *limits])
        free[0] = min([free[0], *limits, *([available()] if available else [])])

    callback = _MEMORY(bounded)
    _kept.append(callback)
    functions[_GET_MEMORY] = ctypes.cast(callback, ctypes.c_void_p).value


def serve_devices(address: str, served: Sequence[Device], n_threads: int, cache: str | None) -> None:
    """Serve devices at IPv4:port forever, one client at a time. cache: a directory for tensors that clients
    send. Returns only if it cannot listen or accept. Raises EngineError for a build without RPC.
    """
    start = _procedure(
        "ggml_backend_rpc_start_server",
        None,
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p),
    )
    handles = (ctypes.c_void_p * len(served))(*[device.handle for device in served])
    directory = os.fsencode(cache) if cache else None
    start(address.encode(), directory, n_threads, len(served), ctypes.addressof(handles))
