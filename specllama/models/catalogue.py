"""The models that a server can offer by name: those on this disk, and those of models.toml that are not.
Details of those on disk are read from their headers, each file once.

Names come from clients: they are looked up in a list, and never used as paths. Uses no network.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath

from specllama.calls.formats import choose
from specllama.data import EMBEDDED_TARGET
from specllama.errors import NotFoundError, SpecllamaError
from specllama.models.demo import DemoStore
from specllama.models.installed import installed_models
from specllama.models.names import DEMO, PYDOC, name_variants, shown
from specllama.models.quants import is_head_name
from specllama.models.resolve import Library
from specllama.text.reasoning import TAGS

MAX_ASKED = 512  # characters of a name that a client asks for
_LISTED = 12  # names in a message


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model that can be asked for. id: its name in lists. names: its other names. path: of its first part,
    "" if it is not on disk. n_bytes: of all parts. modified: seconds since the epoch. pull: the name for
    `specllama pull`. own_name: "pydoc" for the embedded pair. guessed_bytes: of one that is not on disk, by
    its name; 0 where that says nothing. has_projector: whether its projector is on disk, too.
    """

    id: str
    path: str = ""
    names: tuple[str, ...] = ()
    n_bytes: int = 0
    modified: float = 0.0
    pull: str = ""
    own_name: str = ""
    guessed_bytes: int = 0
    has_projector: bool = False

    @property
    def on_disk(self) -> bool:
        return bool(self.path)

    @property
    def is_head(self) -> bool:
        """Whether it is a head by its name, which writes no texts itself."""
        return is_head_name(self.id)


@dataclass(frozen=True)
class Catalogue:
    """All models at one moment. models: those on disk first, each id once."""

    models: tuple[CatalogueModel, ...] = ()

    @cached_property
    def _by_name(self) -> Mapping[str, list[CatalogueModel]]:
        """By names in small letters: the models on disk that have one, else the first known model."""
        by_id: dict[str, list[CatalogueModel]] = {}
        by_name: dict[str, list[CatalogueModel]] = {}
        for model in self.models:
            by_id.setdefault(model.id.lower(), []).append(model)
            for name in {name.lower() for name in model.names}:
                if model.on_disk or name not in by_name:
                    by_name.setdefault(name, []).append(model)
        return by_name | by_id  # ids take precedence over other names

    def _meant(self, name: str) -> Sequence[CatalogueModel]:
        """The models of this name or id, in capitals or not; one that is written exactly so alone."""
        if exact := [model for model in self.models if model.id == name]:
            return exact[-1:]
        known = (self._by_name.get(one) for one in name_variants(name.lower()))
        return next(filter(None, known), [])

    def find(self, name: str) -> CatalogueModel | None:
        """The model of this name or id, in capitals or not, on disk or known; None for several on disk."""
        meant = self._meant(name) if len(name) <= MAX_ASKED else []
        return meant[0] if len(meant) == 1 else None

    def require(self, name: str, damaged: Container[str] = ()) -> CatalogueModel:
        """The model with this name, on disk. damaged: ids. Raises NotFoundError, which lists the others."""
        match = self.find(name)
        if match is not None and match.on_disk:
            return match
        if match is not None:
            raise _not_here(name, match.pull)
        if several := self._meant(name[:MAX_ASKED]):
            ids = ", ".join(model.id for model in several[:_LISTED])
            message = f"{shown(name)} may mean {ids}: ask for one of these"
            raise NotFoundError(message, details={"model": name})
        alias, colon, tag = name[:MAX_ASKED].rpartition(":")
        known = self.find(alias) if colon else None
        if known is not None and known.pull and tag:
            raise _not_here(name, f"{known.pull}:QUANT")
        raise not_found(name, [m.id for m in self.models if m.on_disk and m.id not in damaged])


def not_found(name: str, there: Iterable[str]) -> NotFoundError:
    """The error for a model that a server does not have. there: the names of those that it has."""
    names = list(there)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    there_is = f"there is no model {shown(name)} here, this server has {', '.join(names[:_LISTED])}{more}"
    return NotFoundError(there_is, details={"model": name})


def _not_here(name: str, pull: str) -> NotFoundError:
    message = f"{shown(name)} is not on this disk: specllama pull {pull} downloads it"
    return NotFoundError(message, details={"model": name})


def of_file(path: str, names: Iterable[str] = ()) -> CatalogueModel:
    """A model in a file. names: how it is called, the preferred one first; without any, as its file is."""
    own = PurePath(path).name.removesuffix(".gguf")
    first, *others = tuple(names) or (own,)
    n_bytes, modified = _stat([path])
    return CatalogueModel(first, path, tuple(others), n_bytes, modified)


