"""What `doctor` reports on the Hugging Face hub: its cache on this disk, whether it answers and a token is
set.

No token gets into the report, and none is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, TypedDict
from urllib.parse import urlsplit

from specllama.cli.doctor import Problem
from specllama.cli.doctor.files import directory_size, free_disk, writing_problem
from specllama.clock import ended, running_time, wait_until
from specllama.models.hub.env import DEFAULT_ENDPOINT, hub_cache, hub_endpoint, is_offline, token_source

NO_ADDRESS = "is not an http or https address"
SECONDS = 3.0


class Probe:
    """Sends the hub a request in a thread of its own: resolving its name or a proxy may take any time."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.endpoint = hub_endpoint(environ)
        self.status: int | None = None
        self.problem = ""
        self._ends = running_time() + SECONDS
        self._thread: threading.Thread | None = None
        if is_offline(environ):
            return
        try:
            parts = urlsplit(self.endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1:
                raise ValueError
        except ValueError:
            self.problem = NO_ADDRESS
            return
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until there is an answer, or its time is over."""
        if self._thread is None or wait_until(ended(self._thread), self._ends - running_time()):
            return
        self.problem = f"gave no answer within {SECONDS:g} s"

    def _ask(self) -> None:
        import http.client
        import urllib.error
        import urllib.request

        class NoRedirect(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                return None

        try:
            request = urllib.request.Request(without_secrets(self.endpoint) + "/", method="HEAD")
            with urllib.request.build_opener(NoRedirect).open(request, timeout=SECONDS) as answer:
                self.status = answer.status
        except urllib.error.HTTPError as error:
            self.status = error.code
        except urllib.error.URLError as error:
            self.problem = f"cannot be reached: {getattr(error.reason, 'strerror', None) or error.reason}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.problem = f"cannot be reached: {getattr(error, 'strerror', None) or type(error).__name__}"


class HubReport(TypedDict):
    """The hub and its cache. answers: None when offline; status: of its answer; token: where it is from."""

    cache: str
    cache_writable: bool
    cache_bytes: int
    cache_bytes_complete: bool
    free_disk: int | None
    endpoint: str
    offline: bool
    answers: bool | None
    status: int | None
    reason: str
    token: str | None


def hub(environ: Mapping[str, str], probe: Probe, problems: list[Problem]) -> HubReport:
    """The cache (links not followed), free bytes there, the endpoint; "answers" is None when offline."""
    path, offline = hub_cache(environ), is_offline(environ)
    if problem := writing_problem(path):
        do = "make it writable, or set HF_HUB_CACHE to a directory that is"
        problems.append(Problem(f"models cannot be downloaded: {path} {problem}", do))
    probe.wait()
    failing = probe.problem or (f"answers {probe.status}" if (probe.status or 0) >= 500 else "")
    if failing:
        do = f"set HF_ENDPOINT to one, as {DEFAULT_ENDPOINT}"
        if probe.problem != NO_ADDRESS:
            do = "check the network and the proxy variables; models that are on disk work without it"
        problems.append(Problem(f"the hub {without_secrets(probe.endpoint)} {failing}", do))
    n_bytes, complete = directory_size(path)
    return {
        "cache": str(path),
        "cache_writable": not problem,
        "cache_bytes": n_bytes,
        "cache_bytes_complete": complete,
        "free_disk": free_disk(path),
        "endpoint": without_secrets(probe.endpoint),
        "offline": offline,
        "answers": None if offline else not probe.problem,
        "status": probe.status,
        "reason": failing,
        "token": token_source(environ),
    }


def without_secrets(url: str) -> str:
    """An address without user, password and query."""
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(no address)"
    return f"{parts.scheme}://{host}{port}{parts.path}" if parts.scheme and host else "(no address)"
