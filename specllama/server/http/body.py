"""Reads the body of a request as a JSON object, within limits of size, time, depth and number of values."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from specllama.config.text_file import MAX_BYTES
from specllama.errors import BusyError, UsageError
from specllama.json_types import JsonObject, why_not_json, without_lone_surrogates
from specllama.server.http.errors import HttpError

try:
    _ZSTD: Any = importlib.import_module("compression.zstd")  # Python 3.14 has it
except ImportError:
    _ZSTD = None
_DECODING_ERRORS: tuple[type[Exception], ...] = (zlib.error, *([_ZSTD.ZstdError] if _ZSTD else []))
KNOWN = ("gzip", "deflate", *(("zstd",) if _ZSTD is not None else ()))


class Decoder:
    """Decodes one body. encoding: the value of Content-Encoding, "" for none. most: bytes of its text. Raises
    HttpError for encodings that are not known.
    """

    def __init__(self, encoding: str, most: int) -> None:
        self._name, self._most, self._size = encoding.strip().lower().removeprefix("x-"), most, 0
        self._plain = self._name in ("", "identity")
        if not self._plain and self._name not in KNOWN:
            known = ", ".join(KNOWN)
            message = f"Content-Encoding {encoding[:40]!r} cannot be decoded here; known are {known}"
            raise HttpError(415, message, {"accept-encoding": known})
        self._inner = None if self._plain else self._new()

    def push(self, data: bytes) -> bytes:
        """The next bytes, more than the limit in total if the body is too long. Raises UsageError."""
        if self._plain:
            return data
        decoded = bytearray()
        while data and self._size <= self._most:
            if self._inner is None or self._inner.eof:
                self._inner = self._new()
            try:
                part = self._inner.decompress(data, self._most + 1 - self._size)
            except _DECODING_ERRORS as error:
                raise UsageError(f"the body is not {self._name}: {error}") from None
            decoded += part
            self._size += len(part)
            data = self._inner.unused_data if self._inner.eof else b""
        return bytes(decoded)

    def finish(self) -> None:
        """Raises UsageError if the body ended early."""
        if self._inner is not None and self._size <= self._most and not self._inner.eof:
            raise UsageError(f"the body is not {self._name}: it ends too early")

    def _new(self) -> Any:
        if self._name == "zstd":
            return _ZSTD.ZstdDecompressor()
        return zlib.decompressobj(zlib.MAX_WBITS | 32)  # of gzip and of zlib


MAX_DEPTH = 64
MAX_VALUES, MAX_TEXTS, MAX_CONTAINERS = 2**18, 2**16, 2**14  # of a body; keys are texts
MAX_HELD = 16 * MAX_BYTES  # bytes of all large bodies that have arrived and are not checked yet
IMAGE_BYTES = 32 * 1000 * 1000  # of a body, where a model reads images
_LARGE = 64 * 1024  # bytes; larger bodies are parsed in a thread, so that other requests do not wait
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
Checked = TypeVar("Checked")


class BodyReader:
    """Reads all bodies; large ones are parsed one at a time in a thread, MAX_HELD bytes at most together."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore()
        self._held = 0  # bytes

    async def read(
        self,
        request: Request,
        check: Callable[[JsonObject], Checked],
        seconds: float,
        most: int = MAX_BYTES,
    ) -> Checked:
        """The result of `check` for the JSON object in a request's body, which must arrive within `seconds`;
        sets `request.state.body_bytes`. most: bytes of the body.

        Raises UsageError, HttpError, BusyError while too many large bodies are
        held, and errors of `check`.
        """
        data = bytearray()
        try:
            await self._receive(request, data, seconds, most)
            request.state.body_bytes = len(data)
            if len(data) <= _LARGE:
                return check(parse(data))
            async with self._turn:
                return await asyncio.to_thread(lambda: check(parse(data)))
        finally:
            self._held -= _counted(len(data))

    async def _receive(self, request: Request, data: bytearray, seconds: float, most: int) -> None:
        """Append a decoded body to `data`. Refuses one that is too large as soon as that is known."""
        given = request.headers.get("content-length", "0")
        if given.isascii() and given.isdigit() and int(given[:15]) > most:
            raise _too_large(most)
        decoder = Decoder(request.headers.get("content-encoding", ""), most)
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    before = _counted(len(data))
                    data += decoder.push(part)
                    self._held += _counted(len(data)) - before
                    if len(data) > most:
                        raise _too_large(most)
                    if self._held > MAX_HELD:
                        raise BusyError("too many large bodies arrive at once", "ask again later")
        except TimeoutError:
            raise HttpError(408, f"the body did not arrive within {seconds:g} s") from None
        except ClientDisconnect:
            raise UsageError("the client left before its request was complete") from None
        decoder.finish()


