"""`specllama models show`: what a model is, what it can, whether it fits here, and what can draft for it."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from specllama.cli import console
from specllama.cli.formatting import wrapped
from specllama.cli.progress import library
from specllama.config.defaults import N_CTX_DEFAULT
from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import NetworkError, ResourceError, SpecllamaError
from specllama.gguf.architectures import is_embedder, pooling_of
from specllama.gguf.check import is_projector
from specllama.gguf.header import Header, read_model
from specllama.gguf.projector import read_projector
from specllama.heads import file_head, is_head_file, read_head, unusable_head
from specllama.heads.check import check_draft, check_model
from specllama.json_types import JsonObject
from specllama.models.demo import DemoStore
from specllama.models.installed import installed_models
from specllama.models.manifest import ManifestEntry
from specllama.models.memory.available import UNKNOWN, available_memory, gpus_present
from specllama.models.memory.plan import DeviceMemory, MemoryPlan, plan_embedder, plan_load
from specllama.models.names import DEMO
from specllama.models.prepare import known_draft
from specllama.models.projectors import find_projector, projectors_of
from specllama.models.quants import FILE_SHARE, size
from specllama.models.resolve import Library, ResolvedModel
from specllama.pair.check import check_any, own_head
from specllama.text.terminal import printable


@dataclass(frozen=True, slots=True)
class Machine:
    """available: bytes of host memory. gpus: those that the build of llama.cpp can use."""

    available: int
    gpus: tuple[DeviceMemory, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model is loaded where only its name is given. plan: None if it does not fit, or has no plan of
    its own; problem, hint: why not, and what would fit.
    """

    plan: MemoryPlan | None = None
    n_layer: int = 0
    n_ctx_train: int = 0
    problem: str = ""
    hint: str = ""

    @property
    def word(self) -> str:
        """For a column: "yes", "8192 tokens" where the context is shortened for it, "no", "" if unknown."""
        if self.plan is None:
            return "no" if self.problem else ""
        shortened = self.plan.n_ctx < min(self.n_ctx_train or N_CTX_DEFAULT, N_CTX_DEFAULT)
        return f"{self.plan.n_ctx} tokens" if shortened else "yes"

    def sentence(self, machine: Machine) -> str:
        """The memory that it takes and that there is."""
        if self.plan is None:
            return self.problem or "not known"
        plan = self.plan
        text = f"takes {size(plan.host)} with {plan.n_ctx} tokens of context"
        if plan.device:
            layers = min(plan.target.n_gpu_layers, self.n_layer)
            text += f", and {size(plan.device)} of the GPU for {layers} of {self.n_layer} layers"
        free = f", {size(machine.available)} are free" if machine.available < UNKNOWN else ""
        return f"{text}{free}: it fits"

    def to_dict(self, machine: Machine) -> JsonObject | None:
        """The same for programs, in bytes; None if it does not fit."""
        if (plan := self.plan) is None:
            return None
        return {
            "n_ctx": plan.n_ctx,
            "host": plan.host,
            "gpu": plan.device,
            "gpu_layers": plan.target.n_gpu_layers,
            "n_layer": self.n_layer,
            "available": machine.available if machine.available < UNKNOWN else None,
        }


def this_machine() -> Machine:
    """The memory that is free now. Where there is a GPU, an engine process is asked for its own."""
    gpus: tuple[DeviceMemory, ...] = ()
    if gpus_present():
        from specllama.client.client import EngineClient

        apple = platform.system() == "Darwin"
        with contextlib.suppress(SpecllamaError), EngineClient() as client:
            devices = client.inspect().devices
            gpus = tuple(DeviceMemory(d.name, d.free, apple) for d in devices if d.gpu)
    return Machine(available_memory(), gpus)


