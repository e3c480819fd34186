"""The Hugging Face hub: listings of repositories, GET requests for their files, and the GGUF headers of
these, of which only as many bytes are requested as are needed.

Uses huggingface-hub's HTTP client and headers, so that its configuration applies, and reads responses itself:
a listing is bounded, and a file is requested from any byte. The client follows redirects and sends the token
to no other host. No telemetry is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2

from specllama.clock import running_time
from specllama.errors import AccessError, NetworkError, NotFoundError, SpecllamaError, UsageError
from specllama.gguf.header import Header, read_model
from specllama.gguf.source import FileSource, GGUFSource
from specllama.models.hub.env import hub_endpoint, is_offline
from specllama.models.names import RepoName, check_file
from specllama.models.progress import Listener, RetryableError, RetryPolicy, retry_after
from specllama.models.quants import ModelFiles

NETWORK_HINT = (
    "check the network, HF_ENDPOINT and the proxy variables; models that are on disk work without it"
)
TOKEN_HINT = "set HF_TOKEN to a token with access, or log in with hf auth login"
SHORT_WAITS = (1.0, 2.0, 4.0)  # seconds between attempts: a hub that is down is reported within ten
_MAX_BYTES = 8 << 20  # of a listing; a file takes about 300
_MAX_VALUES = 400_000  # objects, lists and items of a listing, counted before it is parsed
_MAX_SIZE = 1 << 50  # bytes of a file
_MAX_ETAG = 1024  # characters
_SHA1, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")
_TEMPORARY = frozenset((408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529))
_WHOLE = re.compile(r"\d{1,19}", re.ASCII)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-\d{1,19}/(?:(\d{1,19})|\*)", re.ASCII)


class RangeError(Exception):
    """The file ends before the requested range begins."""


@dataclass(frozen=True, slots=True)
class Content:
    """The response to a GET request. start: offset of its first byte in the file. total: bytes of the whole
    file, None if unknown. validator: a strong one for If-Range, or "". chunks: the bytes as they arrive.
    """

    start: int
    total: int | None
    validator: str
    chunks: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. size: bytes. etag: its name in the cache, the sha256 of the content; git's sha1
    for a file outside large-file storage. verified: whether the hub has given that; else it stands for the
    address, until the content has come.
    """

    path: str
    size: int
    etag: str
    verified: bool = True


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at a commit. files: by path; only those with a safe path, a size and a hash. unverified:
    the paths of models whose size or hash is missing.
    """

    name: RepoName
    commit: str
    files: Mapping[str, HubFile]
    licence: str = ""
    gated: bool = False
    unverified: tuple[str, ...] = ()


class Hub:
    """The hub that the environment names."""

    def __init__(self, environ: Mapping[str, str], listener: Listener) -> None:
        self.endpoint = hub_endpoint(environ)
        self._offline, self._listener = is_offline(environ), listener

    def listing(self, name: RepoName, wanted: str = "") -> Listing:
        """The repository at the revision of `name`, from the hub. wanted: what the user calls the model.
        Raises NotFoundError, AccessError, NetworkError.
        """
        if self._offline:
            wanted = wanted or str(name)
            message = f"{wanted} is not on disk, and HF_HUB_OFFLINE is set"
            raise NetworkError(message, f"unset it, then: specllama pull {wanted}")
        try:
            address = httpx2.URL(self.endpoint)
        except httpx2.InvalidURL:
            address = httpx2.URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise NetworkError(f"HF_ENDPOINT is {self.endpoint!r}, which is not a web address", NETWORK_HINT)
        return RetryPolicy(self._listener, SHORT_WAITS).run(lambda: self._listing(name))

    def size(self, listing: Listing, path: str) -> int | None:
        """Bytes of a file by the headers of a response; None if they do not say. Raises as `listing`."""

        def total() -> int | None:
            with self.get(listing, path, 0, 1) as content:
                return content.total if (content.total or 0) <= _MAX_SIZE else None

        return RetryPolicy(self._listener, SHORT_WAITS).run(total)

    @contextmanager
    def get(
        self, listing: Listing, path: str, start: int = 0, end: int | None = None, validator: str = ""
    ) -> Iterator[Content]:
        """Bytes of a file from `start` up to `end` (exclusive; None: to the end of the file). They start at 0
        if the server does not support ranges, or `validator` no longer matches the file.

        Raises RetryableError for a temporary problem, also while the bytes arrive, RangeError, NotFoundError,
        AccessError, NetworkError.
        """
        from huggingface_hub import constants

        url = f"{self.endpoint}/{listing.name.repo}/resolve/{listing.commit}/{quote(path)}"
        headers = {}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
            if validator:
                headers["If-Range"] = validator
        response = None
        try:
            with self._requested(url, headers, constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
                yield self._content(response, start, listing)
        except httpx2.HTTPError as error:
            raise _failure(error, begun=response is not None) from None

    def _content(self, response: httpx2.Response, start: int, listing: Listing) -> Content:
        status, host = response.status_code, response.url.host
        if status == 416 and start:
            raise RangeError
        if status not in (200, 206):
            raise self._refusal(response, listing.name, listing.gated)
        if _compressed(response):
            raise NetworkError(f"{host} sends the file compressed, which was not requested")
        etag = response.headers.get("ETag", "")
        validator = etag if etag.startswith('"') and len(etag) <= _MAX_ETAG else ""
        if status == 200:
            length = response.headers.get("Content-Length", "")
            total = int(length) if _WHOLE.fullmatch(length) else None
            return Content(0, total, validator, response.iter_raw())
        given = response.headers.get("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(given)
        if match is None or int(match[1]) != start:
            raise NetworkError(f"{host} responds with the bytes {given[:60]!r}, not with those from {start}")
        return Content(start, int(match[2]) if match[2] else None, validator, response.iter_raw())

    def _listing(self, name: RepoName) -> Listing:
        from huggingface_hub import constants

        url = f"{self.endpoint}/api/models/{name.repo}/revision/{quote(name.revision, safe='')}"
        body, began, seconds = bytearray(), running_time(), float(constants.HF_HUB_ETAG_TIMEOUT)
        try:
            with self._requested(url, {}, seconds, blobs=True) as response:
                if not response.is_success:
                    raise self._unlisted(response, name)
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > _MAX_BYTES or _compressed(response) or running_time() - began > seconds:
                        raise ValueError("too large or too slow")
            if sum(map(body.count, (b"{", b"[", b","))) > _MAX_VALUES:
                raise ValueError("too many values")
            return _listing(name, json.loads(body))
        except httpx2.HTTPError as error:
            raise NetworkError(_failure(error, begun=False).message, NETWORK_HINT) from None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise NetworkError(f"{self.endpoint} does not respond as a hub does", NETWORK_HINT) from None

    def _requested(
        self, url: str, headers: Mapping[str, str], seconds: float, **params: bool
    ) -> AbstractContextManager[httpx2.Response]:
        """A GET request. seconds: without a byte. Raises NetworkError for settings, on entry HTTPError."""
        from huggingface_hub import constants, get_session
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        # Otherwise huggingface-hub first sends a request of its own.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        # A compressed response could become a thousand times as large in one step.
        headers = {**build_hf_headers(library_name="specllama"), "Accept-Encoding": "identity", **headers}
        try:
            session = get_session()
        except (ValueError, httpx2.InvalidURL, OSError, ImportError) as error:
            hint = "check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"
            raise NetworkError(f"the proxy or certificate settings cannot be used: {error}", hint) from None
        return session.stream("GET", url, params=params or None, headers=headers, timeout=seconds)

    def _unlisted(self, response: httpx2.Response, name: RepoName) -> RetryableError | SpecllamaError:
        """The error for a listing that the hub refuses."""
        status, code = response.status_code, response.headers.get("X-Error-Code", "")
        if code == "RevisionNotFound":
            hint = "omit the part after @ for the newest one"
            return NotFoundError(f"{name.repo} has no revision {name.revision!r}", hint)
        if code == "GatedRepo" or (status != 401 and code != "RepoNotFound"):
            return self._refusal(response, name)
        if status == 404:
            hint = "check its spelling on the hub; a private one needs a token that may read it"
            return NotFoundError(f"there is no repository {name.repo}", hint)
        if "Authorization" in response.request.headers:
            return AccessError(
                f"the hub does not accept the token for {name.repo} ({status}): it may have expired",
                f"{TOKEN_HINT}; a public repository needs none: unset HF_TOKEN, or hf auth logout",
            )
        message = f"{name.repo} does not exist, or is private and shown only to users who log in ({status})"
        return AccessError(message, f"check its spelling; if it is private, {TOKEN_HINT}")

    def _refusal(
        self, response: httpx2.Response, name: RepoName, gated: bool = False
    ) -> RetryableError | SpecllamaError:
        """The error for a status other than success; RetryableError for a temporary one."""
        status, address = response.status_code, _without_query(response.url)
        if status in _TEMPORARY:
            what = "limits the rate of requests" if status == 429 else "has a problem"
            return RetryableError(f"{_host(response.url)} {what} ({status})", retry_after(response.headers))
        if status in (401, 403):
            if gated or response.headers.get("X-Error-Code") == "GatedRepo":
                message = f"{name.repo} is gated: its licence has to be accepted first"
                return AccessError(message, f"accept it at {self.endpoint}/{name.repo}, then {TOKEN_HINT}")
            return AccessError(f"{address} may not be read ({status})", TOKEN_HINT)
        if status in (404, 410):
            return NotFoundError(f"{address} does not exist ({status})", "see specllama models")
        return NetworkError(f"{address} returned status {status}")


def _failure(error: httpx2.HTTPError, begun: bool) -> RetryableError | NetworkError:
    """The error for a request without (begun: the rest of) a response; NetworkError: no use trying again."""
    host = _host(error.request.url)
    timed_out = isinstance(error, httpx2.TimeoutException)
    reason = "no response in time" if timed_out else str(error).split("\n")[0][:200] or type(error).__name__
    if isinstance(error, httpx2.ProxyError):
        return NetworkError(f"the proxy does not allow the connection to {host}: {reason}", NETWORK_HINT)
    if isinstance(error, (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects)):
        return NetworkError(f"the hub redirects from {_without_query(error.request.url)}: {reason}")
    broke = f"the connection to {host} broke" if begun else f"{host} cannot be reached"
    return RetryableError(f"{broke}: {reason}")


def _host(url: httpx2.URL) -> str:
    return url.netloc.decode("ascii", "replace")


def _without_query(url: httpx2.URL) -> str:
    """An address without user, password and query, which may contain secrets."""
    return f"{url.scheme}://{_host(url)}{url.path}"[:300]


def _compressed(response: httpx2.Response) -> bool:
    return response.headers.get("Content-Encoding", "") not in ("", "identity")


def _listing(name: RepoName, info: Any) -> Listing:
    """The listing in the hub's JSON. Raises ValueError, TypeError, KeyError, AttributeError for any other."""
    if not isinstance(info["sha"], str) or not _SHA1.fullmatch(info["sha"]):
        raise ValueError("no commit")
    files: dict[str, HubFile] = {}
    unverified = []
    for sibling in info.get("siblings") or ():
        path, lfs = sibling["rfilename"], sibling.get("lfs")
        try:
            check_file(path)
        except (UsageError, AttributeError):
            continue
        if lfs is None:
            size, etag, form = sibling.get("size"), sibling.get("blobId"), _SHA1
        else:
            size, etag, form = lfs.get("size"), lfs.get("sha256"), _SHA256
        if _usable(size, etag, form):
            if files.setdefault(path, file := HubFile(path, size, etag)) != file:
                raise ValueError("a file occurs twice")
        elif path.lower().endswith(".gguf"):
            unverified.append(path)
    card = info.get("cardData") or {}
    licence = card.get("license_name") or card.get("license") or ""
    licence = "".join(c for c in licence[:1000] if c.isprintable())[:80] if isinstance(licence, str) else ""
    return Listing(name, info["sha"], files, licence, bool(info.get("gated")), tuple(unverified))


