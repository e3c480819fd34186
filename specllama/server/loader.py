"""Loads the models of a server on demand, and unloads them.

Models that fit stay loaded together. For one that does not fit, others are evicted, idle ones first: a busy
model finishes its requests, and new requests for it wait, in the order of arrival. One model is loaded at a
time. Knows no names and no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from specllama.client.model_info import LoadInfo
from specllama.config.options import as_flag
from specllama.errors import SpecllamaError
from specllama.models.resolve import Library
from specllama.server.memory import LoadedModel, MemoryLedger
from specllama.server.service import Service
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import LoadBackoff, Say

if TYPE_CHECKING:  # needs numpy, which a server with one model does not load
    from specllama.server.eviction import PendingLoad

Loaded = Callable[[str, LoadInfo], None]


def _in_memory(service: Service) -> LoadedModel:
    memory, lease = service.supervisor.info, service.lease
    sizes = memory.host_bytes, memory.device_bytes
    return LoadedModel(service.model.path, lease.n_users > 0, lease.used_at, *sizes)


class ModelLoader:
    """Loads and unloads the models of a server.

    services: by path, of the models that were requested; `add` registers one. library: finds the files of
    models other than the first one. loaded: called with the name and description of each model that was
    loaded on demand. ledger: tracks free memory.
    """

    def __init__(
        self,
        settings: ServerSettings,
        services: Mapping[str, Service],
        say: Say,
        library: Library | None,
        loaded: Loaded,
        ledger: MemoryLedger,
    ) -> None:
        self._settings, self._services, self._say = settings, services, say
        self._library, self._loaded, self._ledger = library, loaded, ledger
        self._changed, self._started = asyncio.Event(), asyncio.Event()
        self._engines: dict[Service, asyncio.Task[None]] = {}
        self._pending: tuple[Service, PendingLoad] | None = None
        self._backoffs: dict[Service, LoadBackoff] = {}

    def add(self, service: Service) -> None:
        """Register a model, which is loaded when a request waits for it."""
        service.lease.on_change = self._changed.set
        service.lease.idle_seconds = self._settings.idle_seconds or None
        self._backoffs[service] = LoadBackoff()

    async def started(self) -> None:
        await self._started.wait()

    def room(self) -> int:
        """Bytes of host and GPUs that a model could have if those in memory were unloaded."""
        loaded = [service for service in self._engines if service.lease.state == "loaded"]
        free = self._ledger.free(one.supervisor for one in loaded).after_evicting(map(_in_memory, loaded))
        return free.host + sum(gpu.free for gpu in free.gpus if not gpu.unified)

    async def run(self, first: Service) -> None:
        """Load the first model, then others on demand until cancelled. Raises the error of the first load."""
        try:
            await self._load(first)
            self._started.set()
            while True:
                due = await self._step()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due):
                        await self._changed.wait()
        finally:
            await asyncio.gather(*(self._close(service) for service in list(self._engines)))

    async def _step(self) -> float | None:
        """Load and unload what is due. Returns the seconds until the next idle unload, None for never."""
        loop = asyncio.get_running_loop()
        self._changed.clear()
        for engine in self._engines.values():
            if engine.done():
                engine.result()  # raises: an engine runs until it is cancelled
        wanted, evicted = self._next_load(), list[Service]()
        if wanted is not None and (refusal := self._backoffs[wanted].refusal(loop.time())) is not None:
            self._fail_waiters(wanted, refusal)
            wanted = None
        if wanted is not None:
            try:
                evicted = await self._select_evictions(wanted)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other models go on
                self._report_failure(wanted, error)
                wanted = None
        for service in self._engines:
            if service in evicted:
                service.lease.close()
            elif not service.lease.is_open:
                service.lease.open()
        if wanted is not None and not any(service.lease.n_users for service in evicted):
            try:
                await self._load_evicting(evicted, wanted)
            except Exception as error:  # noqa: BLE001 - as above
                self._backoffs[wanted].failed(self._report_failure(wanted, error), loop.time())
        return await self._unload_idle()

    def _next_load(self) -> Service | None:
        """The unloaded model whose first waiter has waited longest, None without waiters."""
        since = {s: s.lease.waiting_since for s in self._services.values()}
        asked = {s: t for s, t in since.items() if t is not None and s.lease.state == "unloaded"}
        return min(asked, key=lambda s: asked[s], default=None)

    async def _select_evictions(self, service: Service) -> list[Service]:
        """The models to evict before this one is loaded. Raises SpecllamaError if it cannot be loaded."""
        from specllama.server.eviction import select_evictions

        if self._pending is None or self._pending[0] is not service:
            self._pending = service, await self._prepared(service)
        only = self._settings.others is None  # the model stays in memory
        by_path = {s.model.path: s for s in self._engines if s.embeds or not only}
        models = [_in_memory(one) for one in by_path.values()]
        free = self._ledger.free(one.supervisor for one in self._engines)
        most = 0 if service.embeds else self._settings.models_max
        if most:
            most += sum(one.embeds for one in by_path.values())
        evicted = await asyncio.to_thread(select_evictions, self._pending[1], models, free, most)
        return [by_path[one.id] for one in evicted]

    async def _prepared(self, service: Service) -> PendingLoad:
        from specllama.server.eviction import prepare_load

        if service.embeds:
            return await asyncio.to_thread(prepare_load, service.supervisor.settings, None)
        others = self._settings.others
        if others is None or service.model.path == self._settings.load.target.path:
            return await asyncio.to_thread(prepare_load, self._settings.load, None)
        path = service.model.own_name or service.model.path  # by which its draft is found too
        named = replace(others, target=replace(others.target, path=path))
        return await asyncio.to_thread(prepare_load, named, self._library)

    async def _load_evicting(self, evicted: list[Service], service: Service) -> None:
        assert self._pending is not None
        for one in evicted:
            await self._unload(one, f"to make room for {service.name}")
        service.supervisor.settings = self._pending[1].settings
        self._pending = None
        self._changed.set()  # other models may have waiters
        await self._load(service)
        self._loaded(service.name, service.supervisor.info)

    def _report_failure(self, service: Service, error: Exception) -> SpecllamaError:
        """Fail the waiters of a model that cannot be loaded, and tell the operator why. Returns the error."""
        if not isinstance(error, SpecllamaError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a model could not be loaded", "exception": error}
            )
            error = SpecllamaError("something unexpected went wrong")
        error = error.with_option_names(as_flag)
        self._say(f"{service.name} cannot be loaded: {error.message}")
        self._fail_waiters(service, error)
        return error

    def _fail_waiters(self, service: Service, error: SpecllamaError) -> None:
        self._pending = None
        self._changed.set()  # other models may have waiters
        service.lease.fail_waiters(error)

    async def _load(self, service: Service) -> None:
        """Load a model and wake its waiters. Raises the error of the load."""
        lease = service.lease
        lease.state = "loading"
        engine = self._engines[service] = asyncio.create_task(service.supervisor.run())
        started = asyncio.create_task(service.supervisor.started())
        try:
            await asyncio.wait((engine, started), return_when=asyncio.FIRST_COMPLETED)
            if engine.done():
                engine.result()
        except BaseException:
            lease.state = "unloaded"
            if engine.done():
                del self._engines[service]
            raise
        finally:
            started.cancel()
        engine.add_done_callback(lambda _: self._changed.set())
        self._backoffs[service].succeeded()
        lease.state = "loaded"
        lease.used_at = asyncio.get_running_loop().time()
        self._ledger.loaded(service.supervisor.info)
        lease.open()

    async def _unload(self, service: Service, why: str) -> None:
        self._say(f"{service.name} is unloaded, {why}")
        self._ledger.unloaded(service.supervisor.info)
        await self._close(service)

    async def _close(self, service: Service) -> None:
        service.lease.close()
        engine = self._engines.pop(service)
        engine.cancel()
        await asyncio.wait((engine,))
        service.lease.state = "unloaded"
        service.lease.idle_seconds = self._settings.idle_seconds or None

    async def _unload_idle(self) -> float | None:
        """Unload the models whose idle time is over. Returns seconds until the next, None for never."""
        loop, due = asyncio.get_running_loop(), list[float]()
        for service in list(self._engines):
            at = service.lease.idle_at
            if at is None or service.jobs:
                continue
            if at > loop.time():
                due.append(at)
            else:
                unused = f"not used for {loop.time() - service.lease.used_at:.0f} s"
                await self._unload(service, unused if service.lease.idle_seconds else "as a client asked")
        return max(0.0, min(due) - loop.time()) if due else None
