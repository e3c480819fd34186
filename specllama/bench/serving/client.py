"""Asks one server over httpx2: what it is, and requests whose answers are streamed and timed.

Redirects are not followed, so that a key goes nowhere else. Knows nothing of what is compared.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from specllama.bench.serving import refusals
from specllama.bench.serving.address import Address
from specllama.bench.serving.answers import BrokenStreamError, Reading, ServedAnswer
from specllama.errors import AccessError, BusyError, NetworkError, NotFoundError, SpecllamaError

_CONNECT_SECONDS, _LOOK_SECONDS = 10.0, 30.0
_MOST_BYTES, _MOST_ERROR_BYTES = 4 << 20, 64 << 10
_TRIES = 5  # of a request that is refused for want of room
_OWNERS = ("specllama", "llamacpp")  # those that have /props


@dataclass(frozen=True, slots=True)
class About:
    """What a server says it is. owner: who owns its models, as /v1/models has it; n_slots: requests that it
    answers at once; speculation: what a specllama says of it. None, "" where it does not say.
    """

    base: str
    model: str
    owner: str = ""
    build: str = ""
    n_slots: int | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)


class Server:
    """A server; an asynchronous context manager. key: "" for none. seconds: that an answer may take.

    Raises NetworkError for proxies and certificates that cannot be used.
    """

    def __init__(self, address: Address, key: str, agent: str, seconds: float) -> None:
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

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def about(self, model: str = "", raw: bool = False) -> About:
        """Look where the API is and what serves it; requests go there from now on. model: the name to ask
        for, "" for the first that is listed.

        Raises NetworkError, AccessError, NotFoundError.
        """
        found, base = None, self._address.bases[0]
        for base in self._address.bases:
            try:
                found = _listed(await self._get(f"{base}/models"), f"{base}/models")
                break
            except NotFoundError:
                if base == self._address.bases[-1] and not model:
                    raise
        if found is None:
            base = self._address.bases[0]
        elif not found and not model:
            raise NotFoundError(f"{base}/models lists no model", "load one there, or name one with --model")
        self._url = f"{base}/completions" if raw else f"{base}/chat/completions"
        mine = next((m for m in found or () if m["id"] == model), found[0] if found else {})
        about = About(base, model or mine["id"], str(mine.get("owned_by", "")))
        return await self._with_props(about) if about.owner in _OWNERS else about

    async def ask(self, number: int, body: Mapping[str, Any]) -> ServedAnswer:
        """One request and its answer, whatever becomes of it: what goes wrong is the answer's `problem`."""
        answer, began = ServedAnswer(number), time.perf_counter()
        try:
            async with asyncio.timeout(self._seconds):
                await self._ask(json.dumps(body).encode(), answer, began)
        except TimeoutError:
            answer.problem, answer.fatal = refusals.late(self._url, self._seconds), True
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            answer.problem, answer.fatal = refusals.unreachable(error, self._url), True
        except (httpx2.HTTPError, BrokenStreamError) as error:
            what = str(error) or "the connection broke"
            answer.problem = NetworkError(f"{self._url}: {what}", "see what the server's log says")
        except SpecllamaError as error:
            answer.problem = error
            answer.fatal = isinstance(error, (AccessError, NotFoundError))
        answer.seconds = time.perf_counter() - began
        return answer

    async def _ask(self, body: bytes, answer: ServedAnswer, began: float) -> None:
        """Raises SpecllamaError, httpx2.HTTPError, BrokenStreamError."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        while True:
            async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
                if response.status_code == 200:
                    return await self._read(response, answer, began)
                said = await _bounded(response, _MOST_ERROR_BYTES)
                error = refusals.refusal(response.status_code, response.headers, said, self._url)
                pause = refusals.wait(response.headers)
            answer.refused += isinstance(error, BusyError)
            if not isinstance(error, BusyError) or answer.refused >= _TRIES:
                raise error
            await asyncio.sleep(pause)

    async def _read(self, response: httpx2.Response, answer: ServedAnswer, began: float) -> None:
        kind = response.headers.get("Content-Type", "no type").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            raise refusals.foreign(self._url, f"{kind[:60]} instead of a stream of events")
        reading = Reading(answer)
        async for event in httpx2.EventSource(response):
            if event.data and reading.take(event.data, time.perf_counter() - began, event.event):
                break
        reading.end()

    async def _get(self, url: str) -> Any:
        """What a GET finds, of JSON. Raises SpecllamaError."""
        try:
            async with asyncio.timeout(min(_LOOK_SECONDS, self._seconds)):
                async with self._http.stream("GET", url) as response:
                    said = await _bounded(response, _MOST_BYTES)
        except TimeoutError:
            raise refusals.late(url, min(_LOOK_SECONDS, self._seconds)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise refusals.unreachable(error, url) from None
        if response.status_code != 200:
            raise refusals.refusal(response.status_code, response.headers, said, url)
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            raise refusals.foreign(url, "no JSON") from None

    async def _with_props(self, about: About) -> About:
        """What /props adds, where it is open."""
        try:
            found = await self._get(f"{about.base.removesuffix('/v1')}/props")
        except SpecllamaError:
            return about
        found = found if isinstance(found, dict) else {}
        slots, how = found.get("total_slots"), found.get("speculation")
        return About(
            about.base,
            about.model,
            about.owner,
            str(found.get("build_info", ""))[:80],
            slots if isinstance(slots, int) and slots > 0 else None,
            how if isinstance(how, dict) else {},
        )


def _listed(found: Any, url: str) -> list[dict[str, Any]]:
    """The models that GET /v1/models lists. Raises NotFoundError."""
    data = found.get("data") if isinstance(found, dict) else None
    if not isinstance(data, list):
        raise refusals.foreign(url, "no list of models")
    return [m for m in data if isinstance(m, dict) and isinstance(m.get("id"), str) and m["id"]]


async def _bounded(response: httpx2.Response, most: int) -> bytes:
    """The first bytes of a body."""
    found = b""
    async for part in response.aiter_bytes():
        found += part
        if len(found) > most:
            break
    return found[:most]
