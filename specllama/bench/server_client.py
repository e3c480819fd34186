"""A client of one OpenAI-compatible server: its address, what it is, and streamed requests with their
times.

Redirects are not followed, so that a key goes nowhere else.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import httpx2

from specllama.clock import running_time
from specllama.config.defaults import is_loopback
from specllama.errors import AccessError, BusyError, NetworkError, NotFoundError, SpecllamaError, UsageError
from specllama.json_types import JsonObject
from specllama.models.progress import retry_after

_MESSAGES = ("message", "detail", "type")  # where the object of an error has it
ONE_PIECE = 0.001  # seconds within which chunks count as one piece


class BrokenStreamError(Exception):
    """The stream is malformed, reports an error or ends too early; the message says which."""


@dataclass(slots=True)
class ServedPiece:
    """Text that arrived at once. at: seconds since the request; n: its chunks of the stream."""

    at: float
    n: int = 1


@dataclass(slots=True)
class ServedAnswer:
    """The outcome of a request.

    number: of the request in its cell. seconds: to its end, waits after a 429 included. refused: number of
    429s. n_predict, n_prompt, n_cached, n_drafted, n_accept: tokens by the server's count; None if it does
    not report them. digest: of the text, hex. problem: why it is incomplete; fatal: further ones would fail.
    """

    number: int
    pieces: list[ServedPiece] = field(default_factory=list)
    seconds: float = 0.0
    refused: int = 0
    n_predict: int | None = None
    n_prompt: int | None = None
    n_cached: int | None = None
    n_drafted: int | None = None
    n_accept: int | None = None
    digest: str = ""
    problem: SpecllamaError | None = None
    fatal: bool = False

    @property
    def n_chunks(self) -> int:
        return sum(piece.n for piece in self.pieces)

    @property
    def n_tokens(self) -> int:
        """The server's count, else the number of chunks."""
        return self.n_chunks if self.n_predict is None else self.n_predict

    def gaps(self) -> list[tuple[float, float]]:
        """(seconds per token, tokens) for each piece but the first.

        A piece's tokens share the time since the one before; they are assumed to be spread over the chunks.
        """
        each = self.n_tokens / self.n_chunks if self.n_chunks and self.n_tokens else 1.0
        pairs = zip(self.pieces, self.pieces[1:], strict=False)
        return [((b.at - a.at) / (b.n * each), b.n * each) for a, b in pairs]


class StreamReader:
    """Fills a ServedAnswer from the events of a stream in the formats of OpenAI, llama-server and vLLM."""

    def __init__(self, answer: ServedAnswer) -> None:
        self._answer, self._text, self._ended = answer, hashlib.sha256(), False

    def read(self, data: str, at: float, event: str = "message") -> bool:
        """Reads an event that arrived `at` seconds after the request; returns whether it was the last.

        Raises BrokenStreamError.
        """
        if data.strip() == "[DONE]":
            return True
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, dict):
            raise BrokenStreamError("an event of the stream is not a JSON object")
        if event == "error" or chunk.get("error"):
            raise BrokenStreamError(f"the stream ends in an error: {error_text(chunk)}")
        self._counters(chunk)
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(choice, dict):
            self._ended |= choice.get("finish_reason") is not None
            if text := _text(choice):
                self._text.update(text.encode("utf-8", "surrogatepass"))
                pieces = self._answer.pieces
                if pieces and at - pieces[-1].at < ONE_PIECE:
                    pieces[-1].n += 1
                else:
                    pieces.append(ServedPiece(at))
        return False

    def end(self) -> None:
        """Ends the answer. Raises BrokenStreamError if its last event is missing."""
        if not self._ended:
            raise BrokenStreamError("the stream ends in the middle of the answer")
        self._answer.digest = self._text.hexdigest()

    def _counters(self, chunk: JsonObject) -> None:
        """The same counters in three dialects; what a server leaves out stays None."""
        answer, usage, timings = self._answer, _part(chunk, "usage"), _part(chunk, "timings")
        speculative = _part(_part(chunk, "metrics"), "speculative_decoding")
        details = _part(usage, "completion_tokens_details")
        right, wrong = (_count(details, f"{name}_prediction_tokens") for name in ("accepted", "rejected"))
        for name, part, key in (
            ("n_predict", usage, "completion_tokens"),
            ("n_prompt", usage, "prompt_tokens"),
            ("n_cached", _part(usage, "prompt_tokens_details"), "cached_tokens"),
        ):
            if (n := _count(part, key)) is not None:
                setattr(answer, name, n)
        for drafted, accept in (
            (_count(timings, "draft_n"), _count(timings, "draft_n_accepted")),
            (_count(speculative, "num_draft_tokens"), _count(speculative, "num_accepted_draft_tokens")),
            (None if right is None or wrong is None else right + wrong or None, right),
        ):
            if drafted is not None and accept is not None and accept <= drafted:
                answer.n_drafted, answer.n_accept = drafted, accept
                return


def error_text(body: Any) -> str:
    """The message of a server's error, in one line of printable characters."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        error = next((text for name in _MESSAGES if (text := error.get(name))), error)
    text = " ".join(str(error).split())[:300]
    return "".join(c if c.isprintable() else "?" for c in text)


def _text(choice: JsonObject) -> str:
    """The text of a chunk. Reasoning and tool calls count too: the model writes them as well."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return text if isinstance(text, str) else ""
    parts = [delta.get(name) for name in ("reasoning_content", "reasoning", "content")]
    parts += [json.dumps(delta["tool_calls"])] if delta.get("tool_calls") else []
    return "".join(part for part in parts if isinstance(part, str))


def _part(body: JsonObject, name: str) -> JsonObject:
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def _count(body: JsonObject, name: str) -> int | None:
    value = body.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# HTTP statuses and network failures as specllama's errors, with hints. Never quotes a key.


