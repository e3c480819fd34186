"""From the bytes of a request's body to a JSON object, within limits of size, time and depth.

Knows no fields: what the object must hold is for its caller to check.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from specllama.errors import UsageError
from specllama.server.http.errors import BodyTooLargeError, BodyTooSlowError

MAX_BYTES, MAX_DEPTH = 4 * 1024 * 1024, 64
_LARGE = 64 * 1024  # bytes; larger bodies are parsed in a thread, so that other requests do not wait
_DISCARDED = 8 * MAX_BYTES  # bytes read of a body that is too large, so that its sender reads the answer
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
Checked = TypeVar("Checked")


async def read(request: Request, check: Callable[[dict[str, Any]], Checked], seconds: float) -> Checked:
    """The result of `check` on the JSON object in a request's body, which must arrive within `seconds`.

    Raises UsageError, BodyTooLargeError, BodyTooSlowError, and what `check` raises.
    """
    body = await _received(request, seconds)

    def work() -> Checked:
        return check(parse(body))

    return await asyncio.to_thread(work) if len(body) > _LARGE else work()


async def _received(request: Request, seconds: float) -> bytes:
    given = request.headers.get("content-length", "0")
    too_large = given.isascii() and given.isdigit() and int(given[:15]) > MAX_BYTES
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                too_large = too_large or size > MAX_BYTES
                if too_large:
                    parts.clear()
                else:
                    parts.append(part)
                if size > _DISCARDED:
                    break
    except TimeoutError:
        raise BodyTooSlowError(f"the body did not arrive within {seconds:g} s") from None
    except ClientDisconnect:
        raise UsageError("the client left before its request was complete") from None
    if too_large:
        raise BodyTooLargeError(f"the body has more than {MAX_BYTES} bytes")
    return b"".join(parts)


def parse(body: bytes) -> dict[str, Any]:
    """Parse bytes as a JSON object. Raises UsageError."""
    try:
        data = json.loads(body, parse_constant=_refuse)
    except RecursionError:
        raise UsageError(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeDecodeError:
        raise UsageError("the body is not UTF-8") from None
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageError("the body must be a JSON object")
    _check_depth(data)
    if _SURROGATE.search(body):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UsageError("a text in the body has a lone surrogate, which is no character") from None
    return data


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _check_depth(data: dict[str, Any]) -> None:
    todo: list[tuple[Any, int]] = [(data, 1)]
    while todo:
        value, level = todo.pop()
        if level > MAX_DEPTH:
            raise UsageError(f"the body is nested deeper than {MAX_DEPTH} levels")
        inside = value.values() if isinstance(value, dict) else value
        todo += [(item, level + 1) for item in inside if isinstance(item, (dict, list))]
