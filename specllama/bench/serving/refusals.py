"""What it means when a server does not answer as it should: statuses and failures of the network as errors of
ours, each with what to do. Never quotes a key.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import time
from collections.abc import Mapping

import httpx2

from specllama.bench.serving.answers import said
from specllama.errors import (
    AccessError,
    BusyError,
    NetworkError,
    NotFoundError,
    SpecllamaError,
    UsageError,
)

LONGEST_WAIT = 10.0  # seconds that a Retry-After is obeyed
_REDIRECTS = frozenset((301, 302, 303, 307, 308))


def refusal(status: int, headers: Mapping[str, str], body: bytes, url: str) -> SpecllamaError:
    """A status that is no success."""
    why = f" ({status}): {text}" if (text := _said(body)) else f" ({status})"
    if status in (401, 403):
        return AccessError(
            f"{url} wants another key{why}", "give the server's key as SPECLLAMA_API_KEY or with --api-key"
        )
    if status in (404, 405):
        hint = "--model NAME names another model; is the address that of an OpenAI-compatible API?"
        return NotFoundError(f"{url} does not answer what is asked{why}", hint)
    if status in (400, 413, 415, 422):
        hint = "-n, --prompts and --temp change what is asked; --raw asks without a chat template"
        return UsageError(f"{url} refuses the request{why}", hint)
    if status == 429:
        return BusyError(f"{url} has no room{why}", "a lower --concurrency asks for less at once")
    if status in _REDIRECTS:
        where = "".join(c for c in headers.get("Location", "elsewhere")[:200] if c.isprintable())
        return NetworkError(f"{url} redirects to {where}", "give the address itself; keys are not sent on")
    if status >= 500:
        return NetworkError(f"{url} has a problem{why}", "see what the server's log says, then ask again")
    return NetworkError(f"{url} answers with status{why}", "is it the address of an OpenAI-compatible API?")


def unreachable(error: Exception, url: str) -> NetworkError:
    """Nobody answered, or not to the end."""
    name = type(error).__name__
    what = " ".join(str(error).split())[:200] or name
    if isinstance(error, httpx2.TimeoutException):
        what = "no connection in time"
    if isinstance(error, httpx2.ProxyError):
        return NetworkError(
            f"the proxy does not let us through to {url}: {what}", "check the proxy variables"
        )
    if "SSL" in what or "CERTIFICATE" in what.upper():
        hint = "is it http:// there? SSL_CERT_FILE names certificates that are to be trusted"
        return NetworkError(f"{url} cannot be trusted: {what}", hint)
    hint = "is the server running, and is that its port? `specllama serve` starts one"
    return NetworkError(f"{url} cannot be reached: {what}", hint)


def late(url: str, seconds: float) -> NetworkError:
    """An answer that has not ended in time."""
    return NetworkError(
        f"{url} has not answered within {seconds:g} s", "--timeout S waits longer, -n asks less"
    )


def foreign(url: str, why: str) -> NotFoundError:
    """An answer that is none of such an API."""
    hint = "give the address of an OpenAI-compatible API, for example http://127.0.0.1:8080/v1"
    return NotFoundError(f"{url} answers, but not as an OpenAI-compatible API does: {why}", hint)


def wait(headers: Mapping[str, str]) -> float:
    """Seconds to wait after a 429, by its Retry-After as far as that is reasonable."""
    text = headers.get("Retry-After", "").strip()
    seconds = 1.0
    if text.isdecimal():
        seconds = float(text[:9])
    elif text:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    return min(LONGEST_WAIT, max(0.1, seconds))


def _said(body: bytes) -> str:
    """What the body of an error says; nothing of a page."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace").strip()
        return "" if text.startswith("<") else said(text)
    return said(found) if found else ""
