"""Limits on connections: slow requests, and more connections than the server can hold.

uvicorn itself waits for a request's head without limit. Knows the states of HTTP/1.1, no routes and no
engine.
"""

from __future__ import annotations

import asyncio
import sys
from typing import ClassVar

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specllama.errors import ResourceError
from specllama.server.http.errors import ErrorResponder, HttpError

HEAD_SECONDS = 10.0  # for the head of a request, at most
_SPARE = 512  # connections in addition to those whose requests run or wait
_REFUSABLE = 64  # further connections, which are answered with a 503
_SETTLED_SECONDS = 1.0  # a connection idle for longer may be closed to make room
_READ_BYTES = 4096  # read at once: h11 works for 0.1 s on 16 KiB of chunks of one byte
_OTHER_FILES = 128  # open files of the process in addition to connections


class Connection(H11Protocol):
    """A uvicorn connection, closed if a head, or the rest of an unread body, takes longer than head_seconds.

    If more than n_most are open, the longest idle one is closed; if none is, the new one gets a 503.
    StreamingResponse limits slow readers, uvicorn's keep-alive limits idle clients. errors: writes refusals.
    """

    head_seconds = HEAD_SECONDS
    n_most = _SPARE
    errors: ClassVar[ErrorResponder]
    _timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if hasattr(transport, "max_size"):
            transport.max_size = _READ_BYTES
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        if len(self.connections) > self.n_most:
            self._make_room()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # else it is idle, and uvicorn's keep-alive limits it
            self._watch()

    def _watch(self) -> None:
        """Run the timer while the head of a request is pending, or the rest of a body after its answer."""
        theirs = self.conn.their_state
        if self.transport.is_closing() or not (theirs is h11.IDLE or (theirs is h11.SEND_BODY and self.idle)):
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._expire)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self.transport.is_closing():
            return
        begun = bool(self.conn.trailing_data[0])
        if begun and self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE:
            late = f"the head of the request did not arrive within {self.head_seconds:g} s"
            refusal = self.errors.response(HttpError(408, late))
            for event in (
                h11.Response(
                    status_code=refusal.status_code, headers=refusal.raw_headers, reason=b"Request Timeout"
                ),
                h11.Data(data=bytes(refusal.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _make_room(self) -> None:
        others = [
            c
            for c in self.connections
            if isinstance(c, Connection) and c is not self and not c.transport.is_closing()
        ]
        if len(others) < self.n_most:
            return
        settled = self.loop.time() - _SETTLED_SECONDS
        if idle := [c for c in others if c.idle and c._idle_since <= settled]:
            min(idle, key=lambda c: c._idle_since).transport.close()
        elif len(others) < self.n_most + _REFUSABLE:
            self.app = self._refuse
        else:
            self.transport.abort()

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application of a connection beyond the limit."""
        error = ResourceError("too many connections are open", "ask again later")
        await self.errors.response(error, scope["path"], close=True)(scope, receive, send)


def limited(seconds: float, n_requests: int, errors: ErrorResponder) -> type[Connection]:
    """A connection class: requests must arrive within `seconds`; up to n_requests may run. Raises the
    process's limit of open files as far as needed and allowed.
    """
    n_most = _allowed(n_requests + _SPARE)
    attributes = {"head_seconds": min(HEAD_SECONDS, seconds), "n_most": n_most, "errors": errors}
    return type("LimitedConnection", (Connection,), attributes)


def _allowed(n: int) -> int:
    """n connections, or as many as the limit of open files allows."""
    if sys.platform == "win32":
        return n
    import resource

    needed = n + _REFUSABLE + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = n if soft == resource.RLIM_INFINITY else soft - _REFUSABLE - _OTHER_FILES
    return max(1, min(n, room))
