"""Listings of the hub's repositories: commit, files, sizes and hashes, through huggingface-hub.

Transfers no content (transfer.py does), and sends no telemetry.
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from specllama.errors import AccessError, NetworkError, NotFoundError, SpecllamaError, UsageError
from specllama.models.hub.env import hub_endpoint, is_offline
from specllama.models.hub.http import NETWORK_HINT, TOKEN_HINT, Web, refusal, session, unreachable
from specllama.models.names import RepoName, check_file
from specllama.models.progress import Listener, RetryableError, RetryPolicy

_WAITS = (1.0, 2.0, 4.0)  # seconds between attempts: a hub that is down is reported within ten
_SHA1, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. size: bytes. etag: its name in the cache, the sha256 of the content; git's sha1
    for a file outside large-file storage.
    """

    path: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at a commit. files: by path; only those with a safe path, a size and a hash."""

    name: RepoName
    commit: str
    files: Mapping[str, HubFile]
    licence: str = ""
    gated: bool = False


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

    def listing(self, name: RepoName) -> Listing:
        """The repository at the revision of `name`, from the hub. Raises NotFoundError, AccessError,
        NetworkError, and UsageError for a name that the hub does not accept.
        """
        if self.offline:
            raise NetworkError(
                f"{name} is not on disk, and HF_HUB_OFFLINE is set", f"unset it, then: specllama pull {name}"
            )
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise NetworkError(f"HF_ENDPOINT is {self.endpoint!r}, which is not a web address", NETWORK_HINT)
        retries = RetryPolicy(self._listener, _WAITS)
        while True:
            try:
                return self._request(name)
            except RetryableError as error:
                retries.wait(error)

    def _request(self, name: RepoName) -> Listing:
        import httpx2
        from huggingface_hub import HfApi, constants
        from huggingface_hub import errors as theirs

        constants.HF_HUB_DISABLE_TELEMETRY = (
            True  # otherwise huggingface-hub first sends a request of its own
        )
        timeout = float(constants.HF_HUB_ETAG_TIMEOUT)
        api = HfApi(endpoint=self.endpoint, library_name="specllama")
        session()
        try:
            info = _within(
                timeout,
                lambda: api.model_info(
                    name.repo, revision=name.revision, files_metadata=True, timeout=timeout
                ),
                self.endpoint,
            )
            return _listing(name, info)
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
        except (KeyError, TypeError, ValueError, AttributeError, httpx2.InvalidURL):
            raise NetworkError(f"{self.endpoint} does not respond as a hub does", NETWORK_HINT) from None

    def _absent(self, name: RepoName, status: int) -> SpecllamaError:
        if status == 404:
            hint = "check its spelling on the hub; a private one needs a token that may read it"
            return NotFoundError(f"there is no repository {name.repo}", hint)
        if _token():
            return AccessError(f"the hub does not accept the token for {name.repo} ({status})", TOKEN_HINT)
        message = f"{name.repo} does not exist, or is private and shown only to users who log in ({status})"
        return AccessError(message, f"check its spelling; if it is private, {TOKEN_HINT}")


def gated(endpoint: str, name: RepoName) -> AccessError:
    """The error for a repository whose licence has to be accepted first."""
    message = f"{name.repo} is gated: its licence has to be accepted first"
    return AccessError(message, f"accept it at {endpoint}/{name.repo}, then {TOKEN_HINT}")


def _listing(name: RepoName, info: Any) -> Listing:
    if not isinstance(info.sha, str) or not _SHA1.fullmatch(info.sha):
        raise ValueError("no commit")
    files = {}
    for sibling in info.siblings or ():
        found = _file(sibling)
        if found is not None:
            files[found.path] = found
    card = info.card_data.to_dict() if info.card_data is not None else {}
    licence = card.get("license_name") or card.get("license") or ""
    licence = "".join(c for c in licence if c.isprintable())[:80] if isinstance(licence, str) else ""
    return Listing(name, info.sha, files, licence, bool(info.gated))


def _file(sibling: Any) -> HubFile | None:
    """The file that the hub describes; None if its path is unsafe or its size or hash is missing."""
    path, lfs = sibling.rfilename, sibling.lfs
    size, etag = (lfs.size, lfs.sha256) if lfs is not None else (sibling.size, sibling.blob_id)
    if not isinstance(size, int) or isinstance(size, bool) or size < 0 or not isinstance(etag, str):
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
    done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            done.put((None, error))

    threading.Thread(target=run, daemon=True, name="specllama_hub").start()
    try:
        result, problem = done.get(timeout=seconds * 0.95)
    except queue.Empty:
        raise NetworkError(
            f"{urlsplit(endpoint).netloc} gave no response within {seconds:g} s", NETWORK_HINT
        ) from None
    if problem is not None:
        raise problem
    return result
