"""Prepares a target and a draft for loading: resolves names, checks the pair from headers, downloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specllama.config.load import LoadSettings
from specllama.data import DEMO_HEAD, EMBEDDED_DRAFT
from specllama.errors import (
    GGUFError,
    IncompatiblePairError,
    IntegrityError,
    ResourceError,
    UsageError,
    option,
)
from specllama.models.demo import DemoStore
from specllama.models.names import DEMO, PYDOC
from specllama.models.projectors import described, projectors_of, with_projector
from specllama.models.quants import size
from specllama.models.resolve import Library, ParsedName, ResolvedModel

if TYPE_CHECKING:
    from specllama.gguf.header import Header

TARGET, DRAFT = option("model"), option("draft_model")  # what messages call the two


def prepare(library: Library, settings: LoadSettings, force: bool = False) -> LoadSettings:
    """The settings with paths instead of names, once both models are on disk: those that are not are
    downloaded, a target with its projector. Without a target: the demo model, or the embedded pair where the
    demo model is not on disk.

    force: download even if the headers show that the models cannot be used. Raises what `pair_on_disk`,
    Library.find, `with_projector` and `download` raise, and what `check` raises before anything but headers
    is downloaded.
    """
    (target, draft), vocab = _names(library, settings), settings.draft_vocab
    paths = pair_on_disk(library, target, draft, vocab)
    if paths is None:
        models, theirs = [library.find(target, TARGET)], None
        if draft == "auto":
            theirs = known_draft(library, models[0], vocab)
        elif draft != "none":
            theirs = find_draft(library, draft, DRAFT)
        models += [theirs] if theirs is not None else []
        images = settings.mmproj == ""
        paths = prepare_models(library, models, True, force=force, draft_vocab=vocab, images=images)
    return with_projector(library, _with_paths(settings, paths))


def prepare_embedder(library: Library, settings: LoadSettings) -> LoadSettings:
    """The settings of an embedding model with its path, once it is on disk. Raises what Library.find,
    `check_embedder` and `download` raise.
    """
    from specllama.heads.check import check_embedder

    model = library.find(settings.target.path, option("embeddings"))
    try:
        check_embedder(library.header(model), settings.pooling or "auto")
    except (GGUFError, UsageError) as error:
        raise error if error.option else error.prefixed(f"{option('embeddings')}: ") from None
    path = model.path or prepare_models(library, [model], pair=False, images=False)[0]
    return replace(settings, target=replace(settings.target, path=path))


def prepare_if_on_disk(library: Library, settings: LoadSettings) -> LoadSettings | None:
    """As `prepare`, but None if a model must be downloaded. Raises as `pair_on_disk`, `with_projector`."""
    paths = pair_on_disk(library, *_names(library, settings), settings.draft_vocab)
    return None if paths is None else with_projector(library, _with_paths(settings, paths))


def _names(library: Library, settings: LoadSettings) -> tuple[str, str]:
    draft = "none" if settings.draft is None else settings.draft.path
    return settings.target.path or _default_target(library), draft


def _default_target(library: Library) -> str:
    demo = DemoStore(library.environ)
    if demo.is_on_disk():
        return DEMO
    n_bytes = size(demo.model.package_bytes)
    library.listener.warning(
        "the tiny embedded model answers, which knows only a little about Python; "
        f"specllama pull demo fetches a real one ({n_bytes})"
    )
    return PYDOC


def _with_paths(settings: LoadSettings, paths: Sequence[str]) -> LoadSettings:
    """The settings with these paths; without a draft if there is no path for it."""
    target, draft = replace(settings.target, path=paths[0]), None
    if settings.draft is not None and len(paths) > 1:
        draft = replace(settings.draft, path=paths[1])
    return replace(settings, target=target, draft=draft)


def pair_on_disk(library: Library, target: str, draft: str, draft_vocab: str = "strict") -> list[str] | None:
    """The paths of a target and, if there is one, of its draft; None if one is not on disk. Uses no network.

    draft: "auto" for the first known draft that is on disk, "none" for none. draft_vocab: see LoadSettings.
    Raises UsageError, NotFoundError, ConfigError.
    """
    models = [library.on_disk(library.parse(target, TARGET), TARGET)]
    if draft == PYDOC:
        models.append(_embedded_draft())
    elif draft not in ("none", "auto"):
        models.append(library.on_disk(library.parse(draft, DRAFT), DRAFT))
    there = [model for model in models if model is not None]
    if len(there) < len(models):
        return None
    if draft == "auto" and (known := known_draft(library, there[0], draft_vocab)) is not None:
        there.append(known)
    return [model.path for model in there]


def find_draft(library: Library, name: str, argument: str) -> ResolvedModel:
    """The draft of this name; the embedded pair's is called as its target. Raises as Library.find."""
    return _embedded_draft() if name == PYDOC else library.find(name, argument)


