"""Listings of the hub's repositories: commit, files, sizes and hashes.

Sends huggingface-hub's headers through its HTTP client, and raises its errors, but reads the response itself,
whose size and depth are bounded. Transfers no content (transfer.py does), and sends no telemetry.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from specllama.clock import ended, wait_until
from specllama.errors import AccessError, NetworkError, NotFoundError, SpecllamaError, UsageError
from specllama.models.hub.env import hub_endpoint, is_offline
from specllama.models.hub.http import NETWORK_HINT, TOKEN_HINT, Web, origin, refusal, session, unreachable
from specllama.models.names import RepoName, check_file
from specllama.models.progress import Listener, RetryableError, RetryPolicy

_WAITS = (1.0, 2.0, 4.0)  # seconds between attempts: a hub that is down is reported within ten
_MAX_BYTES = 8 << 20  # of a listing; a file takes about 300
_MAX_VALUES = 400_000  # objects, lists and items of a listing, counted before it is parsed
_MAX_SIZE = 1 << 50  # bytes of a file
_SHA1, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")


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
        self.offline = is_offline(environ)
        self._environ, self._listener = environ, listener
        self._web: Web | None = None

    @property
    def web(self) -> Web:
        """Connections for content. Raises NetworkError if HF_HUB_OFFLINE is set."""
        if self.offline:
            raise NetworkError("HF_HUB_OFFLINE is set", "unset it, or use models that are on disk")
        if self._web is None:
            from huggingface_hub import constants

            self._web = Web(self.endpoint, _token(), "specllama", float(constants.HF_HUB_DOWNLOAD_TIMEOUT))
        return self._web

    def listing(self, name: RepoName, wanted: str = "") -> Listing:
        """The repository at the revision of `name`, from the hub. wanted: what the user calls the model.
        Raises NotFoundError, AccessError, NetworkError, and UsageError for a name that the hub does not
        accept.
        """
        if self.offline:
            wanted = wanted or str(name)
            raise NetworkError(
                f"{wanted} is not on disk, and HF_HUB_OFFLINE is set",
                f"unset it, then: specllama pull {wanted}",
            )
        try:
            known = origin(self.endpoint)[0] in ("http", "https") and urlsplit(self.endpoint).hostname
        except ValueError:
            known = False
        if not known:
            raise NetworkError(f"HF_ENDPOINT is {self.endpoint!r}, which is not a web address", NETWORK_HINT)
        retries = RetryPolicy(self._listener, _WAITS)
        while True:
            try:
                return self._request(name)
            except RetryableError as error:
                retries.wait(error)

    def size(self, listing: Listing, path: str) -> int | None:
        """The size of a file in bytes, from the headers of a response; None if they do not say. Raises as
        `listing`.
        """
        retries = RetryPolicy(self._listener, _WAITS)
        while True:
            try:
                with self.web.get(self.web.url(listing.name, listing.commit, path), 0, 1) as response:
                    return response.total if (response.total or 0) <= _MAX_SIZE else None
            except RetryableError as error:
                retries.wait(error)

    def _request(self, name: RepoName) -> Listing:
        import httpx2
        from huggingface_hub import constants
        from huggingface_hub import errors as theirs
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

        constants.HF_HUB_DISABLE_TELEMETRY = (
            True  # otherwise huggingface-hub first sends a request of its own
        )
        timeout = float(constants.HF_HUB_ETAG_TIMEOUT)
        client = session()
        try:
            response = _within(timeout, lambda: self._response(client, name, timeout), self.endpoint)
            hf_raise_for_status(response)
            return _listing(name, _parsed(response.content))
        except theirs.RevisionNotFoundError:
            hint = "omit the part after @ for the newest one"
            raise NotFoundError(f"{name.repo} has no revision {name.revision!r}", hint) from None
        except theirs.GatedRepoError:
            raise gated(self.endpoint, name) from None
        except theirs.RepositoryNotFoundError as error:
            raise self._absent(name, error.response.status_code) from None
        except theirs.HFValidationError as error:
            raise UsageError(str(error)) from None
        except theirs.OfflineModeIsEnabled:
            raise NetworkError("HF_HUB_OFFLINE is set", "unset it") from None
        except theirs.HfHubHTTPError as error:
            if error.response.status_code == 401:
                raise self._absent(name, 401) from None
            raise refusal(error.response.status_code, error.response.headers, self.endpoint) from None
        except httpx2.HTTPError as error:
            raise NetworkError(unreachable(error, self.endpoint).message, NETWORK_HINT) from None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError, httpx2.InvalidURL):
            raise NetworkError(f"{self.endpoint} does not respond as a hub does", NETWORK_HINT) from None

    def _response(self, client: Any, name: RepoName, timeout: float) -> Any:
        """The response to the request for a listing, read. Raises ValueError for one that is too large, and
        what httpx2 raises.
        """
        import httpx2
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = f"{self.endpoint}/api/models/{name.repo}/revision/{quote(name.revision, safe='')}"
        # A compressed response could become a thousand times as large in one step.
        headers = {**build_hf_headers(library_name="specllama"), "Accept-Encoding": "identity"}
        body = bytearray()
        asked = client.stream("GET", url, params={"blobs": True}, headers=headers, timeout=timeout)
        with asked as response:
            if response.headers.get("Content-Encoding", "identity") not in ("identity", ""):
                raise ValueError("compressed")
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ValueError("too large")
        return httpx2.Response(
            response.status_code, headers=response.headers, content=bytes(body), request=response.request
        )

    def _absent(self, name: RepoName, status: int) -> SpecllamaError:
        if status == 404:
            hint = "check its spelling on the hub; a private one needs a token that may read it"
            return NotFoundError(f"there is no repository {name.repo}", hint)
        if _token():
            return AccessError(
                f"the hub does not accept the token for {name.repo} ({status}): it may have expired",
                f"{TOKEN_HINT}; a public repository needs none: unset HF_TOKEN, or hf auth logout",
            )
        message = f"{name.repo} does not exist, or is private and shown only to users who log in ({status})"
        return AccessError(message, f"check its spelling; if it is private, {TOKEN_HINT}")


def gated(endpoint: str, name: RepoName) -> AccessError:
    """The error for a repository whose licence has to be accepted first."""
    message = f"{name.repo} is gated: its licence has to be accepted first"
    return AccessError(message, f"accept it at {endpoint}/{name.repo}, then {TOKEN_HINT}")


def _parsed(body: bytes) -> Any:
    """The JSON of a response. Raises ValueError, RecursionError."""
    if sum(map(body.count, (b"{", b"[", b","))) > _MAX_VALUES:
        raise ValueError("too many values")
    return json.loads(body)


def _listing(name: RepoName, info: Any) -> Listing:
    """The listing in the hub's JSON. Raises ValueError, TypeError, KeyError, AttributeError for any other."""
    if not isinstance(info["sha"], str) or not _SHA1.fullmatch(info["sha"]):
        raise ValueError("no commit")
    files: dict[str, HubFile] = {}
    unverified = []
    for sibling in info.get("siblings") or ():
        remote = _file(sibling)
        if remote is None and _is_model(sibling["rfilename"]):
            unverified.append(sibling["rfilename"])
        if remote is not None and files.setdefault(remote.path, remote) != remote:
            raise ValueError("a file occurs twice")
    card = info.get("cardData") or {}
    licence = card.get("license_name") or card.get("license") or ""
    licence = "".join(c for c in licence[:1000] if c.isprintable())[:80] if isinstance(licence, str) else ""
    return Listing(name, info["sha"], files, licence, bool(info.get("gated")), tuple(unverified))


