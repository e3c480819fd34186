"""Runs a server: socket, event loop, signals.

SIGTERM, SIGHUP, the first Ctrl-C or POST /drain lets running requests finish while new ones are refused; a
second signal ends them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
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

from specllama.client.model_info import LoadInfo
from specllama.clock import run
from specllama.errors import EngineDiedError, SpecllamaError
from specllama.models.resolve import Library
from specllama.server.app import ERRORS, build
from specllama.server.http.access import unexpected
from specllama.server.http.connection import limited
from specllama.server.listening import listening, notify
from specllama.server.models import ModelPool
from specllama.server.running import recorded
from specllama.server.service import MAX_VECTORS, SHUTTING_DOWN
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Say, Supervisor

_MARGIN_SECONDS = 2.0  # for clients to receive their errors after a drain that took too long
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
    inherited: socket.socket | None = None,
) -> int:
    """Serve until a signal arrives; returns its number, 0 after POST /drain.

    say: gets lines for the operator. ready: called once, with the description of the loaded models and the
    URL. log: gets llama.cpp's log. progress: gets "target" or "draft" and the share loaded. library: finds
    other models, if the settings allow them. loaded: called with the name and description of each model that
    is loaded later. inherited: a listening socket, used instead of the address. Raises errors of `listening`
    and of the load.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)  # `say` gets what matters
    keyed, seconds = bool(settings.keys), settings.client_seconds
    with listening(settings.host, settings.port, seconds, keyed, inherited) as (listener, url):
        make = partial(Supervisor, settings.load, say, log, progress)
        models = ModelPool(settings, say, make, library, loaded)
        return run(_serve(models, listener, url, say, ready))


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: _Stop handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Stop:
    """Ends a draining server without requests, or after its time. number: of the first signal, or None."""

    def __init__(self, server: uvicorn.Server, models: ModelPool, say: Say) -> None:
        self._server, self._models, self._say = server, models, say
        self._timers: list[asyncio.TimerHandle] = []
        self._n_signals = 0
        self.number: int | None = None
        models.admission.on_drain = self._drain

    def __call__(self, number: int) -> None:
        self.number = self.number or number
        self._n_signals += number != getattr(signal, "SIGHUP", None)  # which may come with SIGTERM
        self._models.admission.drain()
        if self._n_signals > 1:
            self._end()
            self._server.force_exit = True

    def _drain(self) -> None:
        """Called at the beginning, and when a request has ended."""
        n = len(self._models.admission.requests) + len(self._models.admission.vectors)
        if not self._timers:
            notify("STOPPING=1")
            seconds = self._models.settings.drain_seconds
            if n:
                have, them = ("has", "it") if n == 1 else ("have", "them")
                again = "Ctrl-C again ends" if self.number == signal.SIGINT else "a second signal ends"
                self._say(f"no new requests; {n} {have} {seconds:g} s to end, {again} {them} at once")
            self._after(seconds, self._end)
        if not n:
            self._server.should_exit = True

    def _end(self) -> None:
        self._models.end_all(EngineDiedError(SHUTTING_DOWN))
        self._server.should_exit = True
        self._after(_MARGIN_SECONDS, partial(setattr, self._server, "force_exit", True))

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call))

    def close(self) -> None:
        """Cancel the time limits: all requests have ended."""
        for timer in self._timers:
            timer.cancel()


async def _serve(
    models: ModelPool,
    listener: socket.socket,
    url: str,
    say: Say,
    ready: Callable[[LoadInfo, str], None],
) -> int:
    server = _Server(_config(models, say))
    stop = _Stop(server, models, say)
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
    return stop.number or 0


def _complaint(context: Mapping[str, Any]) -> str:
    error = context.get("exception")
    return unexpected(error) if error is not None else f"unexpected: {context['message']}"


def _config(models: ModelPool, say: Say) -> uvicorn.Config:
    settings = models.settings
    n_more = MAX_VECTORS if models.embedder is not None else 0
    return uvicorn.Config(
        build(models, say),
        http=limited(settings.client_seconds, settings.load.n_slots + settings.queue + n_more, ERRORS),
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
    notify(f"READY=1\nSTATUS=serving {models.default.name}")
    with contextlib.suppress(SpecllamaError):  # a request for the list gets it, too
        await models.listed()  # which reports damaged files


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
