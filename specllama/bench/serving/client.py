"""A client of one OpenAI-compatible server: its address, what it is, and streamed requests with their times.

Redirects are not followed, so that a key goes nowhere else. Knows nothing of series and concurrency.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import httpx2

from specllama.bench.serving import http_errors
from specllama.bench.serving.answer import BrokenStreamError, ServedAnswer, StreamReader
from specllama.clock import running_time
from specllama.errors import AccessError, BusyError, NetworkError, NotFoundError, SpecllamaError, UsageError
from specllama.json_types import JsonObject

_HINT = "for example http://127.0.0.1:8080 or https://host/v1"
_ROUTES = ("/chat/completions", "/completions", "/models")
_MAX_URL = 2048  # characters


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The URLs of a server. bases: where its API may be, in the order to try."""

    bases: tuple[str, ...]
    loopback: bool


def parse_address(text: str, flag: str = "--server") -> ServerAddress:
    """Parses a URL, the value of a flag, with or without scheme, /v1 and route. Raises UsageError."""
    text = text.strip()
    if not text:
        raise UsageError(f"{flag} needs the URL of a server", _HINT)
    if len(text) > _MAX_URL or not text.isprintable() or any(c.isspace() for c in text):
        raise UsageError(f"{flag} is not a URL: it has blanks or control characters, or is too long", _HINT)
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{flag} is not a URL: {error}", _HINT) from None
    if "@" in parts.netloc:  # the message must not repeat the password
        raise UsageError(f"{flag} has a user or password in it", "a key goes into SPECLLAMA_API_KEY")
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"{flag} has to begin with http:// or https://, not {parts.scheme}://", _HINT)
    if not host or port == 0:
        raise UsageError(f"{flag} names no {'port' if host else 'host'}: {text}", _HINT)
    if parts.query or parts.fragment:
        raise UsageError(f"{flag} must not have a part after ? or #", _HINT)
    path = parts.path.rstrip("/")
    for route in _ROUTES:
        path = path.removesuffix(route)
    root = f"{parts.scheme}://{parts.netloc}"
    ends = ("",) if path.endswith("/v1") else ("/v1", "") if path else ("/v1",)
    return ServerAddress(tuple(f"{root}{path}{end}" for end in ends), _is_loopback(host))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_CONNECT_SECONDS, _INFO_SECONDS = 10.0, 30.0
