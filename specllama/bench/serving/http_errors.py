"""HTTP statuses and network failures as specllama's errors, with hints. Never quotes a key."""

from __future__ import annotations

import json
from collections.abc import Mapping

import httpx2

from specllama.bench.serving.answer import error_text
from specllama.errors import (
    AccessError,
    BusyError,
    NetworkError,
    NotFoundError,
    SpecllamaError,
    UsageError,
)
from specllama.models.hub.retry_after import retry_after

MAX_WAIT = 10.0  # seconds, whatever Retry-After says
_REDIRECTS = frozenset((301, 302, 303, 307, 308))


def status_error(status: int, headers: Mapping[str, str], body: bytes, url: str) -> SpecllamaError:
    """The error for a status other than 200."""
    why = f" ({status}): {text}" if (text := _body_text(body)) else f" ({status})"
    if status in (401, 403):
        return AccessError(
            f"{url} rejects the key{why}", "give the server's key as SPECLLAMA_API_KEY or with --api-key"
        )
    if status in (404, 405):
        hint = "--model NAME names another model; is the address that of an OpenAI-compatible API?"
        return NotFoundError(f"{url} does not serve this request{why}", hint)
    if status in (400, 413, 415, 422):
        hint = "-n, --prompts and --temp change the request; --raw sends it without a chat template"
        return UsageError(f"{url} refuses the request{why}", hint)
    if status == 429:
        return BusyError(f"{url} is busy{why}", "use a lower --concurrency")
    if status in _REDIRECTS:
        where = "".join(c for c in headers.get("Location", "elsewhere")[:200] if c.isprintable())
        return NetworkError(f"{url} redirects to {where}", "give the address itself; keys are not sent on")
    if status >= 500:
        return NetworkError(f"{url} failed{why}", "see what the server's log says, then try again")
    return NetworkError(f"{url} answers with status{why}", "is it the address of an OpenAI-compatible API?")


def unreachable(error: Exception, url: str) -> NetworkError:
    """The error for a connection that failed or broke off."""
    name = type(error).__name__
    what = " ".join(str(error).split())[:200] or name
    if isinstance(error, httpx2.TimeoutException):
        what = "no connection in time"
    if isinstance(error, httpx2.ProxyError):
        return NetworkError(f"the proxy does not connect to {url}: {what}", "check the proxy variables")
    if "SSL" in what or "CERTIFICATE" in what.upper():
        hint = "does it need http://? SSL_CERT_FILE names certificates to trust"
        return NetworkError(f"{url} cannot be trusted: {what}", hint)
    hint = "is the server running, and is that its port? `specllama serve` starts one"
    return NetworkError(f"{url} cannot be reached: {what}", hint)


def timed_out(url: str, seconds: float) -> NetworkError:
    """The error for an answer that does not end in time."""
    return NetworkError(
        f"{url} has not answered within {seconds:g} s", "--timeout S waits longer, -n makes answers shorter"
    )


def not_an_api(url: str, why: str) -> NotFoundError:
    """The error for an answer that does not come from an OpenAI-compatible API."""
    hint = "give the address of an OpenAI-compatible API, for example http://127.0.0.1:8080/v1"
    return NotFoundError(f"{url} answers, but not as an OpenAI-compatible API does: {why}", hint)


def retry_seconds(headers: Mapping[str, str]) -> float:
    """Seconds to wait after a 429: its Retry-After, between 0.1 and MAX_WAIT."""
    seconds = retry_after(headers)
    return min(MAX_WAIT, max(0.1, 1.0 if seconds is None else seconds))


def _body_text(body: bytes) -> str:
    """The message in the body of an error; "" for an HTML page."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace").strip()
        return "" if text.startswith("<") else error_text(text)
    return error_text(parsed) if parsed else ""