MAX_WAIT = 10.0  # seconds, whatever Retry-After says
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
# fmt: off
_REFUSALS = (  # statuses, the error, what the server does, hint
    ((401, 403), AccessError, "rejects the key",
     "give the server's key as SPECLLAMA_API_KEY or with --api-key"),
    ((404, 405), NotFoundError, "does not serve this request",
     "--model NAME names another model; is the address that of an OpenAI-compatible API?"),
    ((400, 413, 415, 422), UsageError, "refuses the request",
     "-n, --prompts and --temp change the request; --raw sends it without a chat template"),
    ((429,), BusyError, "is busy", "use a lower --concurrency"),
    (range(500, 1000), NetworkError, "failed", "see what the server's log says, then try again"),
)
# fmt: on


def status_error(status: int, headers: Mapping[str, str], body: bytes, url: str) -> SpecllamaError:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace").strip()
        parsed = "" if text.startswith("<") else text  # an HTML page
    text = error_text(parsed) if parsed else ""
    why = f" ({status}): {text}" if text else f" ({status})"
    for statuses, kind, what, hint in _REFUSALS:
        if status in statuses:
            return kind(f"{url} {what}{why}", hint)
    if status in _REDIRECTS:
        where = "".join(c for c in headers.get("Location", "elsewhere")[:200] if c.isprintable())
        return NetworkError(f"{url} redirects to {where}", "give the address itself; keys are not sent on")
    return NetworkError(f"{url} answers with status{why}", "is it the address of an OpenAI-compatible API?")


def unreachable(error: Exception, url: str) -> NetworkError:
    what = " ".join(str(error).split())[:200] or type(error).__name__
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
    message = f"{url} has not answered within {seconds:g} s"
    return NetworkError(message, "--timeout S waits longer, -n makes answers shorter")


def not_an_api(url: str, why: str) -> NotFoundError:
    hint = "give the address of an OpenAI-compatible API, for example http://127.0.0.1:8080/v1"
    return NotFoundError(f"{url} answers, but not as an OpenAI-compatible API does: {why}", hint)


def retry_seconds(headers: Mapping[str, str]) -> float:
    """Seconds to wait after a 429: its Retry-After, between 0.1 and MAX_WAIT."""
    seconds = retry_after(headers)
    return min(MAX_WAIT, max(0.1, 1.0 if seconds is None else seconds))


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
    return ServerAddress(tuple(f"{root}{path}{end}" for end in ends), is_loopback(host))


_CONNECT_SECONDS, _INFO_SECONDS = 10.0, 30.0
_MAX_BYTES, _MAX_ERROR_BYTES = 4 << 20, 64 << 10
_TRIES = 5  # of a request that gets 429
_WITH_PROPS = ("specllama", "llamacpp")  # owners of models whose servers have /props


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's report about itself; "" and None for what it leaves out.

    owner: `owned_by` of its models; n_slots: requests that it answers at once; speculation: the object of
    that name in /props of a specllama.
    """

    url: str
    model: str
    owner: str = ""
    build: str = ""
    n_slots: int | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)


class ServerClient(AbstractAsyncContextManager["ServerClient"]):
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

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def info(self, model: str = "", raw: bool = False) -> ServerInfo:
        """Finds the API, to which all requests go from now on, and what serves it. model: the model to use,
        "" for the first that is listed; raw: requests are texts to continue, not chats.

        Raises NetworkError, AccessError, NotFoundError; UsageError for an embedding model.
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
        if isinstance(meta := entry.get("meta"), dict) and meta.get("embeds"):
            makes = f"{entry['id']} makes vectors, and bench measures models that write texts"
            raise UsageError(makes, "name one with --model, or start a server that has one")
        info = ServerInfo(base, model or entry["id"], str(entry.get("owned_by", "")))
        return await self._with_props(info) if info.owner in _WITH_PROPS else info

    async def complete(self, number: int, request: Mapping[str, Any]) -> ServedAnswer:
        """Sends a request and returns its answer. Never raises: an error is the answer's `problem`."""
        answer, began = ServedAnswer(number), running_time()
        try:
            async with asyncio.timeout(self._seconds):
                await self._stream(json.dumps(request).encode(), answer, began)
        except TimeoutError:
            answer.problem, answer.fatal = timed_out(self._url, self._seconds), True
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            answer.problem, answer.fatal = unreachable(error, self._url), True
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
                error = status_error(response.status_code, response.headers, body, self._url)
                pause = retry_seconds(response.headers)
            answer.refused += isinstance(error, BusyError)
            if not isinstance(error, BusyError) or answer.refused >= _TRIES:
                raise error
            await asyncio.sleep(pause)

    async def _read(self, response: httpx2.Response, answer: ServedAnswer, began: float) -> None:
        kind = response.headers.get("Content-Type", "no type").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            raise not_an_api(self._url, f"{kind[:60]} instead of a stream of events")
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
            raise timed_out(url, min(_INFO_SECONDS, self._seconds)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise unreachable(error, url) from None
        if response.status_code != 200:
            raise status_error(response.status_code, response.headers, body, url)
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise not_an_api(url, "no JSON") from None

    async def _with_props(self, info: ServerInfo) -> ServerInfo:
        """The same with the fields of /props, if the server lets us read them."""
        try:
            props = await self._get(f"{info.url.removesuffix('/v1')}/props")
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
        raise not_an_api(url, "no list of models")
    return [m for m in data if isinstance(m, dict) and isinstance(m.get("id"), str) and m["id"]]


async def _first_bytes(response: httpx2.Response, most: int) -> bytes:
    data = b""
    async for part in response.aiter_bytes():
        data += part
        if len(data) > most:
            break
    return data[:most]
