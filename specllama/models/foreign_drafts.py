"""Drafts of another vocabulary for a target that has none of its own: which `-md auto` uses, which `tune`
tries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from specllama.errors import SpecllamaError, option
from specllama.gguf.header import Header, read_model
from specllama.gguf.identity import identity
from specllama.heads import is_head_file
from specllama.heads.check import check_draft
from specllama.models.demo import DemoStore
from specllama.models.measured_drafts import PAYS, DraftRecord, MeasuredDrafts
from specllama.models.names import DEMO
from specllama.models.resolve import Library, ParsedName, ResolvedModel
from specllama.pair.check import check_pair
from specllama.pair.notes import COSTLY_DRAFT
from specllama.pair.overlap import overlap
from specllama.pair.shared_tokens import Overlap
from specllama.text.terminal import printable


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
    """Which draft `-md auto` leaves out as it does not pay, and what was measured; "" where there is none.
    target: its path, header: its header.
    """
    best = _best(target, header)
    if best is None or best[0].pays:
        return ""
    record = best[0]
    return f"{_name(record)} is left out: {record.label}, and it has to gain {PAYS:.2f} x"


def _best(target: str, header: Header) -> tuple[DraftRecord, Overlap] | None:
    """The draft that gains most of those that are where they were, and what it shares with the target."""
    for record in MeasuredDrafts(header).all():
        shared = None
        with suppress(SpecllamaError, OSError):
            shared = _shared(record, target, header)
        if shared is not None:
            return record, shared
    return None


def _name(record: DraftRecord) -> str:
    return printable(os.path.basename(record.path))


def _shared(record: DraftRecord, target: str, header: Header) -> Overlap | None:
    """What the vocabularies share, None where the draft is not the one that was measured. Raises
    SpecllamaError, OSError where it cannot be read.
    """
    draft = read_model(record.path)
    if identity(draft) != record.model or (target and os.path.samefile(record.path, target)):
        return None
    check_draft(draft)
    return overlap(header, draft)[0]


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
