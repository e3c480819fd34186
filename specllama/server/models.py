"""The models of a server, and which model a name means. Knows no HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from specllama.client.model_info import LoadInfo
from specllama.config.defaults import N_CTX_DEFAULT
from specllama.errors import IntegrityError, NotFoundError, SpecllamaError, UsageError
from specllama.models import catalogue
from specllama.models.names import DEMO
from specllama.models.progress import DownloadState, Listener
from specllama.models.quants import FILE_SHARE
from specllama.models.resolve import Library
from specllama.server.loader import Loaded, ModelLoader
from specllama.server.memory import MemoryLedger
from specllama.server.metrics import HttpMetrics, MetricsByOwner, exposition
from specllama.server.service import Admission, Service
from specllama.server.settings import ANY_NAME, ServerSettings
from specllama.server.supervisor import Say, State, Supervisor


class PullStoppedError(SpecllamaError):
    """A client has stopped the download."""


class Pull(Listener):
    """The download of a model that a client has chosen from the catalogue, in a thread. environ: determines
    the model directories and the hub. say: gets lines for the operator. done, total: bytes, 0 until known.
    error: why there is no model, "" for none. running: it goes on.
    """

    def __init__(self, model: catalogue.CatalogueModel, environ: Mapping[str, str], say: Say) -> None:
        self._model, self._environ, self._say, self._stopped = model, environ, say, False
        self.done = self.total = 0
        self.error, self.running = "", True
        # A daemon: what has arrived is kept, and a later download resumes it.
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopped = True

    def state(self, state: DownloadState) -> None:
        """Raises PullStoppedError."""
        if self._stopped:
            raise PullStoppedError("the download was stopped; what has arrived is kept")
        self.done, self.total = state.done, state.total

    def _run(self) -> None:
        name = self._model.id
        self._say(f"downloading {name}")
        try:
            self._download()
            self._say(f"{name} is on this disk")
        except PullStoppedError as error:
            self.error = error.message
        except SpecllamaError as error:
            self._say(f"{name}: {error.message}")
            self.error = error.message
        except Exception as error:  # noqa: BLE001 - whatever it is, another download may begin
            self._say(f"{name}: unexpected: {type(error).__name__}: {error}")
            self.error = "the download failed unexpectedly; the server's log says why"
        finally:
            self.running = False

    def _download(self) -> None:
        library = Library(self, self._environ)
        if self._model.pull == DEMO:
            from specllama.models.demo import DemoStore, fetch

            fetch(DemoStore(self._environ), self)
            return
        from specllama.models.prepare import prepare_models

        prepare_models(library, [library.on_hub(library.parse(self._model.pull, "model"))], pair=False)


_LONGEST = 1e9  # longest idle time that a client may set, in seconds
_EMBEDS = re.compile("embed|rerank|minilm|bge-")  # names of embedding models
_RESCAN_SECONDS = 1.0  # shortest time between two scans of the disk for unknown names
MakeSupervisor = Callable[[], Supervisor]


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model in a list. state: None if it is not on disk. info: of the last load, None before the first.
    created: when the server began to offer it, in seconds since the epoch. expires_in: see ModelLease.
    loading: see Supervisor. pull: its download, None without one. embeds: it is an embedding model.
    """

    name: str
    model: catalogue.CatalogueModel
    state: State | None
    info: LoadInfo | None
    created: int
    expires_in: float | None = None
    loading: tuple[str, float] | None = None
    pull: Pull | None = None
    embeds: bool = False

    @property
    def on_disk(self) -> bool:
        return self.state is not None

    @property
    def loaded(self) -> bool:
        return self.state == "loaded"


