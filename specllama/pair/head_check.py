"""The check of a head against its target: whether llama.cpp can run the two together, from the headers alone.

Where llama.cpp has no check of its own it aborts the process, so a head that does not fit is refused here.
Reads no model file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from specllama.errors import Note, warning
from specllama.gguf.architectures import HYBRID, RECURRENT, ROLLBACK
from specllama.gguf.header import Header
from specllama.gguf.trimmed import is_trimmed
from specllama.heads import file_head, is_head_file, read_head, unusable_head
from specllama.heads.kind import HeadInfo
from specllama.pair.check import PairVerdict, check_pair
from specllama.pair.notes import trimmed

COSTLY_STEP = (
    0.3  # ratio of bytes read, a step of the head to a token of the target, from which it rarely pays
)


@dataclass(frozen=True)
class HeadVerdict:
    """The result of the check. vocabulary: of a head with a file of its own; None for MTP inside the model,
    whose vocabulary is the model's.
    """

    verdict: Literal["identical", "compatible", "incompatible"]
    reason: str
    head: HeadInfo
    vocabulary: PairVerdict | None = None
    notes: tuple[Note, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the head can be used."""
        return self.verdict != "incompatible"


def check_any(target: Header, draft: Header) -> PairVerdict | HeadVerdict:
    """Whether a draft, a model or a head, can propose tokens for a target. Raises GGUFError for an incomplete
    head.
    """
    head = file_head(draft)
    return check_pair(target, draft) if head is None else check_head(target, head)


def own_head(target: Header) -> tuple[HeadVerdict | None, str]:
    """(the verdict on the head inside a target, ""), or (None, why it cannot be used, "" if there is none).

    The header must have passed `check_model`.
    """
    head = read_head(target)
    if head is None or head.own_file:
        return None, unusable_head(target)
    verdict = check_head(target, head)
    return (verdict, "") if verdict.ok else (None, verdict.reason)


def check_head(target: Header, head: HeadInfo) -> HeadVerdict:
    """Whether a head can draft for a target. The headers must have passed `check_model` and `check_draft`."""
    vocabulary = check_pair(target, head.header) if head.own_file else None
    reason = next(_refusals(target, head), None)
    if reason is None and vocabulary is not None and not vocabulary.ok:
        reason = vocabulary.reason
    if reason is not None:
        return HeadVerdict("incompatible", reason, head, vocabulary)
    verdict, same = "identical", "the head is a part of the model"
    if vocabulary is not None:
        verdict, same = vocabulary.verdict, vocabulary.reason
    notes = tuple(_notes(target, head))
    return HeadVerdict(verdict, same, head, vocabulary, notes)  # type: ignore[arg-type]


def _refusals(target: Header, head: HeadInfo) -> Iterator[str]:
    if is_head_file(target):
        yield "the target is a head itself, not a model"
        return
    architecture = target.architecture
    if architecture in RECURRENT or (architecture in HYBRID and architecture not in ROLLBACK):
        yield f"llama.cpp here cannot roll back the recurrent states of {architecture!r} models"
    yield from head.kind.refusals(target, head)


def step_bytes(target: Header, head: HeadInfo) -> int:
    """Bytes of weights that a step of a head reads, with the target's output matrix if it has none. A block
    drafter drafts a block in a step.
    """
    lookups = (
        "token_embd.weight", "embed_tokens.weight", "markov_w1.weight",
        "selector_predecessor.weight", "selector_successor.weight",
    )  # fmt: skip
    tied = head.own_output and head.own_file and "output.weight" not in {t.name for t in head.tensors}
    own = sum(t.n_bytes for t in head.step_tensors if tied or not t.name.endswith(lookups))
    if head.own_output:
        return own
    sizes = {t.name: t.n_bytes for t in target.tensors}
    return own + sizes.get("output.weight", sizes.get("token_embd.weight", 0))


def _notes(target: Header, head: HeadInfo) -> Iterator[Note]:
    yield from trimmed(head.header)
    if head.n_proposed < head.n_vocab and not is_trimmed(head.header):
        yield Note(f"the head proposes {head.n_proposed} of the {head.n_vocab} tokens")
    if head.n_draft_max is not None:
        tokens = "one token" if head.n_draft_max == 1 else f"up to {head.n_draft_max} tokens"
        yield Note(f"the head drafts {tokens} at a time")
    if head.n_chained > 1:
        yield Note(f"each of its {head.n_chained} layers drafts one token, the last one those after it too")
    a, b = target.bytes_per_token, step_bytes(target, head)
    if not a or not b:
        return
    percent = 100 * b / a
    what = "a block" if head.block_size else "a step"
    number = f"{percent:.2g}" if percent < 10 else f"{percent:.0f}"
    share = f"{what} of the head reads {number} % of what the target reads per token"
    yield warning(f"{share}: it rarely pays") if b > COSTLY_STEP * a else Note(share)
