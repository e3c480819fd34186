"""Drafts of another vocabulary for a target without its own: which `-md auto` uses, which `tune` tries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

from specllama import wire
from specllama.config.store import Store, cache_dir
from specllama.errors import SpecllamaError, option
from specllama.gguf.header import Header, identity, read_model
from specllama.heads import is_head_file
from specllama.heads.check import check_draft
from specllama.models.demo import DemoStore
from specllama.models.memory.available import machine_key
from specllama.models.names import DEMO
from specllama.models.quants import ModelFiles, find_heads, gguf_names
from specllama.models.resolve import Library, ParsedName, ResolvedModel
from specllama.pair.check import COSTLY_DRAFT, check_any, check_pair
from specllama.pair.overlap import overlap
from specllama.pair.vocab import Overlap
from specllama.text.terminal import printable

# What drafts of other vocabularies gained for a target on this machine: `-md auto` uses only those that were
# measured to pay. `tune` predicts the gain from its measurements, and answers with such a draft measure it.
#
# One small file a target, in the cache.


PAYS = 1.05  # times as fast as without it: less is not worth the memory and the time of loading
FOLDER = "drafts"  # of the cache
_MAX_DRAFTS = 16  # of a target: those measured last
_MAX_SPEEDUP = 1000.0
Source = Literal["tune", "answers"]


@dataclass(frozen=True, slots=True)
class DraftRecord:
    """path: absolute. model: the draft's `identity`. speedup: predicted by "tune" over plain decoding,
    without: the same without the draft, from what the text repeats. Of "answers": of their rounds with the
    draft over such without it, which is 1. n_tokens: that this rests on. acceptance: share of the drafted
    tokens that were right; needed: from which drafts pay; None where that is not known.
    """

    path: str
    model: list[str | int]
    source: Source
    speedup: float
    without: float
    n_tokens: int
    acceptance: float | None = None
    needed: float | None = None

    @property
    def gain(self) -> float:
        """How many times as fast the text is as without this draft."""
        return self.speedup / max(1.0, self.without)

    @property
    def pays(self) -> bool:
        return self.gain >= PAYS

    @property
    def label(self) -> str:
        """The measurement, for people."""
        if self.source == "answers":
            return f"in answers here, rounds with it were {self.speedup:.2f} x as fast as without it"
        return (
            f"specllama tune predicted {self.speedup:.2f} x plain decoding, {self.without:.2f} x without it"
        )


class MeasuredDrafts:
    """The file of one target. target: its header. store: that in the cache by default."""

    def __init__(self, target: Header, store: Store | None = None) -> None:
        self._store = store or Store(cache_dir() / FOLDER)
        self._key = {"target": identity(target), "machine": machine_key()}

    def all(self) -> list[DraftRecord]:
        """All drafts that were measured, those that gain most first; what is malformed is left out."""
        return sorted(self._read(), key=lambda draft: -draft.gain)

    def of(self, draft: Header) -> DraftRecord | None:
        """The measurement of this draft, wherever its file is."""
        return next((record for record in self.all() if record.model == identity(draft)), None)

    def put(self, record: DraftRecord) -> None:
        """Store it in place of what was measured with this draft before."""
        with self._store.lock():
            kept = [one for one in self._read() if one.model != record.model]
            drafts = [asdict(one) for one in (*kept, record)][-_MAX_DRAFTS:]
            self._store.write(self._key, {"drafts": drafts})

    def _read(self) -> Iterator[DraftRecord]:
        for data in wire.stored(list[object], self._store.read(self._key).get("drafts"), []):
            with suppress(ValueError):
                one: DraftRecord = wire.from_plain(DraftRecord, data)
                shares = (one.acceptance or 0, one.needed or 0)
                if all(0 <= x <= _MAX_SPEEDUP for x in (one.speedup, one.without)) and max(shares) <= 1:
                    yield one


def foreign_draft(
    library: Library, target: ResolvedModel, header: Header, translates: bool
) -> ResolvedModel | None:
    """The draft that was measured to gain most for a target on this machine, if it is where it was, pays, and
    the tokens of drafts may be translated; a note says why it is used or left out, or what lets it be used.
    header: the target's.
    """
    best = _best(target.path, header)
    if best is None:
        return None
    record, shared = best
    about = f"{_name(record)}, of another vocabulary ({shared.label})"
    if not translates:
        if record.pays:
            what = option("draft_vocab", "auto")
            library.listener.note(f"{what} would use the draft {about}: {record.label}")
        return None
    if not record.pays:
        library.listener.note(f"the draft {left_out(target.path, header)}")
        return None
    library.listener.note(f"the draft {about} is used: {record.label}")
    return ResolvedModel(ParsedName(record.path), record.path)


def left_out(target: str, header: Header) -> str:
    """The draft that `-md auto` leaves out, and its measurement, "" for none; path and header: target's."""
    best = _best(target, header)
    if best is None or best[0].pays:
        return ""
    record = best[0]
    return f"{_name(record)} is left out: {record.label}, and it has to gain {PAYS:.2f} x"