def _too_large(most: int) -> HttpError:
    problem = f"the body has more than {most} bytes"
    if most < IMAGE_BYTES:
        problem += f"; those with images may have {IMAGE_BYTES}, but no model here has a projector (--mmproj)"
    return HttpError(413, problem)


def _counted(size: int) -> int:
    """The bytes of a body that count towards MAX_HELD: 0 for small bodies."""
    return size if size > _LARGE else 0


def parse(body: bytes | bytearray, what: str = "the body") -> JsonObject:
    """Bytes as a JSON object; lone surrogates become U+FFFD. what: for messages. Raises UsageError."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{what} is not UTF-8") from None
    _check_counts(body, what)
    try:
        data = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep(what) from None
    except ValueError as error:
        raise UsageError(f"{what} is not JSON: {why_not_json(error)}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{what} must be a JSON object")
    check_depth(data, what)
    if _SURROGATE.search(body):  # in all texts, names included
        repaired: JsonObject = json.loads(without_lone_surrogates(json.dumps(data, ensure_ascii=False)))
        return repaired
    return data


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _check_counts(body: bytes | bytearray, what: str) -> None:
    """Refuse JSON that would take long to build, by counting bytes. Raises UsageError."""
    if len(body) <= _LARGE or not _exceeded(body, body):
        return
    plain = body.replace(rb"\\", b"//").replace(rb"\"", b"//")  # each quote begins or ends a text now
    if plain.count(b'"') <= 2 * MAX_TEXTS:
        outside = b"".join(plain.split(b'"')[::2])
        if not (most := _exceeded(plain, outside)):
            return
    else:
        most = f"{MAX_TEXTS} texts"
    raise UsageError(f"{what} has more than {most}")


def _exceeded(body: bytes | bytearray, outside: bytes | bytearray) -> str:
    """The exceeded limit, "" for none. outside: the body without its strings."""
    if outside.count(b",") >= MAX_VALUES:
        return f"{MAX_VALUES} values"
    if outside.count(b"[") + outside.count(b"{") > MAX_CONTAINERS:
        return f"{MAX_CONTAINERS} lists and objects"
    return f"{MAX_TEXTS} texts" if body.count(b'"') > 2 * MAX_TEXTS else ""


def check_depth(data: JsonObject, what: str) -> None:
    """Check the depth of parsed JSON. what: the subject of messages. Raises UsageError."""
    if any(level > MAX_DEPTH for _, level in containers(data)):
        raise _too_deep(what)


def containers(data: JsonObject) -> Iterator[tuple[Any, int]]:
    """All objects and lists in parsed JSON, with their levels from 1."""
    todo: list[tuple[Any, int]] = [(data, 1)]
    while todo:
        value, level = todo.pop()
        yield value, level
        inside = value.values() if isinstance(value, dict) else value
        todo += [(item, level + 1) for item in inside if isinstance(item, (dict, list))]


def _too_deep(what: str) -> UsageError:
    return UsageError(f"{what} is nested deeper than {MAX_DEPTH} levels")


class IdleTimer:
    """Calls `expired` in the event loop once per `begin`, if no `end` follows within `seconds`. Cheap enough
    for each token: the timer is rescheduled only when it fires.
    """

    def __init__(self, seconds: float, expired: Callable[[], object]) -> None:
        self._seconds, self._expired = seconds, expired
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._check)

    def end(self) -> None:
        self._since = None

    def close(self) -> None:
        self._since = None
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        if self._since is None:
            return
        left = self._since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check)
        else:
            self._since = None
            self._expired()