_MAX_BYTES, _MAX_ERROR_BYTES = 4 << 20, 64 << 10
_TRIES = 5  # of a request that gets 429
_WITH_PROPS = ("specllama", "llamacpp")  # owners of models whose servers have /props


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server reports about itself; "" and None for what it leaves out.

    owner: `owned_by` of its models; n_slots: requests that it answers at once; speculation: the object of
    that name in /props of a specllama.
    """

    base: str
    model: str
    owner: str = ""
    build: str = ""
    n_slots: int | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)


class ServerClient:
    """A client of a server; an asynchronous context manager.

    key: "" for none; agent: the User-Agent; seconds: the timeout of an answer. Raises NetworkError for proxy
    and certificate settings that cannot be used.
    """

    def __init__(self, address: ServerAddress, key: str, agent: str, seconds: float) -> None:
        headers = [(b"User-Agent", agent.encode()), (b"Accept-Encoding", b"identity")]
        if key:
            headers.append((b"Authorization", f"Bearer {key}".encode()))
        self._address, self._seconds = address, seconds
        self._url = ""
        try:
            self._http = httpx2.AsyncClient(
                headers=headers,
                timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
                follow_redirects=False,
                verify=httpx2.create_ssl_context(),
                trust_env=not address.loopback,  # proxies are for other machines
            )
        except (ValueError, httpx2.InvalidURL, OSError, ImportError) as error:
            hint = "check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
            raise NetworkError(f"the proxy or certificate settings cannot be used: {error}", hint) from None

    async def __aenter__(self) -> ServerClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def info(self, model: str = "", raw: bool = False) -> ServerInfo:
        """Finds the API, to which all requests go from now on, and what serves it. model: the model to use,
        "" for the first that is listed; raw: requests are texts to continue, not chats.

        Raises NetworkError, AccessError, NotFoundError.
        """
        models, base = None, self._address.bases[0]
        for base in self._address.bases:
            try:
                models = _models(await self._get(f"{base}/models"), f"{base}/models")
                break
            except NotFoundError:
                if base == self._address.bases[-1] and not model:
                    raise
        if models is None:
            base = self._address.bases[0]
        elif not models and not model:
            raise NotFoundError(f"{base}/models lists no model", "load one there, or name one with --model")
        self._url = f"{base}/completions" if raw else f"{base}/chat/completions"
        entry = next((m for m in models or () if m["id"] == model), models[0] if models else {})
        info = ServerInfo(base, model or entry["id"], str(entry.get("owned_by", "")))
        return await self._with_props(info) if info.owner in _WITH_PROPS else info

    async def complete(self, number: int, request: Mapping[str, Any]) -> ServedAnswer:
        """Sends a request and returns its answer. Never raises: an error is the answer's `problem`."""
        answer, began = ServedAnswer(number), running_time()
        try:
            async with asyncio.timeout(self._seconds):
                await self._stream(json.dumps(request).encode(), answer, began)
        except TimeoutError:
            answer.problem, answer.fatal = http_errors.timed_out(self._url, self._seconds), True
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            answer.problem, answer.fatal = http_errors.unreachable(error, self._url), True
        except (httpx2.HTTPError, BrokenStreamError) as error:
            what = str(error) or "the connection broke"
            answer.problem = NetworkError(f"{self._url}: {what}", "see what the server's log says")
        except SpecllamaError as error:
            answer.problem = error
            answer.fatal = isinstance(error, (AccessError, NotFoundError))
        answer.seconds = running_time() - began
        return answer

    async def _stream(self, request: bytes, answer: ServedAnswer, began: float) -> None:
        """Raises SpecllamaError, httpx2.HTTPError, BrokenStreamError."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        while True:
            async with self._http.stream("POST", self._url, content=request, headers=headers) as response:
                if response.status_code == 200:
                    return await self._read(response, answer, began)
                body = await _first_bytes(response, _MAX_ERROR_BYTES)
                error = http_errors.status_error(response.status_code, response.headers, body, self._url)
                pause = http_errors.retry_seconds(response.headers)
            answer.refused += isinstance(error, BusyError)
            if not isinstance(error, BusyError) or answer.refused >= _TRIES:
                raise error
            await asyncio.sleep(pause)

    async def _read(self, response: httpx2.Response, answer: ServedAnswer, began: float) -> None:
        kind = response.headers.get("Content-Type", "no type").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            raise http_errors.not_an_api(self._url, f"{kind[:60]} instead of a stream of events")
        reader = StreamReader(answer)
        async for event in httpx2.EventSource(response):
            if event.data and reader.read(event.data, running_time() - began, event.event):
                break
        reader.end()

    async def _get(self, url: str) -> Any:
        """The parsed JSON of a GET. Raises SpecllamaError."""
        try:
            async with asyncio.timeout(min(_INFO_SECONDS, self._seconds)):
                async with self._http.stream("GET", url) as response:
                    body = await _first_bytes(response, _MAX_BYTES)
        except TimeoutError:
            raise http_errors.timed_out(url, min(_INFO_SECONDS, self._seconds)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise http_errors.unreachable(error, url) from None
        if response.status_code != 200:
            raise http_errors.status_error(response.status_code, response.headers, body, url)
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise http_errors.not_an_api(url, "no JSON") from None

    async def _with_props(self, info: ServerInfo) -> ServerInfo:
        """The same with the fields of /props, if the server lets us read them."""
        try:
            props = await self._get(f"{info.base.removesuffix('/v1')}/props")
        except SpecllamaError:
            return info
        props = props if isinstance(props, dict) else {}
        slots, speculation = props.get("total_slots"), props.get("speculation")
        return replace(
            info,
            build=str(props.get("build_info", ""))[:80],
            n_slots=slots if isinstance(slots, int) and slots > 0 else None,
            speculation=speculation if isinstance(speculation, dict) else {},
        )


def _models(body: Any, url: str) -> list[JsonObject]:
    """The models in the body of GET /v1/models. Raises NotFoundError."""
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list):
        raise http_errors.not_an_api(url, "no list of models")
    return [m for m in data if isinstance(m, dict) and isinstance(m.get("id"), str) and m["id"]]


async def _first_bytes(response: httpx2.Response, most: int) -> bytes:
    """At most the first `most` bytes of a body."""
    data = b""
    async for part in response.aiter_bytes():
        data += part
        if len(data) > most:
            break
    return data[:most]
