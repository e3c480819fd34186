"""Runs a server: socket, event loop, signals.

SIGTERM, SIGHUP or the first Ctrl-C lets running requests finish; a second Ctrl-C ends them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import IO, Any

import uvicorn

from specllama.client.client import run
from specllama.client.model_info import LoadInfo
from specllama.errors import EngineDiedError, ResourceError, SpecllamaError, UsageError, option
from specllama.models.resolve import Library
from specllama.server.app import ERRORS, build
from specllama.server.http.access import unexpected
from specllama.server.http.connection import limited
from specllama.server.models import ModelPool
from specllama.server.running import recorded
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Say, Supervisor

_MARGIN_SECONDS = 2.0  # for clients to receive their errors after a drain that took too long
_BACKLOG = 1024
_KEEP_ALIVE_SECONDS = 75  # longer than clients keep idle connections: httpx 5 s, others a minute
_SWITCH_SECONDS = 0.001  # longest wait of the event loop for another thread; the default is 0.005


def serve(
    settings: ServerSettings,
    say: Say,
    ready: Callable[[LoadInfo, str], None],
    log: IO[str] | None = None,
    progress: Callable[[str, float], None] | None = None,
    library: Library | None = None,
    loaded: Callable[[str, LoadInfo], None] = lambda _name, _info: None,
) -> int:
    """Serve until a signal arrives; returns its number.

    say: gets lines for the operator. ready: called once, with the description of the loaded models and the
    URL. log: gets llama.cpp's log. progress: gets "target" or "draft" and the share loaded. library: finds
    other models, if the settings allow them. loaded: called with the name and description of each model that
    is loaded later. Raises UsageError and ResourceError for the address, and errors of the load.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)  # `say` gets what matters
    listener = listen(settings.host, settings.port, settings.client_seconds)
    with listener:
        make = partial(Supervisor, settings.load, say, log, progress)
        models = ModelPool(settings, say, make, library, loaded)
        return run(_serve(models, listener, say, ready))


def listen(host: str, port: int, seconds: float) -> socket.socket:
    """Open a listening socket. The system closes connections on which sent bytes stay unread for `seconds`.

    Raises UsageError for an address that this machine does not have, ResourceError for one in use.
    """
    try:
        infos = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise _no_address(host) from None
    family, kind, protocol, _, address = infos[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds) + 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _no_socket(error, host, port) from None
    listener.setblocking(False)
    return listener


def _no_address(host: str) -> UsageError:
    return UsageError(
        f"{host} is no address of this machine", "such as 127.0.0.1, ::1 or 0.0.0.0", option="host"
    )


def _no_socket(error: OSError, host: str, port: int) -> SpecllamaError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return ResourceError(f"{where} is in use", f"choose another {option('port')}, or 0 for any")
    if error.errno == errno.EACCES:
        return ResourceError(f"{where} is not for this user", f"choose {option('port')} from 1024 on")
    if error.errno == errno.EADDRNOTAVAIL:
        return _no_address(host)
    return ResourceError(f"{where} cannot be served: {error.strerror or error}")


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: _Stop handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Stop:
    """Stops the server on signals. number: of the first signal, None before it."""

    def __init__(self, server: uvicorn.Server, models: ModelPool, say: Say) -> None:
        self._server, self._models, self._say = server, models, say
        self._drain: asyncio.TimerHandle | None = None
        self.number: int | None = None

    def __call__(self, number: int) -> None:
        """Handle a signal, in the event loop."""
        if self.number is None:
            self.number = number
            self._begin()
        elif number == signal.SIGINT:
            self._server.force_exit = True
            self._end()

    def _begin(self) -> None:
        self._server.should_exit = self._models.admission.draining = True
        seconds = self._models.settings.drain_seconds
        if n := len(self._models.admission.requests):
            have, them = ("has", "it") if n == 1 else ("have", "them")
            again = "Ctrl-C again ends" if self.number == signal.SIGINT else "SIGINT ends"
            self._say(f"no new requests; {n} {have} {seconds:g} s to end, {again} {them} at once")
        self._drain = asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        self._models.end_all(EngineDiedError("the server is shutting down"))

    def close(self) -> None:
        """Cancel the time limit: all requests have ended."""
        if self._drain is not None:
            self._drain.cancel()


async def _serve(
    models: ModelPool,
    listener: socket.socket,
    say: Say,
    ready: Callable[[LoadInfo, str], None],
) -> int:
    settings = models.settings
    server = _Server(_config(models, say))
    stop = _Stop(server, models, say)
    host = f"[{settings.host.strip('[]')}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: say(_complaint(context)))
    with _signals(loop, stop), recorded(models, url):
        running = asyncio.create_task(models.run())
        running.add_done_callback(lambda _: setattr(server, "should_exit", True))
        announcing = asyncio.create_task(_say_ready(models, ready, url))
        try:
            await server.serve([listener])
        finally:
            announcing.cancel()
            running.cancel()
            stop.close()
            await asyncio.wait((announcing, running))
    if not running.cancelled() and (problem := running.exception()) is not None:
        raise problem
    return stop.number or signal.SIGTERM


def _complaint(context: Mapping[str, Any]) -> str:
    """A line about an error in the event loop, without a traceback."""
    error = context.get("exception")
    return unexpected(error) if error is not None else f"unexpected: {context['message']}"


def _config(models: ModelPool, say: Say) -> uvicorn.Config:
    settings = models.settings
    return uvicorn.Config(
        build(models, say),
        http=limited(settings.client_seconds, settings.load.n_slots + settings.queue, ERRORS),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(settings.drain_seconds + _MARGIN_SECONDS) + 1,
    )


async def _say_ready(models: ModelPool, ready: Callable[[LoadInfo, str], None], url: str) -> None:
    await models.started()
    gc.collect()
    gc.freeze()  # objects made at start stay: later collections can skip them
    ready(models.default.supervisor.info, url)


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` in the event loop on SIGTERM, SIGINT and SIGHUP, unless that is ignored, as under nohup."""

    def handle(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop, number)

    numbers = [signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM)]
    ours = (n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN or n is signal.SIGTERM)
    before = {number: signal.signal(number, handle) for number in dict.fromkeys(ours)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