def _is_model(path: Any) -> bool:
    """Whether this is the safe path of a GGUF file."""
    try:
        check_file(path)
    except (UsageError, AttributeError):
        return False
    return bool(path.lower().endswith(".gguf"))


def _file(sibling: Mapping[str, Any]) -> HubFile | None:
    """The file that the hub describes; None if its path is unsafe or its size or hash is missing."""
    path, lfs = sibling["rfilename"], sibling.get("lfs")
    size, etag = (
        (sibling.get("size"), sibling.get("blobId")) if lfs is None else (lfs.get("size"), lfs.get("sha256"))
    )
    if not isinstance(size, int) or isinstance(size, bool) or not isinstance(etag, str):
        return None
    if not 0 <= size <= _MAX_SIZE:
        return None
    if not (_SHA256 if lfs is not None else _SHA1).fullmatch(etag):
        return None
    try:
        check_file(path)
    except (UsageError, AttributeError):
        return None
    return HubFile(path, size, etag)


def _token() -> str:
    from huggingface_hub import constants, get_token

    return "" if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token() or ""


def _within(seconds: float, work: Callable[[], Any], endpoint: str) -> Any:
    """Return or raise what `work` does. Raises NetworkError after `seconds`: resolving a name, or a proxy,
    can take any time.
    """
    done: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            done.append((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            done.append((None, error))

    thread = threading.Thread(target=run, daemon=True, name="specllama_hub")
    thread.start()
    if not wait_until(ended(thread), seconds * 0.95):
        raise NetworkError(
            f"{urlsplit(endpoint).netloc} gave no response within {seconds:g} s", NETWORK_HINT
        ) from None
    ((result, problem),) = done
    if problem is not None:
        raise problem
    return result