def _usable(size: Any, etag: Any, form: re.Pattern[str]) -> bool:
    """Whether the hub gives a size and a hash."""
    whole = isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= _MAX_SIZE
    return whole and isinstance(etag, str) and form.fullmatch(etag) is not None


_MAX_REQUEST = 1 << 20  # bytes, which limits how much is read unnecessarily


class RemoteSource:
    """A file on the hub as a `GGUFSource`. name: for messages. size: in bytes."""

    def __init__(self, hub: Hub, listing: Listing, file: HubFile, retries: RetryPolicy) -> None:
        self.name, self.size = f"{listing.name.repo}/{file.path}", file.size
        self._hub, self._listing, self._path, self._retries = hub, listing, file.path, retries

    def read(self, offset: int, n: int) -> bytes:
        """At most `n` bytes from `offset`. Raises NetworkError, AccessError, NotFoundError."""
        return self._retries.run(lambda: self._read(offset, min(offset + min(n, _MAX_REQUEST), self.size)))

    def _read(self, offset: int, end: int) -> bytes:
        if offset >= end:
            return b""
        data = bytearray()
        try:
            with self._hub.get(self._listing, self._path, offset, end) as content:
                skip = offset - content.start  # a server without ranges sends the whole file
                for chunk in content.chunks:
                    data += chunk[skip:]
                    skip = max(0, skip - len(chunk))
                    if len(data) >= end - offset:
                        break
        except RangeError:
            return b""
        return bytes(data[: end - offset])


def remote_header(
    hub: Hub,
    listing: Listing,
    files: ModelFiles,
    on_disk: Callable[[HubFile], Path | None],
    listener: Listener,
) -> Header:
    """The header of a model on the hub, parts merged. on_disk: the complete content of a file, from which it
    is read then; None without.

    Raises GGUFError, IntegrityError, NetworkError, AccessError, NotFoundError.
    """
    base, retries = f"{listing.name.repo}/", RetryPolicy(listener, SHORT_WAITS)

    def opened(name: str) -> AbstractContextManager[GGUFSource]:
        file = listing.files.get(name.removeprefix(base))
        if file is None:
            raise NotFoundError(f"{name} does not exist")
        if (there := on_disk(file)) is not None:
            return FileSource(there)
        return nullcontext(RemoteSource(hub, listing, file, retries))

    return read_model(base + files.first, opened)
