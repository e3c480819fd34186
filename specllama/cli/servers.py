"""`specllama ps` and `specllama stop`: the servers of this user that run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from specllama.cli import console
from specllama.cli.formatting import duration, listing, wrapped
from specllama.clock import sleep, wait_until
from specllama.errors import NotFoundError, ResourceError, UsageError
from specllama.models.quants import size
from specllama.processor_time import of_tree, wait_while_working
from specllama.server.running import RunningServer, running, runs
from specllama.text.terminal import printable
from specllama.wording import counted

_SOON_SECONDS = 1.0  # after which it is said what is waited for
_MARGIN_SECONDS = 10.0  # of work, for a server to end after its requests have


def ps(given: Mapping[str, Any]) -> int:
    """Print the servers that run and the models in their memory; returns 0."""
    servers, width = running(), console.width()
    rows = [row for server in servers for row in _rows(server)]
    head = ("address", "process", "model", "memory", "context", "slots", "unloads")
    lines = listing(head, rows, width, (0, 1, 2))
    report = {"schema": "specllama.ps/1", "servers": [asdict(server) for server in servers]}
    nothing = wrapped("no server runs; specllama serve starts one", width)
    return console.report(given, report, lines if servers else nothing)


def _rows(server: RunningServer) -> Iterator[tuple[str, ...]]:
    first = (server.url, str(server.pid))
    for model in server.models:
        name = printable(model.name)
        if model.state == "loading":
            yield (*first, f"{name}, loading", "", "", "", "")
        else:
            idle = "never" if model.idle_seconds is None else f"after {duration(model.idle_seconds)}"
            yield (*first, name, size(model.n_bytes), str(model.n_ctx), str(model.n_slots), idle)
        first = ("", "")
    if not server.models:
        yield (*first, "none in memory", "", "", "", "")


def stop(given: Mapping[str, Any]) -> int:
    """Stop servers; returns 0 once they have ended. Raises NotFoundError, UsageError, ResourceError."""
    chosen = _chosen(running(), given.get("name"), given.get("all", False))
    for server in chosen:
        _signal(server, signal.SIGTERM)
        if given.get("now"):
            sleep(0.1)
            _signal(server, signal.SIGINT)  # the second one ends its requests
    waited = max((server.drain_seconds for server in chosen), default=0.0)
    for server in chosen:
        ends = partial(_gone, server)
        if not wait_until(ends, _SOON_SECONDS) and not given.get("now"):
            limit = counted(round(server.drain_seconds), "second")
            console.note(f"{server.url} has up to {limit} to end its answers; with --now it has none")
        over = ""
        if not wait_until(ends, waited):
            over = wait_while_working(ends, of_tree(server.pid), _MARGIN_SECONDS)
        if over:
            message = f"{server.url} has not ended; it {over}"
            raise ResourceError(message, f"kill -9 {server.pid} ends it, and what it was doing is lost")
        console.data(f"stopped {server.url}\n")
    return 0


def _chosen(servers: Sequence[RunningServer], name: str | None, all_: bool) -> list[RunningServer]:
    if not servers and not all_:
        raise NotFoundError("no server runs")
    if all_ and name is not None:
        raise UsageError(f"--all and {name} are both given")
    if not servers:
        console.data("no server runs\n")
    chosen = [server for server in servers if name is None or name in _names(server)]
    names = ", ".join(server.url for server in chosen or servers)
    if name is not None and not chosen:
        raise NotFoundError(f"no server {name} runs", f"there is {names}: specllama ps")
    if len(chosen) > 1 and not all_:
        what = f"{len(servers)} servers run" if name is None else f"several servers have {name} in memory"
        raise UsageError(what, f"name one of {names}, or all: --all")
    return chosen


def _names(server: RunningServer) -> list[str]:
    at = urlsplit(server.url)
    models = [name for model in server.models for name in (model.name, model.path)]
    address = [at.netloc, str(at.port)] if at.netloc else [at.path]
    return [server.url, *address, str(server.pid), *models]


def _signal(server: RunningServer, number: int) -> None:
    try:
        os.kill(server.pid, number)
    except ProcessLookupError:
        pass  # it has ended
    except OSError as error:
        raise ResourceError(f"{server.url} cannot be stopped: {error.strerror}") from None


def _gone(server: RunningServer, seconds: float) -> bool:
    if not runs(server):
        return True
    sleep(seconds)
    return False
