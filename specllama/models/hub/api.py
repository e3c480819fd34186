"""What the hub says of a repository: its commit, files, sizes and hashes, through huggingface-hub.

Nothing of content passes here, that is transfer.py's; nothing that the user did not ask for is sent.
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

_WAITS = (1.0, 2.0, 4.0)  # seconds: a hub that is down is told within ten
_SHA1, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. etag: its sha256, or git's sha1 of it where it is not in large-file storage;
    that is what the cache calls it.
    """

    path: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at a commit. files: by path, those with a path that is safe and a hash alone."""

    name: RepoName
    commit: str
    files: Mapping[str, HubFile]
    licence: str = ""
    gated: bool = False


class Hub:
    """One hub, as the environment has it. web: where content is to be asked for."""

    def __init__(self, environ: Mapping[str, str], listener: Listener) -> None:
        self.endpoint = hub_endpoint(environ)
        self.offline = is_offline(environ)
        self._environ, self._listener = environ, listener
        self._web: Web | None = None

    @property
    def web(self) -> Web:
        """Connections for content. Raises NetworkError where the user wants none."""
        if self.offline:
            raise NetworkError("HF_HUB_OFFLINE is set", "unset it, or use models that are on disk")
        if self._web is None:
            from huggingface_hub import constants

            self._web = Web(self.endpoint, _token(), "specllama", float(constants.HF_HUB_DOWNLOAD_TIMEOUT))
        return self._web

    def listing(self, name: RepoName) -> Listing:
        """What is in a repository now. Raises NotFoundError, AccessError, NetworkError."""
        if self.offline:
            raise NetworkError(
                f"{name} is not on disk, and HF_HUB_OFFLINE is set", f"unset it, then: specllama pull {name}"
            )
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise NetworkError(f"HF_ENDPOINT is {self.endpoint!r}, which is no web address", NETWORK_HINT)
        patience = RetryPolicy(self._listener, _WAITS)
        while True:
            try:
                return self._asked(name)
            except RetryableError as trouble:
                patience.wait(trouble)

    def _asked(self, name: RepoName) -> Listing:
        import httpx2
        from huggingface_hub import HfApi, constants
        from huggingface_hub import errors as theirs

        constants.HF_HUB_DISABLE_TELEMETRY = True  # else another request goes out before ours, unasked
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
            hint = "leave the part behind @ away for the newest one"
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
            problem = unreachable(error, self.endpoint)
            message = problem.message
            raise NetworkError(message, NETWORK_HINT) from None
        except (KeyError, TypeError, ValueError, AttributeError, httpx2.InvalidURL):
            raise NetworkError(f"{self.endpoint} does not answer as a hub does", NETWORK_HINT) from None

    def _absent(self, name: RepoName, status: int) -> SpecllamaError:
        if status == 404:
            hint = "check its spelling on the hub; a private one needs a token that may read it"
            return NotFoundError(f"there is no repository {name.repo}", hint)
        if _token():
            return AccessError(f"the hub does not accept the token for {name.repo} ({status})", TOKEN_HINT)
        message = f"{name.repo} does not exist, or is private: the hub tells only those who log in ({status})"
        return AccessError(message, f"check its spelling; if it is private, {TOKEN_HINT}")


def gated(endpoint: str, name: RepoName) -> AccessError:
    """A repository whose licence has to be accepted first."""
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
    """A file as the hub describes it; None for what could not be kept under its name or not be checked."""
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
    """What `work` returns; NetworkError after so many seconds: names and proxies can take any time."""
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
            f"{urlsplit(endpoint).netloc} gave no answer within {seconds:g} s", NETWORK_HINT
        ) from None
    if problem is not None:
        raise problem
    return result
