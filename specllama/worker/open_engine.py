"""Opens an engine: loads a pair, and makes of it what accepts, decodes, measures and keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from specllama.client import protocol
from specllama.clock import running_time
from specllama.config.load import AUTO
from specllama.config.store import Store
from specllama.core.engine import Engine
from specllama.core.interfaces import SavingDrafter
from specllama.core.prefix.store import PrefixStore
from specllama.errors import Note, SpecllamaError, option, warning
from specllama.models.memory.available import available_memory
from specllama.prefix_disk.budget import automatic_budget
from specllama.prefix_disk.directory import StateDirectory, default_directory
from specllama.prefix_disk.disk_store import DiskStore
from specllama.text.template_process import IsolatedTemplate, TemplateProcess
from specllama.worker.accepted import Send
from specllama.worker.exact import ExactMode
from specllama.worker.idle import IdleMeasurer
from specllama.worker.intake import RequestIntake
from specllama.worker.kept_prefixes import KeptPrefixes
from specllama.worker.load_info import load_info
from specllama.worker.loaded_engine import LoadedEngine
from specllama.worker.loader import Loaded, load
from specllama.worker.output import SequenceOutput
from specllama.worker.prompts import Prompts
from specllama.worker.queries import compile_template
from specllama.worker.slot_actions import SlotActions
from specllama.worker.template_notes import template_notes
from specllama.worker.tool_calls import ToolCalls

_OFFLOAD_SHARE = 0.25  # of the free memory that one offloaded idle cache may occupy
_CACHE_SHARE = 0.25  # of what is free after the load, for all prefix states


def open_engine(
    order: protocol.Load,
    send: Send,
    store: Store,
    post: Callable[[Callable[[], None]], None] | None,
) -> tuple[LoadedEngine, protocol.Ready]:
    """The engine, and its description for the front. send, post: as in EngineCore. Raises what `load` raises,
    and UsageError for a width of exact decodes that does not fit.
    """
    process = TemplateProcess()  # it starts while the models are loaded
    try:
        loaded = load(order.settings, send, store, order.open_draft)
    except BaseException:
        process.close()
        raise
    settings, engine = loaded.settings, _engine(loaded)
    idle = IdleMeasurer(loaded, engine, order.measure_when_idle, running_time)
    template, problem = compile_template(loaded, process)
    prompts = _prompts(loaded, template, problem)
    kept, running = _kept_prefixes(loaded, engine.scheduler.store, send), list[SequenceOutput]()
    idle.apply()
    exact = ExactMode(loaded, engine, idle, running_time)
    opened = LoadedEngine(
        loaded=loaded,
        engine=engine,
        running=running,
        intake=RequestIntake(loaded, engine, prompts, running, send, post, kept),
        idle=idle,
        exact=exact,
        slot_actions=SlotActions(
            engine, loaded.prefix_key, loaded.header.name, send, running_time, loaded.draft_prefix_key
        ),
        send=send,
        kept=kept,
    )
    notes = _template_notes(loaded, template, problem)
    if settings.exact:
        exact.decide()
        notes += exact.notes
    else:
        exact.hold_widths()
    works = template is not None and problem is None
    return opened, protocol.Ready(load_info(loaded, works, [*notes, *idle.notes()], prompts.calls))


def _engine(loaded: Loaded) -> Engine:
    settings = loaded.settings
    engine = Engine(
        loaded.context,
        loaded.policy(),
        end_ids=loaded.model.end_ids,
        suppressed=loaded.model.suppressed,
        clock=running_time,
        exact=settings.exact,
        room=lambda size: not settings.rpc and size < _OFFLOAD_SHARE * available_memory(),
        cache_budget=_cache_budget(settings.cache_ram),
        max_partials=settings.ctx_checkpoints,
        draft_tree=settings.draft_tree or 0,
    )
    savers = (d for d in loaded.drafters if isinstance(d, SavingDrafter))
    engine.scheduler.store.copies.drafter = next(savers, None)
    return engine


def _cache_budget(cache_ram: int) -> float:
    """Bytes for prefix states outside of the context; AUTO: a quarter of what is free after the load."""
    return cache_ram if cache_ram != AUTO else _CACHE_SHARE * available_memory()


def _prompts(loaded: Loaded, template: IsolatedTemplate | None, problem: SpecllamaError | None) -> Prompts:
    settings, context = loaded.settings, loaded.context
    source = settings.chat_template or loaded.header.chat_template or ""
    calls = ToolCalls(loaded.model, source, template if problem is None else None, settings.tool_format)
    return Prompts(
        loaded.model,
        context.n_ctx,
        context.n_batch,
        template,
        problem,
        calls,
        with_boundaries=not context.cuts_anywhere,
    )


def _template_notes(
    loaded: Loaded, template: IsolatedTemplate | None, problem: SpecllamaError | None
) -> list[Note]:
    if problem is not None:
        return [warning(f"{problem.message}; {option('raw')} works without it")]
    return [*template_notes(loaded.model, template)] if template is not None else []


def _kept_prefixes(loaded: Loaded, store: PrefixStore, send: Send) -> KeptPrefixes | None:
    """The prompts of the model on disk, None where none are kept."""
    s, directory = loaded.settings, default_directory()
    if not s.cache_disk or not loaded.prefix_key or s.rpc:
        return None
    budget, held = s.cache_disk, 0
    if budget == AUTO:
        with contextlib.suppress(OSError):
            held = sum(StateDirectory(directory).sizes().values())
        budget = automatic_budget(directory, held)
    if budget <= 0:
        return None
    open_disk = partial(
        DiskStore,
        directory,
        budget,
        loaded.prefix_key,
        model=loaded.header.name,
        say=lambda text: send(protocol.Notice(text)),
    )
    return KeptPrefixes(
        store, open_disk, directory.exists(), s.kept_seconds, running_time, loaded.draft_prefix_key
    )
