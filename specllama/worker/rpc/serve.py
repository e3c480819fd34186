"""The engine process as an RPC worker: runs ggml's server in the main thread and reports its clients.

ggml serves one client at a time and never returns. The front handles Ctrl-C: it closes the pipe, which ends
this process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from specllama.client import protocol
from specllama.client.model_info import DeviceInfo
from specllama.clock import running_time
from specllama.errors import ResourceError, UsageError, option
from specllama.llama.devices import Device, devices
from specllama.llama.library import KERNELS
from specllama.llama.log import show_log
from specllama.llama.rpc import bound_memory, require_rpc, serve_devices
from specllama.models.memory.available import available_memory, physical_cores
from specllama.rpc.probe import PROTOCOL
from specllama.worker.rpc import sockets
from specllama.worker.rpc.cache import TensorCache

Send = Callable[[protocol.Message], None]
_PROBE_SECONDS = 1.0  # a client that leaves sooner was only a probe
_POLL_SECONDS = 0.01


def serve(request: protocol.Serve, send: Send) -> NoReturn:
    """Serve until the process ends. `send` receives Serving, then a Notice for each client that stays.

    Raises UsageError for unknown devices, ResourceError if the address is taken meanwhile, EngineError if
    llama.cpp was built without RPC.
    """
    show_log(request.verbose)
    require_rpc()
    served = chosen(devices(), request.devices)
    for device in served:
        if request.memory or not device.gpu:
            bound_memory(device, request.memory, None if device.gpu else available_memory)
    served = [d for d in devices() if d.name in {s.name for s in served}]
    cache = _cache(request.cache)
    n_threads = request.n_threads or physical_cores()
    serving = protocol.Serving(
        request.address,
        ".".join(map(str, PROTOCOL)),
        n_threads,
        tuple(DeviceInfo(d.name, d.description, d.gpu, d.free, d.total) for d in served),
        str(cache.root) if cache else None,
    )
    port = int(request.address.rpartition(":")[2])
    threading.Thread(target=_announce, args=(port, serving, send), daemon=True).start()
    threading.Thread(target=_Clients(port, send, cache).watch, args=(_stdout(),), daemon=True).start()
    serve_devices(request.address, served, n_threads, str(cache.root) if cache else None)
    raise ResourceError(f"{request.address} cannot be used any more", f"choose another {option('port')}")


def chosen(present: Sequence[Device], names: Sequence[str]) -> list[Device]:
    """The devices with these names; without names all GPUs, or else the CPU. Raises UsageError."""
    known = {d.name: d for d in present}
    for name in names:
        if name not in known:
            raise UsageError(
                f"no device {name!r} in this build of llama.cpp", f"there are: {', '.join(known)}"
            )
    if names:
        return [known[name] for name in dict.fromkeys(names)]
    return [d for d in present if d.gpu] or [d for d in present if d.name == "CPU"]


def _cache(directory: str) -> TensorCache | None:
    try:
        return TensorCache(Path(directory)) if directory else None
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(f"the cache directory {directory} cannot be used: {reason}") from None


def _stdout() -> int:
    """Redirect stdout, to which ggml prints, into a pipe; the file descriptor to read from."""
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    return reading


def _announce(port: int, serving: protocol.Serving, send: Send) -> None:
    """Send Serving once the server listens."""
    while (listener := sockets.listener(port)) is None:
        time.sleep(_POLL_SECONDS)
    with listener:
        sockets.keep_alive(listener)
    send(serving)
    if KERNELS.reason:
        send(protocol.Notice(f"specllama's kernels are not used: {KERNELS.reason}"))


@dataclass(slots=True)
class _Clients:
    """Reports clients that connect and disconnect, from the lines that ggml prints."""

    port: int
    send: Send
    cache: TensorCache | None
    _name: str = ""
    _since: float = 0.0
    _notice_timer: threading.Timer | None = None

    def watch(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as pipe:
            for line in pipe:
                if line.startswith(b"Accepted"):
                    self._connected()
                elif line.startswith(b"Client connection closed"):
                    self._disconnected()

    def _connected(self) -> None:
        self._name = next(iter(sockets.clients(self.port)), "a client")
        self._since = running_time()
        notice = protocol.Notice(f"{self._name} connected")
        self._notice_timer = threading.Timer(_PROBE_SECONDS, self.send, [notice])
        self._notice_timer.daemon = True
        self._notice_timer.start()

    def _disconnected(self) -> None:
        if self.cache is not None:
            threading.Thread(target=self.cache.settle, daemon=True).start()
        if self._notice_timer is None:
            return
        self._notice_timer.cancel()
        seconds = running_time() - self._since
        if seconds >= _PROBE_SECONDS:
            self.send(protocol.Notice(f"{self._name} left after {seconds:.0f} s"))
