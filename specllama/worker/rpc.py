"""RPC workers. The engine process as one runs ggml's server in the main thread and reports its clients; the
workers of a load are probed, added to llama.cpp's devices, and missed when they are lost.

ggml serves one client at a time and never returns. The front handles Ctrl-C: it closes the pipe, which
ends this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from specllama import errors, wire
from specllama.client import protocol
from specllama.client.model_info import DeviceInfo
from specllama.client.tune_messages import Serve, Serving
from specllama.clock import running_time, sleep
from specllama.config.load import LoadSettings
from specllama.config.store import write_whole
from specllama.errors import option
from specllama.llama.library import KERNELS, Device, devices, log
from specllama.llama.rpc import add_worker, bound_memory, on_abort, require_rpc, serve_devices
from specllama.models.memory.available import available_memory, physical_cores
from specllama.rpc import PROBE_SECONDS, PROTOCOL, Worker, find_workers

# The cache of tensors that clients have sent to an RPC worker, so that they need not be sent again.
#
# ggml writes and reads the files, named by a hash of their content, and never checks whether one is complete:
# a truncated file, left by a full disk or kill -9, would be loaded as wrong weights. So this cache removes
# all files that are not known to be complete. A directory serves one worker.


_LIST = "whole.json"
_MAX_LIST = 16 << 20  # bytes of it: some 400,000 tensors
SETTLED_SECONDS = 1.0  # without a write, after which a file is complete
_FULL = 64 << 20  # bytes: with less free disk space, a write may have failed


class TensorCache:
    """A directory of complete files. Raises OSError if it cannot be created or read."""

    def __init__(self, root: Path) -> None:
        self.root, self._lock = root, threading.Lock()
        root.mkdir(parents=True, exist_ok=True)
        complete = self._known()
        for path, size, _ in self._files():
            if complete.get(path.name) != size:
                path.unlink()

    def settle(self, pause: Callable[[float], object] = sleep) -> None:
        """Call after a client has left: record its files as complete, or remove them if the disk is full.

        Takes SETTLED_SECONDS, and leaves out files that change meanwhile: the next client may be sending
        already. pause: waits for some seconds.
        """
        with self._lock, contextlib.suppress(OSError):
            before = self._files()
            pause(SETTLED_SECONDS)
            unchanged, complete = set(before) & set(self._files()), self._known()
            full = shutil.disk_usage(self.root).free < _FULL
            for path, size, _ in unchanged:
                if complete.get(path.name) == size:
                    continue
                if full:
                    path.unlink()
                else:
                    complete[path.name] = size
            write_whole(self.root / _LIST, json.dumps(complete))

    def _files(self) -> list[tuple[Path, int, int]]:
        """Path, bytes, and time of the last change of each tensor."""
        with os.scandir(self.root) as entries:
            files = [e for e in entries if re.fullmatch("[0-9a-f]{16}", e.name) and e.is_file()]
            return [(Path(e.path), e.stat().st_size, e.stat().st_mtime_ns) for e in files]

    def _known(self) -> dict[str, int]:
        """Names and sizes of complete files; empty if the list cannot be read or is longer than _MAX_LIST."""
        try:
            return wire.from_file(dict[str, int], self.root / _LIST, _MAX_LIST)
        except (OSError, ValueError):
            return {}


# TCP connections that llama.cpp has opened in this process, found among the open files by their port.
#
# ggml's RPC sets no timeouts: if the other machine loses power, it waits forever. TCP keepalive, switched on
# here, makes the system detect that.


_IDLE_SECONDS, _EVERY_SECONDS, _TIMES = 15, 5, 3  # a dead machine is detected after half a minute
_Address = tuple[str, int]


def connections_to(addresses: set[str]) -> Iterator[socket.socket]:
    """Duplicates of the connections to any of these addresses (IPv4:port). The originals stay open."""
    for sock, _, peer in _all():
        if peer is not None and f"{peer[0]}:{peer[1]}" in addresses:
            yield sock


def open_listener(port: int) -> socket.socket | None:
    """The socket that listens on a port, as a duplicate; None if there is none."""
    return next((s.dup() for s, own, peer in _all() if peer is None and own[1] == port), None)


def clients(port: int) -> list[str]:
    return [peer[0] for _, own, peer in _all() if peer is not None and own[1] == port]


def lost(addresses: set[str]) -> set[str]:
    """The addresses to which there is no open connection any more."""
    alive = set()
    for sock in connections_to(addresses):
        try:
            ended = sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            ended = False
        except OSError:
            ended = True
        if not ended:
            alive.add(":".join(map(str, sock.getpeername())))
    return addresses - alive


def keep_alive(sock: socket.socket) -> None:
    """Let a connection, or those of a listener, fail half a minute after the other machine has died."""
    tcp = socket.IPPROTO_TCP
    options = (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPALIVE", _IDLE_SECONDS),  # its name on macOS
        ("TCP_KEEPINTVL", _EVERY_SECONDS),
        ("TCP_KEEPCNT", _TIMES),
        ("TCP_USER_TIMEOUT", 1000 * (_IDLE_SECONDS + _TIMES * _EVERY_SECONDS)),
    )
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options:
            if hasattr(socket, name):
                sock.setsockopt(tcp, getattr(socket, name), value)


def _all() -> Iterator[tuple[socket.socket, _Address, _Address | None]]:
    """(duplicate, own address, peer) of all IPv4 stream sockets here; a duplicate is closed afterwards."""
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        try:
            copy = os.dup(int(name))
        except OSError:
            continue  # closed by now
        try:
            sock = socket.socket(fileno=copy)
        except OSError:  # not a socket
            os.close(copy)
            continue
        with sock:
            if (sock.family, sock.type) != (socket.AF_INET, socket.SOCK_STREAM):
                continue
            peer: _Address | None = None
            with contextlib.suppress(OSError):
                peer = sock.getpeername()
            with contextlib.suppress(OSError):
                yield sock, sock.getsockname(), peer


_PROBE_SECONDS = 1.0  # a client that leaves sooner was only a probe
_POLL_SECONDS = 0.01


def serve(request: Serve, send: protocol.Send) -> NoReturn:
    """Serve until the process ends. `send` receives Serving, then a Notice for each client that stays.

    Raises UsageError for unknown devices, ResourceError if the address is taken meanwhile, EngineError if
    llama.cpp was built without RPC.
    """
    log.verbose = request.verbose
    require_rpc()
    served = chosen(devices(), request.devices)
    for device in served:
        if request.memory or not device.gpu:
            bound_memory(device, request.memory, None if device.gpu else available_memory)
    served = [d for d in devices() if d.name in {s.name for s in served}]
    cache = _cache(request.cache)
    n_threads = request.n_threads or physical_cores()
    serving = Serving(
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
    raise errors.ResourceError(
        f"{request.address} cannot be used any more", f"choose another {option('port')}"
    )


def chosen(present: Sequence[Device], names: Sequence[str]) -> list[Device]:
    """The devices with these names; without names all GPUs, or else the CPU. Raises UsageError."""
    known = {d.name: d for d in present}
    for name in names:
        if name not in known:
            raise errors.UsageError(
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
        raise errors.ResourceError(f"the cache directory {directory} cannot be used: {reason}") from None


def _stdout() -> int:
    """Redirect stdout, to which ggml prints, into a pipe; the file descriptor to read from."""
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(writing)
    return reading


def _announce(port: int, serving: Serving, send: protocol.Send) -> None:
    while (listener := open_listener(port)) is None:
        time.sleep(_POLL_SECONDS)
    with listener:
        keep_alive(listener)
    send(serving)
    if KERNELS.reason:
        send(protocol.Notice(f"specllama's kernels are not used: {KERNELS.reason}"))


@dataclass(slots=True)
class _Clients:
    """Reports clients that connect and disconnect, from the lines that ggml prints."""

    port: int
    send: protocol.Send
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
        self._name = next(iter(clients(self.port)), "a client")
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


def attach(settings: LoadSettings, send: protocol.Send) -> LoadSettings:
    """Add the workers of the settings to llama.cpp's devices. Returns the settings with the draft's devices.

    By default the target uses all workers and GPUs, and the draft the local GPUs, or else the CPU. If a
    worker is lost later, ggml aborts the process, after `send` has received the reason. Raises NetworkError,
    UsageError, EngineError if llama.cpp was built without RPC.
    """
    require_rpc()
    workers = find_workers(settings.rpc)
    on_abort(lambda message: send(protocol.Failed(_lost(workers, message).to_dict())))
    for worker in workers:
        _add(worker)
    for sock in connections_to({worker.address for worker in workers}):
        keep_alive(sock)
    local = tuple(d.name for d in devices() if d.gpu and not d.remote) or ("none",)
    draft = settings.draft
    if draft is not None and not draft.devices:
        draft = replace(draft, devices=local)
    settings = replace(settings, draft=draft)
    _check_use(settings)
    return settings


def placement_notes(settings: LoadSettings, n_gpu_layers: int, n_layer: int) -> list[errors.Note]:
    """A note about the devices that hold the target's layers."""
    target = settings.target
    if not n_gpu_layers or target.devices == ("none",):
        return []
    used = [d for d in devices() if d.gpu and (not target.devices or d.name in target.devices)]
    if target.split_mode == "none":
        used = used[target.main_gpu :][:1]
    names = [f"{d.name} ({d.description})" if d.remote else d.name for d in used]
    return [errors.Note(f"{n_gpu_layers} of {n_layer + 1} layers of the target are on {', '.join(names)}")]