def scan(library: Library) -> Catalogue:
    """The models on disk now, and those known by name. Reads directories, no models. Raises ConfigError."""
    by_id: dict[str, CatalogueModel] = {}
    for model in (*_built_in(library), *_own(library), *_installed(library)):
        by_id.setdefault(model.id, model)
    names = {name.lower() for model in by_id.values() for name in (model.id, *model.names)}
    models = sorted(by_id.values(), key=lambda m: not m.on_disk)
    for e in library.manifest.entries.values():
        if e.name.lower() not in names:
            others, n_bytes = (*e.aliases, e.where.repo, f"hf:{e.where.repo}"), e.guessed_bytes or 0
            models.append(CatalogueModel(e.name, "", others, pull=e.short_name, guessed_bytes=n_bytes))
    return Catalogue(tuple(models))


def _built_in(library: Library) -> Iterator[CatalogueModel]:
    demo = DemoStore(library.environ)
    names = (DEMO, demo.model.name)
    if demo.is_on_disk():
        yield replace(of_file(str(demo.path)), names=names)
    else:
        yield CatalogueModel(PurePath(demo.model.file).stem, "", names, pull=DEMO)
    yield replace(of_file(str(EMBEDDED_TARGET)), names=(PYDOC,), own_name=PYDOC)


def _own(library: Library) -> Iterator[CatalogueModel]:
    for file in library.own_files:
        if os.path.isfile(file.path):
            n_bytes, modified = _stat(file.parts)
            yield CatalogueModel(file.name, file.path, (), n_bytes, modified)


def _installed(library: Library) -> Iterator[CatalogueModel]:
    for model in installed_models(library):
        if model.model.missing:
            continue
        path = str(model.files[0].link)
        names = [f"hf:{model.name}", PurePath(path).name.removesuffix(".gguf")]
        entry = model.entry
        own = (entry.name, *entry.aliases) if entry is not None else ()
        if entry is not None and model.name == f"{model.repo}:{model.model.quant}":
            names += [f"{name}:{model.model.quant}" for name in own]
        if entry is not None and model.alias == entry.short_name:
            names += own
        if model.usual:
            names += [model.repo, f"hf:{model.repo}"]
        n_bytes, modified = _stat([str(file.link) for file in model.files])
        sees = model.projector is not None
        yield CatalogueModel(model.name, path, tuple(names), n_bytes, modified, has_projector=sees)


def _stat(paths: Iterable[str]) -> tuple[int, float]:
    """(bytes, time of the last change) of files, those that cannot be read left out."""
    n_bytes, modified = 0, 0.0
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            n_bytes, modified = n_bytes + status.st_size, max(modified, status.st_mtime)
    return n_bytes, modified


_MOST = 1024  # models whose details are kept


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """quant: as llama.cpp names it. template: the source of the chat template, "" without one; reasons:
    whether it knows reasoning. problem: why the file is no model that can be loaded, by its header, None for
    one that is; embeds: it makes vectors.
    """

    architecture: str = ""
    n_params: int = 0
    quant: str = ""
    n_ctx_train: int = 0
    n_vocab: int = 0
    template: str = ""
    reasons: bool = False
    problem: SpecllamaError | None = None
    embeds: bool = False


class DetailsReader:
    """Reads and keeps details; threads may share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], ModelDetails] = {}
        self._lock = threading.Lock()

    def of(self, path: str) -> ModelDetails:
        """The details of a model, by the path of its first part. Takes about 0.1 s for a file that is new."""
        try:
            status = os.stat(path)
            key = (path, status.st_size, status.st_mtime_ns)
        except OSError:
            return _read(path)
        with self._lock:
            if key not in self._known:
                if len(self._known) >= _MOST:
                    self._known.clear()
                self._known[key] = _read(path)
            return self._known[key]


def _read(path: str) -> ModelDetails:
    from specllama.gguf.architectures import is_embedder
    from specllama.gguf.header import read_model  # needs numpy
    from specllama.heads.check import check_embedder, check_model

    details = ModelDetails()
    try:
        header = read_model(path)
        template = header.chat_template or ""
        details = ModelDetails(
            header.architecture,
            header.n_params,
            header.quant,
            header.n_ctx_train,
            header.n_vocab,
            template,
            any(tag in template for tag in TAGS) or choose(template).reasons,
            embeds=is_embedder(header),
        )
        (check_embedder if details.embeds else check_model)(header)
    except SpecllamaError as error:
        return replace(details, problem=error)
    return details
