"""The engine process as an RPC worker: ggml's server in the main thread, reported as messages.

ggml serves one client at a time and never returns. Ctrl-C is the front's: it closes the pipe, and the process
is gone.
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
from specllama.errors import ResourceError, UsageError, option
from specllama.llama.devices import Device, devices
from specllama.llama.log import show_log
from specllama.llama.rpc import bound_memory, serve_devices
from specllama.models.memory.available import available_memory, physical_cores
from specllama.rpc.probe import PROTOCOL
from specllama.worker.rpc import sockets
from specllama.worker.rpc.cache import TensorCache

Send = Callable[[protocol.Message], None]
_STAYS_SECONDS = 1.0  # a client for less was only a probe
_POLL_SECONDS = 0.01


def serve(request: protocol.Serve, send: Send) -> NoReturn:
    """Serve until the process ends; `send` gets Serving, then a Notice for each client that stays. Raises
    UsageError for unknown devices, ResourceError where it cannot listen any more, EngineError without RPC.
    """
    show_log(request.verbose)
    served = chosen(devices(), request.devices)
    for device in served:
        if request.memory or not device.gpu:
            bound_memory(device, request.memory, None if device.gpu else available_memory)
    served = [d for d in devices() if d.name in {s.name for s in served}]
    cache = _cache(request.cache)
    n_threads = request.n_threads or physical_cores()
    found = protocol.Serving(
        request.address,
        ".".join(map(str, PROTOCOL)),
        n_threads,
        tuple(protocol.DeviceInfo(d.name, d.description, d.gpu, d.free, d.total) for d in served),
        str(cache.root) if cache else None,
    )
    port = int(request.address.rpartition(":")[2])
    threading.Thread(target=_announce, args=(port, found, send), daemon=True).start()
    threading.Thread(target=_Clients(port, send, cache).watch, args=(_stdout(),), daemon=True).start()
    serve_devices(request.address, served, n_threads, str(cache.root) if cache else None)
    raise ResourceError(
        f"nothing can be served at {request.address} any more", f"choose another {option('port')}"
    )


def chosen(there: Sequence[Device], names: Sequence[str]) -> list[Device]:
    """The devices of these names; without names all GPUs, or else the CPU. Raises UsageError."""
    known = {d.name: d for d in there}
    for name in names:
        if name not in known:
            raise UsageError(
                f"no device {name!r} in this build of llama.cpp", f"there are: {', '.join(known)}"
            )
    if names:
        return [known[name] for name in dict.fromkeys(names)]
    return [d for d in there if d.gpu] or [d for d in there if d.name == "CPU"]


def _cache(directory: str) -> TensorCache | None:
    try:
        return TensorCache(Path(directory)) if directory else None
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(f"the cache directory {directory} cannot be used: {reason}") from None


def _stdout() -> int:
    """What ggml prints to stdout, as a pipe."""
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    return reading


def _announce(port: int, found: protocol.Serving, send: Send) -> None:
    """Say that it listens, once it does."""
    while (listener := sockets.listener(port)) is None:
        time.sleep(_POLL_SECONDS)
    with listener:
        sockets.keep_alive(listener)
    send(found)


@dataclass(slots=True)
class _Clients:
    """Who comes and goes, as ggml's lines tell it."""

    port: int
    send: Send
    cache: TensorCache | None
    _name: str = ""
    _since: float = 0.0
    _told: threading.Timer | None = None

    def watch(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as pipe:
            for line in pipe:
                if line.startswith(b"Accepted"):
                    self._comes()
                elif line.startswith(b"Client connection closed"):
                    self._leaves()

    def _comes(self) -> None:
        self._name = next(iter(sockets.clients(self.port)), "somebody")
        self._since = time.monotonic()
        self._told = threading.Timer(_STAYS_SECONDS, self.send, [protocol.Notice(f"{self._name} connected")])
        self._told.daemon = True
        self._told.start()

    def _leaves(self) -> None:
        if self.cache is not None:
            self.cache.settle()
        if self._told is None:
            return
        self._told.cancel()
        lasted = time.monotonic() - self._since
        if lasted >= _STAYS_SECONDS:
            self.send(protocol.Notice(f"{self._name} left after {lasted:.0f} s"))
