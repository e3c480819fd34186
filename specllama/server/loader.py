"""Loads the models of a server when they are asked for, and unloads them.

Models that fit together stay in memory together. For one that does not fit, others leave, the idle ones
first; those in use end what they have begun, and who comes meanwhile waits, in the order of arrival. Loads
happen one after the other. Knows no names and no HTTP.
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
from specllama.server.backoff import LoadBackoff
from specllama.server.memory import MemoryLedger, Resident
from specllama.server.service import Service
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Say

if TYPE_CHECKING:  # needs numpy, which a server with one model does not load
    from specllama.server.placement import Newcomer

Loaded = Callable[[str, LoadInfo], None]


class ModelLoader:
    """Loads and unloads.

    services: of the models that were asked for, by path; `add` makes one known. library: finds the files of
    models other than the first one. loaded: called with name and description of each model that was loaded on
    demand. ledger: the free memory.
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
        self._newcomer: tuple[Service, Newcomer] | None = None
        self._backoffs: dict[Service, LoadBackoff] = {}

    def add(self, service: Service) -> None:
        """Load this model when somebody waits for it."""
        service.residence.on_change = self._changed.set
        service.residence.idle_seconds = self._settings.idle_seconds or None
        self._backoffs[service] = LoadBackoff()

    async def started(self) -> None:
        """Wait until the first model is in memory for the first time."""
        await self._started.wait()

    async def run(self, first: Service) -> None:
        """Load a model, then load and unload until cancelled. Raises what the first load raises."""
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
        """Do what can be done now. Returns the seconds until something is due, None for never."""
        loop = asyncio.get_running_loop()
        self._changed.clear()
        for engine in self._engines.values():
            if engine.done():
                engine.result()  # it runs until it is cancelled: this raises
        wanted, leaving = self._wanted(), list[Service]()
        if wanted is not None and (refusal := self._backoffs[wanted].refusal(loop.time())) is not None:
            self._answer(wanted, refusal)
            wanted = None
        if wanted is not None:
            try:
                leaving = await self._must_leave(wanted)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other models go on
                self._refuse(wanted, error)
                wanted = None
        for service in self._engines:
            if service in leaving:
                service.residence.close()
            elif not service.residence.is_open:
                service.residence.open()
        if wanted is not None and not any(service.residence.n_users for service in leaving):
            try:
                await self._replace(leaving, wanted)
            except Exception as error:  # noqa: BLE001 - as above
                self._backoffs[wanted].failed(self._refuse(wanted, error), loop.time())
        return await self._unload_idle()

    def _wanted(self) -> Service | None:
        """The model, not in memory, for which somebody has waited for the longest time."""
        since = {s: s.residence.waiting_since for s in self._services.values()}
        asked = {s: t for s, t in since.items() if t is not None and s.residence.state == "unloaded"}
        return min(asked, key=lambda s: asked[s], default=None)

    async def _must_leave(self, service: Service) -> list[Service]:
        """The models that must leave for one to be loaded. Raises SpecllamaError for one that cannot be."""
        from specllama.server.placement import must_leave

        if self._newcomer is None or self._newcomer[0] is not service:
            self._newcomer = service, await self._prepared(service)
        there = {s.model.path: s for s in self._engines}
        residents = []
        for path, one in there.items():
            memory, residence = one.supervisor.info.details, one.residence
            busy, used_at = residence.n_users > 0, residence.used_at
            residents.append(Resident(path, busy, used_at, memory.host_bytes, memory.device_bytes))
        free = self._ledger.free(one.supervisor for one in there.values())
        most = self._settings.models_max
        leaving = await asyncio.to_thread(must_leave, self._newcomer[1], residents, free, most)
        return [there[one.id] for one in leaving]

    async def _prepared(self, service: Service) -> Newcomer:
        from specllama.server.placement import newcomer

        others = self._settings.others
        if others is None or service.model.path == self._settings.load.target.path:
            return await asyncio.to_thread(newcomer, self._settings.load, None)
        named = replace(others, target=replace(others.target, path=service.model.loads_as))
        return await asyncio.to_thread(newcomer, named, self._library)

    async def _replace(self, leaving: list[Service], service: Service) -> None:
        """Unload models and load another one. Raises SpecllamaError."""
        assert self._newcomer is not None
        for one in leaving:
            await self._unload(one, f"to make room for {service.name}")
        service.supervisor.settings = self._newcomer[1].settings
        self._newcomer = None
        self._changed.set()  # others may wait
        await self._load(service)
        self._loaded(service.name, service.supervisor.info)

    def _refuse(self, service: Service, error: Exception) -> SpecllamaError:
        """Tell those who wait for a model, and the operator, why it cannot be loaded. Returns the error."""
        if not isinstance(error, SpecllamaError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a model could not be loaded", "exception": error}
            )
            error = SpecllamaError("something unexpected went wrong")
        error = error.spelled(as_flag)
        self._say(f"{service.name} cannot be loaded: {error.message}")
        self._answer(service, error)
        return error

    def _answer(self, service: Service, error: SpecllamaError) -> None:
        """Raise this error for those who wait for a model."""
        self._newcomer = None
        self._changed.set()  # others may wait
        service.residence.refuse(error)

    async def _load(self, service: Service) -> None:
        """Load a model and let those in who wait. Raises what the load raises."""
        residence = service.residence
        residence.state = "loading"
        engine = self._engines[service] = asyncio.create_task(service.supervisor.run())
        started = asyncio.create_task(service.supervisor.started())
        try:
            await asyncio.wait((engine, started), return_when=asyncio.FIRST_COMPLETED)
            if engine.done():
                engine.result()
        except BaseException:
            residence.state = "unloaded"
            if engine.done():
                del self._engines[service]
            raise
        finally:
            started.cancel()
        engine.add_done_callback(lambda _: self._changed.set())
        self._backoffs[service].succeeded()
        residence.state = "loaded"
        residence.used_at = asyncio.get_running_loop().time()
        self._ledger.loaded(service.supervisor.info)
        residence.open()

    async def _unload(self, service: Service, why: str) -> None:
        """Unload a model that nobody uses. why: for the operator."""
        self._say(f"{service.name} is unloaded, {why}")
        self._ledger.unloaded(service.supervisor.info)
        await self._close(service)

    async def _close(self, service: Service) -> None:
        """End a model's engine process."""
        service.residence.close()
        engine = self._engines.pop(service)
        engine.cancel()
        await asyncio.wait((engine,))
        service.residence.state = "unloaded"
        service.residence.idle_seconds = self._settings.idle_seconds or None

    async def _unload_idle(self) -> float | None:
        """Unload what has not been used for its time. Returns the seconds until the next one is due."""
        loop, due = asyncio.get_running_loop(), list[float]()
        for service in list(self._engines):
            at = service.residence.idle_at
            if at is None or service.jobs:
                continue
            if at > loop.time():
                due.append(at)
            else:
                await self._unload(service, f"not used for {loop.time() - service.residence.used_at:.0f} s")
        return max(0.0, min(due) - loop.time()) if due else None
