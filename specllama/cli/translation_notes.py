"""What `pair-check` says about a draft of another vocabulary: whether it can draft, and whether that pays."""

from __future__ import annotations

from collections.abc import Iterator

from specllama.errors import Note
from specllama.gguf.header import Header
from specllama.models.measured_drafts import PAYS, DraftRecord, MeasuredDrafts
from specllama.pair.notes import COSTLY_DRAFT, costs
from specllama.pair.shared_tokens import Overlap


def translation_notes(
    target: Header, draft: Header, shared: Overlap | None, problem: str, translates: bool
) -> Iterator[Note]:
    """The notes on a draft that llama.cpp refuses. shared: what the vocabularies share, None if its tokens
    cannot be translated, because of this problem. translates: whether --draft-vocab is auto.
    """
    if shared is None:
        yield Note(f"its tokens cannot be translated: {problem}")
        return
    can = "its tokens are translated" if translates else "can draft with --draft-vocab auto"
    yield Note(f"{shared.label}, {can}")
    yield from costs(target, draft)
    record = MeasuredDrafts(target).of(draft)
    if record is not None:
        yield Note(_measured(record))
    elif 0 < draft.bytes_per_token < target.bytes_per_token:  # others cannot pay, which `costs` says
        yield Note(_not_measured(target, draft))


def _measured(record: DraftRecord) -> str:
    if record.pays:
        return f"{record.label}: -md auto uses it, with --draft-vocab auto"
    text = f"{record.label}: -md auto leaves it out, as it needs {PAYS:.2f} x"
    if record.acceptance is None or record.needed is None:
        return text
    if record.needed >= 1:
        return f"{text}; no draft can pay at these costs"
    shares = [f"{100 * share:.0f} %" for share in (record.acceptance, record.needed)]
    return f"{text}; {shares[0]} of its tokens were right, and drafts pay from {shares[1]} here"


def _not_measured(target: Header, draft: Header) -> str:
    text = (
        f"-md auto uses it only if it was measured to pay here, from {PAYS:.2f} x: "
        "specllama tune -m MAIN -md DRAFT --draft-vocab auto"
    )
    ratio = draft.bytes_per_token / target.bytes_per_token
    if not 0.01 <= ratio < COSTLY_DRAFT:  # `costs` says it of costly ones
        return text
    return f"{text}; by its size alone more than {100 * ratio:.0f} % of its tokens must be right"
