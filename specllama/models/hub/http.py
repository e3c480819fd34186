"""GET requests for the hub's files with httpx2: ranges, redirects, and a token that no other host
receives.

The only place that opens connections for content; converts httpx2's errors to specllama's.
"""

from __future__ import annotations

import contextlib
import email.utils
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

import httpx2

from specllama.errors import AccessError, NetworkError, NotFoundError, SpecllamaError
from specllama.models.names import RepoName
from specllama.models.progress import RetryableError

# The Retry-After header of a refusal, in seconds.


_WHOLE = re.compile(r"\d{1,19}", re.ASCII)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, None where the header is missing or says nothing.

    A date is compared with the Date of the same answer: a wrong clock here does not matter. Without that it
    is compared with the time of day here.
    """
    text = headers.get("Retry-After", "").strip()
    if _WHOLE.fullmatch(text):
        return float(text)
    until = _time_of_day(text)
    if until is None:
        return None
    now = _time_of_day(headers.get("Date", "").strip())
    return max(0.0, until - (time.time() if now is None else now))


def _time_of_day(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


_MOST_REDIRECTS = 10
_MAX_ETAG, _MAX_URL = 1024, 8192  # characters
_TEMPORARY = frozenset((408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529))
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-\d{1,19}/(?:(\d{1,19})|\*)", re.ASCII)


class RangeError(Exception):
    """The file ends before the requested range begins."""


@dataclass(frozen=True)
class HttpResponse:
    """The response to a successful GET.

    start: offset of its first byte in the file. total: bytes of the whole file, None if unknown. validator: a
    strong one for If-Range, or "".
    """

    start: int
    total: int | None
    validator: str
    _response: httpx2.Response

    def chunks(self) -> Iterator[bytes]:
        """The bytes as they arrive. Raises RetryableError if the connection breaks."""
        try:
            yield from self._response.iter_raw()
        except httpx2.HTTPError as error:
            raise RetryableError(
                f"the connection to {self._response.url.host} broke: {_reason(error)}"
            ) from None


class Web:
    """Connections to a hub and to the hosts that it redirects to.

    token: "" for none. timeout: seconds without a byte.
    """

    def __init__(self, endpoint: str, token: str, agent: str, timeout: float = 10.0) -> None:
        self.endpoint, self._token, self._agent, self._timeout = endpoint, token, agent, timeout

    def url(self, name: RepoName, commit: str, path: str) -> str:
        """The address of a file at a commit."""
        return f"{self.endpoint}/{name.repo}/resolve/{commit}/{quote(path)}"

    @contextlib.contextmanager
    def get(
        self, url: str, start: int = 0, end: int | None = None, validator: str = ""
    ) -> Iterator[HttpResponse]:
        """Bytes from `start` up to `end` (exclusive; None: to the end of the file). The response starts at 0
        if the server does not support ranges, or `validator` no longer matches the file.

        Raises RetryableError for a temporary problem, RangeError, NotFoundError, AccessError, NetworkError.
        """
        headers = {"User-Agent": self._agent, "Accept-Encoding": "identity"}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
            if validator:
                headers["If-Range"] = validator
        with self._followed(url, headers) as response:
            yield _checked(response, start)

    @contextlib.contextmanager
    def _followed(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        for _ in range(_MOST_REDIRECTS):
            sent = dict(headers)
            try:
                if self._token and origin(url) == origin(self.endpoint):
                    sent["Authorization"] = f"Bearer {self._token}"
                client = session()
                request = client.build_request("GET", url, headers=sent, timeout=self._timeout)
                response = client.send(request, stream=True, follow_redirects=False)
            except httpx2.HTTPError as error:
                raise unreachable(error, url) from None
            except (httpx2.InvalidURL, ValueError) as error:
                raise NetworkError(f"{without_query(url)} cannot be requested: {error}") from None
            try:
                location = response.headers.get("Location")
                if response.status_code in _REDIRECTS and location:
                    url = _redirected(url, location)
                    continue
                yield response
                return
            finally:
                response.close()
        raise NetworkError(f"{without_query(url)} redirects again and again")


def _redirected(url: str, location: str) -> str:
    """The address that a Location header names. Raises NetworkError."""
    try:
        address = urljoin(url, location) if len(location) <= _MAX_URL else ""
        scheme = urlsplit(address).scheme
    except ValueError:
        address, scheme = location, ""
    if scheme not in ("http", "https"):
        raise NetworkError(f"the hub redirects to {location[:100]!r}, which is not a web address")
    return address


def session() -> httpx2.Client:
    """The HTTP client of huggingface-hub, so that there is one pool of connections and its configuration
    applies here. Raises NetworkError for proxy and certificate settings that cannot be used.
    """
    from huggingface_hub import get_session

    try:
        return get_session()
    except (ValueError, httpx2.InvalidURL, OSError, ImportError) as error:
        hint = "check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
        raise NetworkError(f"the proxy or certificate settings cannot be used: {error}", hint) from None


def _checked(response: httpx2.Response, start: int) -> HttpResponse:
    status = response.status_code
    if status in (200, 206) and response.headers.get("Content-Encoding", "identity") not in ("identity", ""):
        raise NetworkError(f"{response.url.host} sends the file compressed, which was not requested")
    etag = response.headers.get("ETag", "")
    validator = etag if etag.startswith('"') and len(etag) <= _MAX_ETAG else ""
    if status == 206:
        given = response.headers.get("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(given)
        if match is None or int(match[1]) != start:
            raise NetworkError(
                f"{response.url.host} responds with the bytes {given[:60]!r}, not with those from {start}"
            )
        return HttpResponse(start, int(match[2]) if match[2] else None, validator, response)
    if status == 200:
        length = response.headers.get("Content-Length", "")
        return HttpResponse(0, int(length) if _WHOLE.fullmatch(length) else None, validator, response)
    if status == 416 and start:
        raise RangeError
    raise refusal(status, response.headers, str(response.url))


def refusal(status: int, headers: Mapping[str, str], url: str) -> RetryableError | SpecllamaError:
    """The error for a status other than success; RetryableError for a temporary one."""
    host, code = urlsplit(url).netloc.rpartition("@")[2], headers.get("X-Error-Code", "")
    if status in _TEMPORARY:
        what = "limits the rate of requests" if status == 429 else "has a problem"
        return RetryableError(f"{host} {what} ({status})", retry_after(headers))
    if status in (401, 403):
        what = "needs its licence to be accepted" if code == "GatedRepo" else "may not be read"
        return AccessError(f"{without_query(url)} {what} ({status})", TOKEN_HINT)
    if status in (404, 410):
        return NotFoundError(f"{without_query(url)} does not exist ({status})", "see specllama models")
    return NetworkError(f"{without_query(url)} returned status {status}")


TOKEN_HINT = "set HF_TOKEN to a token with access, or log in with hf auth login"


def unreachable(error: httpx2.HTTPError, url: str) -> RetryableError | NetworkError:
    """The error for a request without a response; NetworkError if trying again cannot help."""
    host = urlsplit(url).netloc.rpartition("@")[2]
    if isinstance(error, httpx2.ProxyError):
        return NetworkError(
            f"the proxy does not allow the connection to {host}: {_reason(error)}", NETWORK_HINT
        )
    return RetryableError(f"{host} cannot be reached: {_reason(error)}")


NETWORK_HINT = (
    "check the network, HF_ENDPOINT and the proxy variables; models that are on disk work without it"
)


def origin(url: str) -> tuple[str, str, int]:
    """(scheme, host, port) of an address, the same for all addresses of one server."""
    parts = urlsplit(url)
    return (
        parts.scheme,
        (parts.hostname or "").lower(),
        parts.port or (443 if parts.scheme == "https" else 80),
    )


def without_query(url: str) -> str:
    """An address without user, password and query, which may contain secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:300]


def _reason(error: Exception) -> str:
    """The first line of an exception's message."""
    if isinstance(error, httpx2.TimeoutException):
        return "no response in time"
    return str(error).split("\n")[0][:200] or type(error).__name__
