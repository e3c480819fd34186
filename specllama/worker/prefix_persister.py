"""The engine's prefixes on disk: which texts are written, and which of those there a request needs.

Texts are copied when the engine is idle and when it ends; a state that a request needs is read into the
prefix store, which uses it as one of its own.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from specllama.clock import sleep
from specllama.config.load import LoadSettings, ModelSettings
from specllama.core.interfaces import Saved
from specllama.core.prefix.store import MIN_SHARED, PrefixStore, Slot
from specllama.core.prefix.stored import KINDS, CachedSequence, Ids, PartialState, as_ids, n_common
from specllama.gguf.header import FileIdentity, Header, file_identity, part_identities
from specllama.llama.context import LlamaContext
from specllama.llama.library import build_info, system_info
from specllama.prefix_disk.disk_store import MAX_PARTS, DiskStore, PrefixRecord
from specllama.prefix_disk.scopes import model_key
from specllama.prefix_disk.state_file import State
from specllama.worker.profile import target_key

BUSY_SECONDS = 5.0  # after the end of a text it is copied between rounds too
_WAIT_SECONDS = 0.05  # for memory, or until others have been written
IDLE_SECONDS = 0.3  # after the last answer, before texts are copied: a next turn may follow at once
END_SECONDS = 4.0  # at most, for writing at the end
_MAX_NOTED = 256  # texts that were written
WHOLE, _DRAFT, _AT = "target", "draft", "at"  # names of the parts of a record


class PrefixMatch(NamedTuple):
    """A state on disk for a request. scope: of the caches. n: ids that it serves. priority: in memory."""

    state: State
    scope: str
    n: int
    priority: float


class PrefixPersister:
    """Writes the texts of the engine's prefix store to the disk. open_disk: makes the store of this model and
    its directory, which waits until there is something to write, unless is_there. min_prefill_seconds: that
    evaluating a text again would take, from which on it is written. clock: seconds. draft_key: of the draft
    model's states, "" where none are kept.
    """

    def __init__(
        self,
        store: PrefixStore,
        open_disk: Callable[[], DiskStore],
        is_there: bool,
        min_prefill_seconds: float,
        clock: Callable[[], float],
        draft_key: str = "",
    ) -> None:
        self._draft_part = draft_part(draft_key)
        self._store, self._min_seconds, self._clock = store, min_prefill_seconds, clock
        self._open_disk = open_disk
        self._disk = open_disk() if is_there else None
        self._scopes: dict[str, str] = {}  # on disk, by those of the engine's caches
        self._written: list[tuple[str, Ids]] = []
        self._read: WeakValueDictionary[tuple[str, str], CachedSequence] = WeakValueDictionary()
        self._due: float | None = None
        self._since = 0.0  # when the first text ended that was not written yet

    @property
    def disk(self) -> DiskStore:
        """The store, opened when it is first needed."""
        if self._disk is None:
            self._disk = self._open_disk()
        return self._disk

    @property
    def due_in(self) -> float | None:
        """Seconds until `persist` has something to do, if no request arrives; None for never."""
        return None if self._due is None else max(0.0, self._due - self._clock())

    @property
    def overdue(self) -> bool:
        """Whether `persist` is to be called between two rounds, because the engine is never idle."""
        return self.due_in == 0.0 and self._clock() - self._since > BUSY_SECONDS

    def generation_ended(self) -> None:
        """Copy worthwhile texts once the engine has been idle for a moment."""
        now = self._clock()
        self._since = now if self._due is None else self._since
        self._due = now + IDLE_SECONDS

    def find(self, ids: Sequence[int], scope: str, disk_scope: str) -> PrefixMatch | None:
        """The state on disk that serves a prompt best, where using it is faster than reading the text. scope:
        of the engine's caches; disk_scope: on disk, "" for none.
        """
        if disk_scope:
            self._scopes[scope] = disk_scope
        store, wanted = self._store, as_ids(ids)
        if not disk_scope or len(wanted) <= MIN_SHARED or self._disk is None:
            return None
        known, most = store.longest(wanted, scope), len(wanted) - 1
        best: tuple[float, int, State | None] = (0.0, 0, None)
        for candidate, n_tokens in self.disk.find(disk_scope, wanted):
            n = self._n_usable(candidate, min(n_tokens, most))
            gain = (n - known) * store.row_seconds - self.disk.load_seconds(candidate.meta.n_bytes)
            if n > known + MIN_SHARED and gain > best[0]:
                best = gain, n, candidate
        _, n, state = best
        if state is None or not self._has_memory(state.meta.n_bytes):
            return None
        return PrefixMatch(state, scope, n, store.state_cache.of_text(n, 0, state.meta.n_bytes))

    def read(self, match: PrefixMatch) -> CachedSequence | None:
        """The text of a state that was found; None where it cannot be used. In any thread, one at a time."""
        key, meta = (match.state.name, match.scope), match.state.meta
        text = self._read.get(key)  # by a request that waits for the same one
        if text is None:
            if not self._has_memory(meta.n_bytes):  # others were read since it was found
                return None
            others = {name for name in meta.part_names if name.startswith(_DRAFT)} - {self._draft_part}
            record = self.disk.read(match.state, meta.part_names - others)
            if record is None or WHOLE not in record.parts:
                return None
            text = _stored(record, match.scope, match.priority, record.parts.get(self._draft_part))
            self._read[key] = text
        return text

    def persist(self) -> None:
        """Copy a text, of an idle slot or one that was moved out of the context, to be written; the next one
        in the next call. Where there is no memory for the copy yet, later.
        """
        now = self._clock()
        self._due = None
        idle = self._store.idle()
        waiting = [s for s in idle if s.kept and self._is_worth(s.scope, as_ids(s.ids))]
        for i, slot in enumerate(waiting, 1):
            n_bytes = self._store.target.size(slot.seq_id)
            delay = self.disk.delay(n_bytes)
            if delay is None or not self._has_memory(n_bytes):
                continue
            if delay or not self._store.target.prepare_save(slot.seq_id):
                self._due = now + max(delay, _WAIT_SECONDS)
                return
            if self._keep_slot(slot) and i < len(waiting):
                self._due = now
                return
        for text in self._store.state_cache.texts:
            if not text.kept or not self._is_worth(text.scope, text.ids):
                continue
            delay = self.disk.delay(text.n_bytes)
            if delay:
                self._due = now + delay
            elif delay is not None:
                parts = text_parts(text.saved, text.partials, text.draft, self._draft_part)
                self._put(text.scope, text.ids, parts)

    def close(self) -> None:
        """Write worthwhile texts, in bounded time."""
        until = self._clock() + END_SECONDS
        self.persist()
        while (due := self.due_in) is not None and self._disk is not None and self._clock() < until:
            wait = min(due, _WAIT_SECONDS)
            if self._disk.flush(wait):
                sleep(wait)  # for memory: nothing is being written
            self.persist()
        if self._disk is not None:
            self._disk.flush(max(0.0, until - self._clock()))
            self._disk.close()

    def _has_memory(self, n_bytes: int) -> bool:
        """Whether so much memory may be used for a while."""
        room = self._store.room
        return room is not None and room(n_bytes)

    def _keep_slot(self, slot: Slot) -> bool:
        saved = self._store.target.save(slot.seq_id)
        if saved is None:
            return False
        draft = self._store.draft_of(slot) if self._draft_part else None
        parts = text_parts(saved, slot.partials, draft, self._draft_part)
        return self._put(slot.scope, as_ids(slot.ids), parts)

    def _is_worth(self, scope: str, ids: Ids) -> bool:
        """Whether the ids that no text on disk covers are expensive enough to evaluate."""
        row_seconds = self._store.row_seconds
        can = bool(self._scopes.get(scope)) and len(ids) > MIN_SHARED
        if not can or len(ids) * row_seconds < self._min_seconds:
            return False
        known = max((n_common(ids, other) for of, other in self._written if of == scope), default=0)
        n_new = len(ids) - known
        return n_new > 0 and n_new * row_seconds >= self._min_seconds

    def _put(self, scope: str, ids: Ids, parts: Mapping[str, Any]) -> bool:
        seconds = len(ids) * self._store.row_seconds
        done = self.disk.put(PrefixRecord(self._scopes[scope], ids, parts, min(seconds, 1e8)))
        if done:
            self.note(scope, ids)
        return done

    def note(self, scope: str, ids: Ids) -> None:
        """A text was written, or read from the disk: it need not be written again."""
        self._written = [*self._written[-_MAX_NOTED:], (scope, ids)]

    def _n_usable(self, state: State, n: int) -> int:
        """How many of the first n ids of a prompt, which the state has too, it serves."""
        if not self._store.needs_partials or n == state.n_tokens:
            return n
        keys = (_partial_key(name) for name in state.meta.part_names)
        return max((key[0] for key in keys if key is not None and key[0] <= n), default=0)


def draft_part(key: str) -> str:
    """The name of the part with the cache of the draft model of this key; "" for none."""
    return f"{_DRAFT} {key}" if key else ""


def text_parts(
    saved: Saved, partials: Sequence[PartialState], draft: Saved | None, draft_name: str
) -> dict[str, Saved]:
    """The parts of the record of a text: its cache, the draft model's, and the partial states worth most.
    draft: None for none. draft_name: see `draft_part`.
    """
    drafts = {draft_name: draft} if draft is not None and draft_name else {}
    there = sorted((p for p in partials if p.state is not None), key=lambda p: -p.priority)
    return {WHOLE: saved, **drafts} | {f"{_AT} {p.n} {p.kind}": p.state for p in there[: MAX_PARTS - 2]}


def _partial_key(name: str) -> tuple[int, str] | None:
    """(Number of ids, kind) from the name of a part."""
    words = name.split(" ")
    if len(words) != 3 or words[0] != _AT or not words[1].isdecimal() or words[2] not in KINDS:
        return None
    return int(words[1]), words[2]


def partials_of(record: PrefixRecord, priority: float) -> list[PartialState]:
    partials, before = list[PartialState](), 0
    parts = [(key, part) for name, part in record.parts.items() if (key := _partial_key(name)) is not None]
    for (n, kind), part in sorted(parts, key=lambda one: one[0][0]):
        partials.append(PartialState(n, kind, part, len(part), n - before, priority))  # type: ignore[arg-type]
        before = n
    return partials


def _stored(record: PrefixRecord, scope: str, priority: float, draft: Any) -> CachedSequence:
    saved, partials = record.parts[WHOLE], partials_of(record, priority)
    n_bytes = len(saved) + (len(draft) if draft is not None else 0)
    return CachedSequence(
        record.ids, scope, saved, n_bytes, partials, len(record.ids), 0, priority, draft=draft
    )


# The key under which the prefix states of a loaded model are kept on disk: what could change a state.
#
# The states of a target and of a draft model have keys of their own. Not part of a key, because no state
# depends on it: the number of slots, the size of the context (but for models with other RoPE factors in long
# ones), sampling, drafters.


_IN_KEY = (
    "n_batch", "n_ubatch", "tensor_parallel_size", "rope_scaling", "rope_scale", "rope_freq_base",
    "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow",
    "yarn_beta_fast",
)  # fmt: skip


def model_files(header: Header, own: ModelSettings, rpc: Sequence[str] = ()) -> tuple[FileIdentity, ...]:
    """The files of a model and its adapters; to be read before llama.cpp opens them, and compared after, so
    that one that is replaced meanwhile is seen. () where they are not known, or with RPC workers. own: the
    model's settings.
    """
    try:
        identities = (*header.once(part_identities), *(file_identity(path) for path, _ in own.lora))
        return identities if not rpc else ()
    except OSError:
        return ()


def prefix_key(
    header: Header, context: LlamaContext, files: Sequence[FileIdentity], settings: LoadSettings
) -> str:
    """The key of the states of a context, "" where the files are not known or one was replaced while it was
    loaded: nothing is to be kept or found then.

    files: from `model_files`, () where they are not known. settings: of the load; those of the context's own
    model are `context.model`'s.
    """
    if not files or not all(file.unchanged() for file in files):
        return ""
    own = context.model.settings
    scales = [scale for _, scale in own.lora]
    more = {name: getattr(own, name) for name in _IN_KEY}
    build = build_info()
    # The context beyond which llama.cpp uses the RoPE factors of long ones (get_rope_factors there).
    original = header.integer(f"{header.architecture}.rope.scaling.original_context_length")
    n_ctx_original = own.yarn_orig_ctx or original or header.n_ctx_train
    facts: dict[str, object] = {
        **target_key(header, own, context),
        **more,
        "lora": scales,
        "versions": [build["llama_cpp_python"], build["llama_cpp"], build["ggml"], system_info()],
        "system": [platform.system(), platform.machine()],
        "long": context.n_ctx + context.n_spare > n_ctx_original,
        "rollback": context.max_rollback,
        "swa_full": own.swa_full is not False,
        "rpc": list(settings.rpc),
        "exact": [settings.exact, settings.exact_width],
    }
    return model_key(files, facts)
