"""Connections whose clients take their time: requests that never end, more connections than can be held.

uvicorn alone waits for a request's head for ever. Knows the states of HTTP/1.1, no routes and no engine.
"""

from __future__ import annotations

import asyncio
import sys

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specllama.errors import ResourceError, SpecllamaError
from specllama.server.dialects import errors
from specllama.server.http.body import BodyTooSlowError

HEAD_SECONDS = 10.0  # that the head of a request may take at most
_SPARE = 512  # connections beside those whose requests run or wait
_REFUSABLE = 64  # more, which are told so
_SETTLED_SECONDS = 1.0  # after which who has asked for nothing makes room
_OTHER_FILES = 128  # that the process may have open


class Connection(H11Protocol):
    """uvicorn's, closed where a head takes longer than head_seconds, or a body that nobody waits for.

    Where more than n_most are open, the one that has been idle for longest makes room; where all are at work,
    the new one gets a 503. Slow readers and idle clients are left to `respond` and to uvicorn's keep-alive.
    """

    head_seconds = HEAD_SECONDS
    n_most = _SPARE
    _timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    @property
    def idle(self) -> bool:
        """Whether nobody works on a request of it."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
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
        if self.conn.their_state is h11.SEND_BODY:  # else it is idle, and uvicorn has an eye on that
            self._watch()

    def _watch(self) -> None:
        """Have a timer run while a head is awaited, or the rest of a body after its answer."""
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
            error = BodyTooSlowError(f"the head of the request did not arrive within {self.head_seconds:g} s")
            body = errors.error_bytes("", error, error.http_status)
            headers = _headers(error, error.http_status, body)
            for event in (
                h11.Response(status_code=error.http_status, headers=headers, reason=b"Request Timeout"),
                h11.Data(data=body),
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
            self.app = _full
        else:
            self.transport.abort()


async def _full(scope: Scope, _receive: Receive, send: Send) -> None:
    """The answer to who connects while as many as can be are being answered."""
    error = ResourceError("too many connections are open", "ask again later")
    body = errors.error_bytes(scope["path"], error, error.http_status)
    headers = _headers(error, error.http_status, body)
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _headers(error: SpecllamaError, status: int, body: bytes) -> list[tuple[bytes, bytes]]:
    found = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    return [(k.encode(), v.encode()) for k, v in (found | dict(errors.headers(error, status))).items()]


def limited(seconds: float, n_requests: int) -> type[Connection]:
    """Connections on which requests arrive within `seconds`, enough of them for so many requests; as many
    files as that needs are allowed to the process where the system lets it.
    """
    n_most = _allowed(n_requests + _SPARE)
    return type("Limited", (Connection,), {"head_seconds": min(HEAD_SECONDS, seconds), "n_most": n_most})


def _allowed(n: int) -> int:
    """So many connections, or what the system's limit on open files leaves."""
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