def _best(target: str, header: Header) -> tuple[DraftRecord, Overlap] | None:
    """The draft that gains most of those that are where they were, and what it shares with the target."""
    for record in MeasuredDrafts(header).all():
        with suppress(SpecllamaError, OSError):
            draft = read_model(record.path)
            if identity(draft) == record.model and not (target and os.path.samefile(record.path, target)):
                check_draft(draft)
                if (shared := overlap(header, draft)[0]) is not None:
                    return record, shared
    return None


def _name(record: DraftRecord) -> str:
    return printable(os.path.basename(record.path))


def foreign_candidates(library: Library, target: Header) -> Iterator[str]:
    """Names and paths of drafts of another vocabulary that are worth a measurement: the demo model where it
    is small enough, and those that were measured before.
    """
    demo = DemoStore(library.environ)
    if demo.is_on_disk() and _may_draft(str(demo.path), target):
        yield DEMO
    for record in MeasuredDrafts(target).all():
        on_disk = demo.is_on_disk() and record.path == str(demo.path)
        if not on_disk and _may_draft(record.path, target):
            yield record.path


def _may_draft(path: str, target: Header) -> bool:
    """Whether a model can draft by translation, and reads little enough a token to pay."""
    try:
        draft = read_model(path)
        check_draft(draft)
    except (SpecllamaError, OSError):
        return False
    if is_head_file(draft) or draft.bytes_per_token >= COSTLY_DRAFT * target.bytes_per_token:
        return False
    return not check_pair(target, draft).ok and overlap(target, draft)[0] is not None


# Heads next to a model on disk, as `mtp-*.gguf` in the folder of the model or in a folder MTP in it.
#
# Names decide which files are looked at, their headers whether they fit.


MAX_LOOKED_AT = 16  # heads whose headers are read
_MARK = re.compile(r"(?:^|(?<=[-._]))(?:mtp|eagle-?3|dflash|dspark|assistant|head|qat)(?=[-._]|$)")


def head_beside(path: str, target: Header) -> tuple[str, str]:
    """(the head for a model, ""), or ("", why the first one that was made for it by its name does not fit).

    path: of the model's first part. ("", "") if there is none. Files that cannot be read are passed over.
    """
    reason = ""
    for head in list(heads_named_for(path))[:MAX_LOOKED_AT]:
        with suppress(SpecllamaError, OSError):
            verdict = check_any(target, read_model(head))
            if verdict.ok:
                return head, ""
            reason = reason or f"{os.path.basename(head)}: {verdict.reason}"
    return "", reason


def heads_named_for(path: str) -> Iterator[str]:
    """The files of heads next to a model whose names go with the model's, those next to it first."""
    folder, name = os.path.split(path)
    wanted = _stem(name)
    for directory in (folder, os.path.join(folder, "MTP")):
        in_front = f"{os.path.basename(directory)}/"  # by which heads in a folder MTP are known
        for model in find_heads(in_front + name for name in gguf_names(directory)):
            file = os.path.basename(model.first)
            stem = _stem(file)
            if file != name and (stem in wanted or wanted in stem):
                yield os.path.join(directory, file)


def _stem(name: str) -> str:
    """The common part of the names of a model and of its head: without quantisation, part and kind."""
    name = re.sub(r"-\d{5}-of-\d{5}\.gguf$", ".gguf", name.lower())
    quant = ModelFiles({1: name}).quant.lower()
    name = name.removesuffix(".gguf")
    if quant:
        name = name.replace(quant, "")
    return re.sub(r"[-._]+", "-", _MARK.sub("", name)).strip("-")