class ModelPool:
    """The models of a server.

    make: creates a supervisor, whose settings are set before it runs. library: finds models; None for a
    server of a single model. loaded: called with the name and description of each model that was loaded on
    demand. ledger: tracks free memory.
    """

    def __init__(
        self,
        settings: ServerSettings,
        say: Say,
        make: MakeSupervisor,
        library: Library | None = None,
        loaded: Loaded = lambda _name, _info: None,
        ledger: MemoryLedger | None = None,
    ) -> None:
        self.settings = settings
        several = len(set(settings.keys)) > 1
        self.admission = Admission(settings.load.n_slots, settings.queue, several)
        self.http: MetricsByOwner[HttpMetrics] = MetricsByOwner(lambda _owner: HttpMetrics(), several)
        self._make = make
        self._library = library if settings.others is not None else None
        self._say, self._pulls = say, dict[str, Pull]()  # by the model's id
        self._reported = set[str]()  # lines about files that are damaged
        self._damaged = set[str]()  # ids of models that `listed` leaves out
        self._details = catalogue.DetailsReader()
        self._catalogue, self._scanned = catalogue.Catalogue(), -_RESCAN_SECONDS
        self._scanning = asyncio.Lock()
        self._services: dict[str, Service] = {}  # by path
        ledger = MemoryLedger() if ledger is None else ledger
        self._loader = ModelLoader(settings, self._services, say, self._library, loaded, ledger)
        self.default = self._serve(catalogue.of_file(settings.load.target.path), settings.shown_names)
        self.default.supervisor.settings = settings.load
        self.default.lease.state = "loading"
        self.embedder = self.default if self.default.embeds else None
        if settings.embedder is not None:
            self.embedder = self._serve(
                catalogue.of_file(settings.embedder.target.path), settings.embedder_names[:1]
            )
            self.embedder.supervisor.settings, self.embedder.supervisor.yields = settings.embedder, True
            from specllama.server.eviction import embedder_bytes  # needs numpy

            self.default.supervisor.reserved = embedder_bytes(settings.embedder)

    @property
    def pinned(self) -> bool:
        """Whether the server has a single model, which stays loaded."""
        return self._library is None

    @property
    def services(self) -> Collection[Service]:
        return self._services.values()

    @property
    def has_vision(self) -> bool:
        """Whether a model reads images, as far as that is known."""
        return any(self.sees(s.model, s.supervisor.loaded) for s in self.services) or any(
            self.sees(model, None) for model in self._catalogue.models
        )

    def sees(self, model: catalogue.CatalogueModel, info: LoadInfo | None) -> bool:
        """Whether a model reads images: by its last load, or as its next one would make it."""
        if info is not None:
            return info.vision
        load = self.settings.load
        if model.path == load.target.path:
            return bool(load.projector)
        others = self.settings.others
        return model.has_projector and others is not None and others.mmproj != "none"

    @property
    def current(self) -> Service:
        """The most recently used model in memory; the default one if none is."""
        loaded = [s for s in self._services.values() if s.lease.state == "loaded" and not s.embeds]
        return max(loaded, key=lambda s: (s.lease.n_users > 0, s.lease.used_at), default=self.default)

    async def look_up(self, name: str | None) -> None:
        """Scan the disk if this name is not known. Call it before `service` for a name from a client."""
        settings = self.settings
        if name is None or self._library is None or settings.has_name(name) or settings.names_embedder(name):
            return
        entry = self._catalogue.find(name)
        if entry is None or not entry.on_disk:
            await self._rescan(_RESCAN_SECONDS)
            if self._catalogue.find(name) is None:
                await self.listed()  # for the error, which names no damaged ones

    def service(self, name: str | None) -> Service:
        """The model that a name means on all routes, loaded or not; for None, `current`. A server of a single
        model accepts any name, as llama-server does, unless its settings forbid it. Raises NotFoundError.
        """
        if name is None:
            return self.current
        if self.settings.has_name(name):
            return self.default
        if self.embedder is not None and self.settings.names_embedder(name):
            return self.embedder
        if self.pinned:
            if ANY_NAME in self.settings.names or not self.settings.strict_model:
                return self.default
            raise catalogue.not_found(name, self.settings.shown_names)
        entry = self._catalogue.find(name)
        if entry is not None and entry.on_disk:
            return self._serve(entry, (entry.id,))
        if ANY_NAME in self.settings.names:
            return self.default
        self._catalogue.require(name, self._damaged)
        raise NotFoundError(name)

    async def embedder_of(self, name: str | None) -> Service:
        """The model that makes vectors for a request: the embedding model, whatever the name, unless it is
        that of a model that writes texts. Raises UsageError for that, and on a server without an embedding
        model; NotFoundError for an unknown name where the settings forbid these.
        """
        embedder, service = self.embedder, self.current
        if embedder is not None and (name is None or self._is_free(name)):
            return embedder
        if name is not None:
            service = self.service(name)
            if service.embeds:
                return service
            await self.check_kind(service)
        other = "start specllama serve with --embeddings MODEL"
        how = other if embedder is None else f"ask for {embedder.name}"
        raise UsageError(f"{service.name} writes texts, and makes no vectors: {how}")

    def _is_free(self, name: str) -> bool:
        """Whether a name is of no model, and may be one of the embedding model."""
        if self.settings.strict_model or self.settings.has_name(name):
            return False
        entry = self._catalogue.find(name)
        return entry is None or not entry.on_disk

    async def check_writes(self, service: Service) -> None:
        """Raises UsageError for a model that makes vectors."""
        if service.embeds:
            other = "start specllama serve with -m MODEL"
            how = other if self.default.embeds else f"ask for {self.default.name}"
            raise UsageError(f"{service.name} makes vectors, and writes no texts: {how}")
        await self.check_kind(service)

    async def check_kind(self, service: Service) -> None:
        """Raises UsageError for a model on disk that makes vectors, and is not the server's own one."""
        if service is not self.default and (await self.details(service.model)).embeds:
            how = f"start specllama serve with --embeddings {service.name}"
            raise UsageError(f"{service.name} is an embedding model: {how}")

    async def listed(self) -> list[ListedModel]:
        """All models: loaded ones first, then others on disk, then models that are only known. Files that
        cannot be loaded are left out; a line says once of each that it is damaged.
        """
        await self._rescan(_RESCAN_SECONDS)
        damaged = set[str]()
        entries = [listed(self.default, name) for name in self.default.names]
        own = {self.default, self.embedder}
        others = {key: s for key, s in self._services.items() if s not in own}
        taken = {_key(service.model.path) for service in own if service is not None}
        if self.embedder not in (None, self.default):
            entries += [listed(self.embedder, self.embedder.name)]
        for model in self._catalogue.models:
            key, embeds = _key(model.path) if model.on_disk else "", bool(_EMBEDS.search(model.id))
            if model.on_disk and key not in taken:
                details = await self.details(model)
                embeds, loaded = details.embeds, key in others and others[key].lease.state != "unloaded"
                if details.problem is not None and not loaded:
                    damaged.add(model.id)
                    if isinstance(details.problem, IntegrityError) or not details.architecture:
                        self._report(f"{model.id} is not listed: {details.problem.message}")
                    continue
            if (service := others.pop(key, None)) is not None:
                entries.append(replace(listed(service, service.name), embeds=embeds))
            elif key not in taken:
                state: State | None = "unloaded" if model.on_disk else None
                pull, created = self._pulls.get(model.id), self.default.created
                entries.append(ListedModel(model.id, model, state, None, created, pull=pull, embeds=embeds))
        self._damaged = damaged
        gone = [s for s in others.values() if s.lease.state == "loaded"]  # their files were deleted
        entries += [listed(service, service.name) for service in gone]
        current = self.current.name
        return sorted(entries, key=lambda m: (not m.on_disk, m.embeds, not m.loaded, m.name != current))

    def _report(self, line: str) -> None:
        """A line for the operator, once."""
        if line not in self._reported:
            self._reported.add(line)
            self._say(line)

    def fits(self, model: ListedModel) -> bool | None:
        """Whether the memory here has room for a model, by its file's size; None where that is unknown."""
        n_bytes = model.model.n_bytes or model.model.guessed_bytes
        if model.loaded:
            return True
        return n_bytes <= FILE_SHARE * self._loader.room() if n_bytes else None

    async def details(self, model: catalogue.CatalogueModel) -> catalogue.ModelDetails:
        return await asyncio.to_thread(self._details.of, model.path)

    async def unloaded(self, service: Service) -> tuple[catalogue.ModelDetails, int]:
        """Details from the header, and the context size that a load would give. Raises what a load would."""
        details = await self.details(service.model)
        if details.problem is not None:
            raise SpecllamaError.from_dict(details.problem.to_dict())
        others = self.settings.others or self.settings.load
        return details, others.target.n_ctx or min(details.n_ctx_train or N_CTX_DEFAULT, N_CTX_DEFAULT)

    async def metrics(self, owner: str, name: str | None = None) -> bytes:
        """The metrics that an owner may read, of all models or one, for Prometheus. Raises NotFoundError."""
        chosen = [self.service(name)] if name is not None else list(self._services.values())
        figures = await asyncio.gather(*(service.read_metrics(owner) for service in chosen))
        return exposition(self.http.of(owner), figures)

    def pull(self, name: str, stop: bool = False) -> None:
        """Start or stop the download of a known model. Does nothing for a model on disk. Raises NotFoundError
        for unknown names, UsageError during another download and on a server of a single model.
        """
        if self._library is None:
            raise UsageError(f"this server holds {self.default.name} alone, and downloads no others")
        entry = self._catalogue.find(name) or self._catalogue.require(name, self._damaged)
        own = self._pulls.get(entry.id)
        running = next((id_ for id_, pull in self._pulls.items() if pull.running), None)
        if stop and own is not None:
            own.stop()
        elif not stop and not entry.on_disk and running != entry.id:
            if running is not None:
                raise UsageError(f"{running} is being downloaded, one model at a time")
            self._pulls[entry.id] = Pull(entry, self._library.environ, self._say)

    def keep(self, service: Service, seconds: float | None) -> None:
        """Set the idle time in seconds after which a model is unloaded, None for never, until its next load.
        Has no effect on the single chat model of a server.
        """
        in_use = service.lease.state != "unloaded" or service.jobs
        if not (self.pinned and service is self.default) and (seconds != 0 or in_use):
            service.lease.idle_seconds = None if seconds is None else min(seconds, _LONGEST)
            service.lease.on_change()  # it may be idle already

    def unload(self, service: Service) -> None:
        """Unload a model as soon as it is idle. Raises UsageError for the one that a server has alone."""
        if self.pinned and service is self.default:  # an embedding model next to it may go
            raise UsageError(f"this server holds {service.name} alone, and keeps it in memory")
        self.keep(service, 0.0)

    async def started(self) -> None:
        await self._loader.started()

    async def run(self) -> None:
        """Load and unload until cancelled. Raises ConfigError, the error of the default's first load."""
        await self._rescan(0.0)
        await self._loader.run(self.default)

    def end_all(self, error: SpecllamaError) -> None:
        """End all running and waiting requests with this error."""
        self.admission.end_all(error)
        for service in self._services.values():
            service.lease.fail_waiters(error)

    def _serve(self, model: catalogue.CatalogueModel, names: Collection[str]) -> Service:
        key = _key(model.path)
        if key not in self._services:
            service = Service(self.settings, model, tuple(names), self._make(), self.admission)
            self._services[key] = service
            self._loader.add(service)
            if not self.pinned:
                service.supervisor.label = f"{service.name}: "
        return self._services[key]

    async def _rescan(self, seconds: float) -> None:
        """Scan the disk unless the last scan is less than `seconds` old. Raises ConfigError."""
        if self._library is None:
            return
        loop = asyncio.get_running_loop()
        async with self._scanning:
            if loop.time() - self._scanned < seconds:
                return
            self._catalogue = await asyncio.to_thread(catalogue.scan, self._library)
            self._scanned = loop.time()


def listed(service: Service, name: str) -> ListedModel:
    """The list entry of a requested model under one of its names."""
    return ListedModel(
        name,
        service.model,
        service.lease.state,
        service.supervisor.loaded,
        service.created,
        service.lease.expires_in,
        service.supervisor.loading,
        embeds=service.embeds,
    )


def _key(path: str) -> str:
    """The same key for all paths to a file."""
    return os.path.realpath(path)
