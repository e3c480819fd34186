"""The running servers of this user: a record of each in the cache, for `specllama ps` and `stop`.

Each server locks a file next to its record. The system releases the lock of a killed process, which marks its
record as stale. Records contain no keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import BaseFileLock, FileLock, Timeout

from specllama import wire
from specllama.config.store import cache_dir, write_whole

if TYPE_CHECKING:
    from specllama.server.models import ModelPool

_LOOK_SECONDS = 0.25
_MAX_BYTES = 1 << 20  # size of a record


@dataclass(frozen=True, slots=True)
class ModelInMemory:
    """state: "loaded" or "loading", with 0 for n_ctx, n_slots, n_bytes. idle_seconds: see ModelLease."""

    name: str
    path: str
    state: str
    n_ctx: int = 0
    n_slots: int = 0
    n_bytes: int = 0
    idle_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RunningServer:
    """drain_seconds: time that its requests have to finish after a stop signal."""

    pid: int
    url: str
    drain_seconds: float
    models: tuple[ModelInMemory, ...]


def running() -> list[RunningServer]:
    """The running servers, sorted by URL. Removes stale records."""
    servers = []
    for record in sorted(_folder().glob("*.json")) if _folder().is_dir() else ():
        with contextlib.suppress(OSError, ValueError):
            if _is_held(record):
                servers.append(wire.from_file(RunningServer, record, _MAX_BYTES))
            else:
                record.unlink()
                record.with_suffix(".lock").unlink(missing_ok=True)
    return sorted(servers, key=lambda server: server.url)


def runs(server: RunningServer) -> bool:
    return any(other.pid == server.pid for other in running())


@contextlib.contextmanager
def recorded(models: ModelPool, url: str) -> Iterator[None]:
    """Keeps a record of this server in a running event loop, where the cache is writable."""
    record = _folder() / f"{os.getpid()}.json"
    lock = FileLock(record.with_suffix(".lock"))
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, Timeout):
            record.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock.acquire(blocking=False))
            stack.callback(_remove, record, lock)
            task = asyncio.get_running_loop().create_task(_keep(record, models, url))
            stack.callback(task.cancel)
        yield


async def _keep(record: Path, models: ModelPool, url: str) -> None:
    """Write the record whenever it changes, until cancelled."""
    written = None
    while True:
        if (server := _of(models, url)) != written:
            with contextlib.suppress(OSError):
                write_whole(record, wire.to_json(server), 0o600)
                written = server
        await asyncio.sleep(_LOOK_SECONDS)


def _of(models: ModelPool, url: str) -> RunningServer:
    in_memory = []
    for service in models.services:
        lease, info = service.lease, service.supervisor.loaded
        if lease.state == "loading":
            in_memory.append(ModelInMemory(service.name, service.model.path, "loading"))
        elif lease.state == "loaded" and info is not None:
            n_bytes = info.host_bytes + info.device_bytes
            in_memory.append(
                ModelInMemory(
                    service.name, info.target.path, "loaded", info.n_ctx, info.n_slots, n_bytes,
                    lease.idle_seconds,
                )
            )  # fmt: skip
    return RunningServer(os.getpid(), url, models.settings.drain_seconds, tuple(in_memory))


def _folder() -> Path:
    return cache_dir() / "servers"


def _is_held(record: Path) -> bool:
    try:
        with FileLock(record.with_suffix(".lock")).acquire(blocking=False):
            return False
    except Timeout:
        return True


def _remove(record: Path, lock: BaseFileLock) -> None:
    with contextlib.suppress(OSError):
        record.unlink(missing_ok=True)
        Path(lock.lock_file).unlink(missing_ok=True)