def guessed_fit(n_bytes: int | None, machine: Machine) -> str:
    """As `Fit.word`, for a model whose size is guessed by its name: "likely", "no", "" if unknown."""
    if n_bytes is None or machine.available >= UNKNOWN:
        return ""
    room = machine.available + sum(gpu.free for gpu in machine.gpus)
    return "likely" if n_bytes <= FILE_SHARE * room else "no"


def fit(header: Header, machine: Machine, mmproj: str = "") -> Fit:
    """How the model would be loaded, with its own head and the projector in `mmproj` where they fit too."""
    if is_head_file(header):
        return Fit()
    settings = LoadSettings(target=ModelSettings(path=header.path))
    free, sizes = (machine.available, machine.gpus), (header.n_layer, header.n_ctx_train)
    try:
        if is_embedder(header):
            return Fit(plan_embedder(settings, header, *free), *sizes)
        check_model(header)
        own = own_head(header)[0]
        with contextlib.suppress(SpecllamaError):
            projector = read_projector(read_model(mmproj)) if mmproj else None
            head = own.head if own is not None else None
            return Fit(plan_load(settings, header, head, *free, projector=projector), *sizes)
        if own is not None:
            with contextlib.suppress(ResourceError):
                return Fit(plan_load(settings, header, own.head, *free), *sizes)
        return Fit(plan_load(settings, header, None, *free), *sizes)
    except SpecllamaError as error:
        shown = error.with_option_names(console.as_flag)
        return Fit(problem=shown.message, hint=shown.hint)


class Row(NamedTuple):
    """A key and its value for programs, a label and its text for people; without one of them, None."""

    key: str | None
    value: Any
    label: str | None = None
    text: str = ""


_ARGUMENT = "NAME|FILE"  # as the help names it
AUTO = "auto"  # what -md takes where it is not given
_LABEL = 10  # columns
_MOST_BESIDE = 50  # files next to the model whose headers are read
_THINKS = ("enable_thinking", "<think>", "thinking")
_MUCH_SMALLER = 2  # a draft reads at most the target's bytes per token divided by this


class DraftFound(NamedTuple):
    """A draft for a model. name: for -md. where: "on disk", a path, how to get it. why: the verdict."""

    name: str
    where: str
    why: str


def show(given: Mapping[str, Any]) -> int:
    """Print what is known of a model; returns 0. Raises NotFoundError, UsageError, GGUFError, IntegrityError,
    AccessError, NetworkError for what cannot be read.
    """
    known = library()
    try:
        model = known.find(given["name"], _ARGUMENT)
    except NetworkError as error:
        entry = known.parse(given["name"], _ARGUMENT).entry
        if entry is None or given.get("json"):
            raise
        return console.report({}, {}, _lines(_known_rows(known, entry, given["name"], error.message)))
    header, machine = known.header(model), this_machine()
    rows = list(_rows(known, model, header, machine, list(_drafts(known, model, header))))
    report = {"schema": "specllama.models-show/1", **{row.key: row.value for row in rows if row.key}}
    return console.report(
        given, report, _lines((row.label, printable(row.text)) for row in rows if row.label is not None)
    )