def prepare_models(
    library: Library,
    models: Sequence[ResolvedModel],
    pair: bool,
    force: bool = False,
    draft_vocab: str = "strict",
    images: bool = True,
) -> list[str]:
    """The paths of models, downloaded if they are not on disk, with notes on size, licence and memory.

    pair: the second is a draft for the first, and the pair is checked before the download. images: download
    projectors too, but not that of a draft. Raises what `check`, `projectors_of` and `download` raise.
    """
    from specllama.models.hub.pull import download, plan

    projectors = projectors_of(library, models[: 1 if pair else None]) if images else []
    todo = plan(library, [*models, *projectors])
    for model in models:
        if model.listing is not None and model.files is not None:
            licence = model.parsed.entry.licence if model.parsed.entry is not None else ""
            n_bytes = size(sum(file.size for file in model.parts))
            library.listener.note(
                f"{model.name}: {model.listing.name.repo}/{model.files.first}, {n_bytes}, "
                f"licence: {licence or model.listing.licence or 'not stated'}"
            )
    for projector in projectors:
        library.listener.note(described(projector))
    todo.check()
    if todo.missing:
        free = "" if todo.free is None else f", {size(todo.free)} free"
        library.listener.note(f"{size(todo.missing)} to download into {todo.root}{free}")
    elif todo.items:
        library.listener.note("all of it is on disk")
    check(library, models, pair, force, draft_vocab, next(iter(projectors), None))
    return download(library, [*models, *projectors])[: len(models)]


def check(
    library: Library,
    models: Sequence[ResolvedModel],
    pair: bool,
    force: bool,
    draft_vocab: str = "strict",
    projector: ResolvedModel | None = None,
) -> None:
    """Check the headers of models, by Range requests if they are on the hub. projector: of the first one.

    Raises GGUFError, UsageError or IncompatiblePairError for what cannot be run; with `force` only warns.
    """
    from specllama.gguf.architectures import is_embedder
    from specllama.heads.check import check_draft, check_embedder, check_model
    from specllama.pair.overlap import check_translated

    headers: list[Header] = []
    try:
        for model in models:
            header = library.header(model)
            embeds = not pair and is_embedder(header)
            (check_draft if pair and headers else check_embedder if embeds else check_model)(header)
            headers.append(header)
        if pair and len(headers) > 1:
            verdict = check_translated(headers[0], headers[1], draft_vocab == "auto")
            if not verdict.ok:
                force_it = f"download anyway with {option('force')}"
                hint = f"choose another draft (specllama models), or {force_it}"
                raise IncompatiblePairError(f"target and draft do not fit together: {verdict.reason}", hint)
            library.listener.note(f"the vocabularies are {verdict.verdict}: {verdict.reason}")
            for note in verdict.notes:
                tell = library.listener.warning if note.severity == "warning" else library.listener.note
                tell(note.message)
    except (IntegrityError, UsageError, IncompatiblePairError) as error:
        if not force:
            raise
        library.listener.warning(error.message)
        return
    if pair or len(headers) == 1:
        _note_memory(library, headers, projector)