def _add(worker: Worker) -> None:
    """Add a worker. In a thread: ggml waits forever if another client has connected since the probe."""
    problems: list[errors.SpecllamaError] = []

    def add() -> None:
        try:
            add_worker(worker.address)
        except errors.SpecllamaError as error:
            problems.append(error)

    thread = threading.Thread(target=add, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    if thread.is_alive():
        raise errors.NetworkError(
            f"the RPC worker {worker.endpoint} is busy: another client has connected to it",
            "try again later",
        )
    if problems:
        raise problems[0]


def _check_use(settings: LoadSettings) -> None:
    """Raise UsageError for settings that llama.cpp could not load, or that leave the workers unused."""
    present = devices()
    remote, target = {d.name for d in present if d.remote}, settings.target
    named = {*target.devices, *(settings.draft.devices if settings.draft else ())}
    if named - {d.name for d in present} - {"none"}:
        return  # an unknown device: the load reports it
    if target.devices and not named & remote:
        raise errors.UsageError(
            f"{option('rpc')} names workers and {option('devices')} leaves them out",
            f"omit {option('devices')}, or name them: {', '.join(sorted(remote))}",
        )
    if target.split_mode == "row" and (not target.devices or remote & set(target.devices)):
        raise errors.UsageError(
            f"{option('split_mode', 'row')} cannot be used with RPC workers",
            f"omit it, or use {option('split_mode', 'layer')}",
        )


def _lost(workers: Sequence[Worker], message: str) -> errors.EngineDiedError:
    """The error to report when ggml aborts with this message; names the lost worker if it is known."""
    if "rpc" not in message.lower():
        return errors.EngineDiedError(f"llama.cpp ended the engine process: {message.rpartition(': ')[2]}")
    gone = lost({worker.address for worker in workers})
    names = [w.endpoint for w in workers if w.address in gone] or [w.endpoint for w in workers]
    which = "the RPC worker" if len(names) == 1 else "the RPC workers" if gone else "one of the RPC workers"
    return errors.EngineDiedError(
        f"the connection to {which} {', '.join(names)} was lost: it ended, or the network failed",
        "check it, then run the command again",
    )