def _lines(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for label, text in rows:
        yield from wrapped(text, console.width(), f"{label:<{_LABEL}}", " " * _LABEL)


def _known_rows(known: Library, entry: ManifestEntry, name: str, problem: str) -> Iterator[tuple[str, str]]:
    """The entry in models.toml of a model whose header cannot be read now."""
    n_bytes, machine = entry.guessed_bytes, this_machine()
    fits = guessed_fit(n_bytes, machine)
    yield "name", ", ".join((entry.name, *entry.aliases))
    yield "file", f"{entry.usual}, not on this disk: specllama pull {name}"
    if n_bytes:
        yield "size", f"about {size(n_bytes)}, by its name"
    yield "licence", entry.licence or "not stated"
    yield "memory", {"likely": "it is likely to fit here", "no": "it does not fit"}.get(fits, "not known")
    drafts = [draft.short_name for draft in known.manifest.drafts_for(entry)]
    yield "drafts", ", ".join(f"-md {draft}" for draft in drafts) or "none known"
    yield "source", printable(entry.source or "not stated")
    yield "more", printable(f"its header, which is read from the hub: {problem}")


def _rows(
    known: Library, model: ResolvedModel, header: Header, machine: Machine, drafts: Sequence[DraftFound]
) -> Iterator[Row]:
    """Of a head or projector people get the first lines alone; of an embedding model, none on texts."""
    projector, images = _images(known, model)
    fits = fit(header, machine, projector or "")
    is_head, embeds = is_head_file(header), is_embedder(header)
    listed = model.listing.licence if model.listing is not None else ""
    licence = licence_of(model.parsed.entry, header, listed)
    n_bytes, where = header.file_bytes or sum(file.size for file in model.parts), model.parsed.where
    name = f"{DEMO}: {DemoStore().model.name}" if model.parsed.built_in == DEMO else header.name
    there = model.path or f"{model.parts[0].path}, not on this disk: specllama pull {model.name}"
    weights = f"{params(header.n_params) or 'no'} weights"
    parts = (header.architecture, weights, header.quant, size(n_bytes))
    yield Row("name", header.name, "name", name)
    yield Row("path", model.path or None, "file", there)
    yield Row("repo", where.repo if where else None)
    yield Row("on_disk", bool(model.path))
    yield Row("architecture", header.architecture)
    yield Row("params", header.n_params)
    yield Row("quant", header.quant)
    yield Row("bytes", n_bytes, "model", ", ".join(part for part in parts if part))
    if is_head:
        yield Row(None, None, "head", "it drafts for its model with -md, and cannot be run alone")
    if sees := is_projector(header):
        yield Row(None, None, "images", "a projector, with which its model reads images: -m MODEL -mm FILE")
    if embeds:
        makes = "scores of documents" if pooling_of(header, None) == "rank" else "vectors of texts"
        yield Row(None, None, "makes", f"{makes}: specllama embed, or serve --embeddings")
    head = _head(header, next((draft.where for draft in drafts if draft.name == AUTO), ""))
    trained = f"{header.n_ctx_train} tokens in training" if header.n_ctx_train else "not stated"
    rows = (
        Row("n_ctx_train", header.n_ctx_train or None, "context", trained),
        Row("is_head", is_head),
        Row("head", head, "head", head),
        Row("chat_template", header.chat_template is not None, "template", _template(header)),
        Row("tools", _mentions(header, "tools")),
        Row("thinking", _mentions(header, *_THINKS)),
        Row("licence", licence, "licence", licence),
        Row("mmproj", projector, *(("images", images) if images else ())),
        Row("fits", None if not fits.word else fits.plan is not None),
        Row("problem", fits.problem),
        Row("memory", fits.to_dict(machine), "memory", fits.sentence(machine)),
        *([Row(None, None, "", fits.hint)] if fits.hint else []),
        Row("drafts", [draft._asdict() for draft in drafts]),
        *(Row(None, None, "" if n else "drafts", text) for n, text in enumerate(_draft_lines(drafts))),
    )
    for row in rows:
        hidden = is_head or sees or (embeds and row.label in ("head", "template", "drafts"))
        yield row._replace(label=None) if hidden else row


def _images(known: Library, model: ResolvedModel) -> tuple[str | None, str]:
    """(The path of a model's projector, None where it is not on disk; what to say of it, "" for none)."""
    if model.parsed.built_in:
        return None, ""
    if not model.path:
        there = projectors_of(known, [model])
        return None, f"read with {there[0].parts[0].path}, which specllama pull fetches too" if there else ""
    match = find_projector(known, model.path)
    if match.path:
        return match.path, f"read with {match.path}"
    entry = model.parsed.entry or known.entry_of(model.path)
    if entry is None or entry.mmproj is None:
        return None, ""
    return None, f"specllama pull {model.name} fetches the projector that reads them"


def _draft_lines(drafts: Sequence[DraftFound]) -> Iterator[str]:
    if not drafts:
        yield "none known; copies of the text draft without a model"
    for draft in drafts:
        how = f"-md {draft.name} ({', '.join(filter(None, draft[1:]))})"
        yield f"used by itself: {draft.where}" if draft.name == AUTO else how


def params(n: int) -> str:
    """A number of weights: "8.03 B", "" for none."""
    unit, one = ("B", 1e9) if n >= 1e9 else ("M", 1e6)
    return f"{n / one:.3g} {unit}" if n else ""


def _head(header: Header, draft: str) -> str:
    """The head in a model, or else the one that drafts for it by itself. draft: the file that does."""
    with contextlib.suppress(SpecllamaError):
        if (head := read_head(header)) is not None:
            return f"{head.label}, drafts without another model"
        if os.path.isfile(draft) and (head := file_head(read_model(draft))) is not None:
            return f"{head.label} in {draft}, drafts without another model"
        if reason := unusable_head(header):
            return f"not usable: {reason}"
    return "none"


def _template(header: Header) -> str:
    if header.chat_template is None:
        return "none: run completes texts, chat cannot be used"
    able = [
        word for word, marks in (("tools", ("tools",)), ("thinking", _THINKS)) if _mentions(header, *marks)
    ]
    return f"for chat, with {' and '.join(able)}" if able else "for chat"


def _mentions(header: Header, *words: str) -> bool:
    return any(word in (header.chat_template or "") for word in words)


def licence_of(entry: ManifestEntry | None, header: Header | None, listed: str = "") -> str:
    """The licence of a model that is known by name, or as the hub lists it, or as its header states it."""
    stated = header and (header.text("general.license.name") or header.text("general.license"))
    return (entry.licence if entry else "") or listed or stated or "not stated"


def _drafts(known: Library, target: ResolvedModel, header: Header) -> Iterator[DraftFound]:
    """The drafts for a model: the one of -md auto, others on this disk, and known ones to download."""
    if is_head_file(header) or is_embedder(header):
        return
    seen = {os.path.realpath(target.path)} if target.path else set[str]()
    auto = known_draft(known, target)
    if auto is not None and auto.path == target.path:
        yield DraftFound(AUTO, "the head in the model", "")
    elif auto is not None:
        seen.add(os.path.realpath(auto.path))
        yield DraftFound(AUTO, auto.path, "")
    for name, path in _candidates(known, target):
        if (real := os.path.realpath(path)) not in seen:
            seen.add(real)
            with contextlib.suppress(SpecllamaError, OSError):
                if (why := _fits(header, read_model(path))) is not None:
                    yield DraftFound(name, "on disk", why)
    entry = target.parsed.entry
    for draft in known.manifest.drafts_for(entry) if entry is not None else ():
        name = draft.short_name
        if known.on_disk(known.parse(name, "NAME")) is None:
            yield DraftFound(name, f"specllama pull {name}", "")


def _candidates(known: Library, target: ResolvedModel) -> Iterator[tuple[str, str]]:
    """Names and paths of other models on this disk."""
    for model in installed_models(known):
        if not model.model.missing:
            yield model.name, str(model.files[0].link)
    if target.path:
        folder = os.path.dirname(os.path.abspath(target.path))
        with contextlib.suppress(OSError):
            for name in sorted(n for n in os.listdir(folder) if n.endswith(".gguf"))[:_MOST_BESIDE]:
                path = os.path.join(folder, name)
                yield path, path


def _fits(target: Header, draft: Header) -> str | None:
    """Why a model or head can draft for the target; None: it cannot, is too large, or makes vectors."""
    check_draft(draft)
    too_large = draft.bytes_per_token * _MUCH_SMALLER > target.bytes_per_token
    if not is_head_file(draft) and (too_large or is_embedder(draft)):
        return None
    verdict = check_any(target, draft)
    return f"vocabulary {verdict.verdict}" if verdict.ok else None