def _note_memory(library: Library, headers: Sequence[Header], projector: ResolvedModel | None = None) -> None:
    """Note whether the memory is sufficient without devices, which are unknown before loading. A head inside
    the model is counted where it will be used. projector: of the target.
    """
    from specllama.gguf.projector import read_projector
    from specllama.heads import is_head_file
    from specllama.models.memory.available import available_memory
    from specllama.models.memory.cost import image_memory
    from specllama.models.memory.plan import PlanSettings, plan_memory
    from specllama.pair.check import own_head

    target, draft = headers[0], headers[1] if len(headers) > 1 else None
    settings, problem = PlanSettings(available=available_memory()), ""
    if projector is not None:
        images = image_memory(read_projector(library.header(projector)), "auto", False)
        settings = replace(settings, images=images)
    own = None if draft is not None and is_head_file(draft) else own_head(target)[0]
    for head in [None] if own is None else [own.head, None]:
        try:
            memory = plan_memory(target, draft or head, settings, head if draft is not None else None)
            break
        except ResourceError as error:
            problem = error.message
    else:
        library.listener.warning(f"{problem} (without a GPU)")
        return
    about = f"{size(memory.host)} of memory with a context of {memory.n_ctx} tokens"
    library.listener.note(f"it will take about {about}, {size(memory.available)} are available")


def known_draft(library: Library, target: ResolvedModel, draft_vocab: str = "strict") -> ResolvedModel | None:
    """The target itself where it carries a head; else a head next to it; else the draft that models.toml
    names for it, if that is on disk and compatible; else, where `draft_vocab` lets tokens be translated, a
    draft of another vocabulary that was measured to pay here. The draft of the embedded target is the
    embedded one, the head of the demo model comes with specllama.
    """
    if target.parsed.built_in == PYDOC:  # needs no header, whose reader takes 50 ms to import
        return _embedded_draft()
    if target.parsed.built_in == DEMO and target.path:
        return _demo_head()
    try:
        header = library.header(target)
    except GGUFError:
        return None  # whoever loads the target says what is wrong
    own = own_draft(library, target, header)
    if own is not None:
        return own
    from specllama.models.foreign_drafts import foreign_draft

    return foreign_draft(library, target, header, draft_vocab == "auto")


def own_draft(library: Library, target: ResolvedModel, header: Header) -> ResolvedModel | None:
    """As `known_draft`, without drafts of another vocabulary. header: the target's."""
    if target.parsed.built_in == PYDOC:
        return _embedded_draft()
    from specllama.gguf.header import read_model
    from specllama.heads import read_head, unusable_head
    from specllama.models.foreign_drafts import head_beside
    from specllama.pair.check import check_any

    if read_head(header) is not None:
        return target
    if target.parsed.built_in == DEMO and check_any(header, read_model(str(DEMO_HEAD))).ok:
        return _demo_head()
    if reason := unusable_head(header):
        library.listener.note(f"the head of the model is not used: {reason}")
    if target.path:
        path, reason = head_beside(target.path, header)
        if path:
            library.listener.note(f"the head {path} is used, as it is next to the model")
            return ResolvedModel(ParsedName(path), path)
        if reason:
            library.listener.note(f"a head next to the model does not fit: {reason}")
    return _listed_draft(library, target, header)


def _listed_draft(library: Library, target: ResolvedModel, header: Header) -> ResolvedModel | None:
    """The draft in models.toml, if it is on disk and compatible; a note says why it is not used."""
    from specllama.pair.check import check_any

    draft, known = library.draft_for(target)
    if draft is None:
        if known:
            name = known[0].short_name
            text = f"a draft is known and not on disk: {option('draft_model', name)} downloads it"
            library.listener.note(text)
        return None
    try:
        verdict = check_any(header, library.header(draft))
        problem = "" if verdict.ok else f"does not fit: {verdict.reason}"
    except (IntegrityError, UsageError) as error:
        problem = f"cannot be used: {error.message}"
    if problem:
        library.listener.note(f"{draft.name} is known as a draft and {problem}")
        return None
    return draft


def _demo_head() -> ResolvedModel:
    return ResolvedModel(ParsedName(str(DEMO_HEAD)), str(DEMO_HEAD))


def _embedded_draft() -> ResolvedModel:
    return ResolvedModel(ParsedName(PYDOC, built_in=PYDOC), str(EMBEDDED_DRAFT))
