"""The pair check: whether a draft can propose tokens for a target, from the two headers alone.

The rule is llama.cpp's `common_speculative_are_compatible` (common/speculative.cpp); notes.py covers
differences that it does not check. Reads no model file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from specllama.errors import Note
from specllama.gguf.header import Header
from specllama.gguf.trimmed import TrimInfo, read_trim
from specllama.pair.notes import notes
from specllama.pair.vocab import Vocab, read_vocab, shown

MAX_SIZE_DIFFERENCE = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE
FIRST_CHECKED_ID = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID: lower ids are special tokens, which often differ
MAX_LISTED = MAX_SIZE_DIFFERENCE + FIRST_CHECKED_ID  # the most that can differ in a compatible pair


class TokenDifference(NamedTuple):
    """A token id whose texts differ; the text is None in a vocabulary without this id."""

    id: int
    target: str | None
    draft: str | None


@dataclass(frozen=True)
class PairVerdict:
    """The result of the check.

    differing: the first MAX_LISTED of the `n_differing` ids whose texts differ or that only one vocabulary
    has. first_difference: the first of them; for a pair that is incompatible because of a text, that one.
    "translated": llama.cpp refuses it, specllama translates the draft's tokens (overlap.py). notes: about a
    usable pair. Only `reason` and `notes` are safe to print: other fields contain texts unescaped, as in the
    files.
    """

    verdict: Literal["identical", "compatible", "translated", "incompatible"]
    reason: str
    target: Vocab
    draft: Vocab
    differing: tuple[TokenDifference, ...] = ()
    n_differing: int = 0
    first_difference: TokenDifference | None = None
    notes: tuple[Note, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the pair can be used."""
        return self.verdict != "incompatible"


def check_pair(target: Header, draft: Header) -> PairVerdict:
    """Whether the draft's token ids mean the same to the target by llama.cpp's rule, with notes on other
    differences.

    Unlike in llama.cpp, headers without a tokenizer or with an unknown pre-tokenizer are incompatible:
    llama.cpp would not load them. Of a trimmed draft the tokens that it kept are compared. Raises GGUFError
    where what it says about them is damaged.
    """
    ours, theirs = read_vocab(target), read_vocab(draft)
    trim = read_trim(draft)
    if trim is not None and trim.shortened:
        theirs = _whole(theirs, trim, ours)
    a, b = ours.texts, theirs.texts
    differing = [] if a == b else [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    deciding = next((i for i in differing if i >= FIRST_CHECKED_ID), None)
    differing += range(min(len(a), len(b)), max(len(a), len(b)))
    refusal = _refusal(ours, theirs)
    if refusal is None and deciding is not None:
        x, y = shown(ours.text(deciding)), shown(theirs.text(deciding))
        refusal = f"token {deciding} is {x} in the target and {y} in the draft"
    verdict: Literal["identical", "compatible", "incompatible"] = "identical"
    reason = f"the same {ours.n_tokens} tokens"
    if refusal is not None:
        verdict, reason = "incompatible", refusal
    elif differing:
        verdict, reason = "compatible", f"{len(differing)} of {max(len(a), len(b))} token ids differ"
    first = deciding if deciding is not None else next(iter(differing), None)
    return PairVerdict(
        verdict=verdict,
        reason=reason,
        target=ours,
        draft=theirs,
        differing=tuple(TokenDifference(i, ours.text(i), theirs.text(i)) for i in differing[:MAX_LISTED]),
        n_differing=len(differing),
        first_difference=None
        if first is None
        else TokenDifference(first, ours.text(first), theirs.text(first)),
        notes=notes(target, draft, ours, theirs) if refusal is None else (),
    )


def _whole(kept: Vocab, trim: TrimInfo, target: Vocab) -> Vocab:
    """The vocabulary of a trimmed draft with the ids of its source; the tokens that it lacks have the texts
    of the target's.
    """
    texts = [*target.texts[: trim.n_vocab], *[b""] * (trim.n_vocab - len(target.texts))]
    for token, text in zip(trim.ids.tolist(), kept.texts, strict=True):
        texts[token] = text
    bos, eos = (None if i is None else int(trim.ids[i]) for i in (kept.bos_id, kept.eos_id))
    return replace(kept, n_tokens=trim.n_vocab, bos_id=bos, eos_id=eos, texts=texts)


def _refusal(ours: Vocab, theirs: Vocab) -> str | None:
    """One of llama.cpp's conditions that fails, except those on texts; None if all hold."""
    for who, vocab in (("target", ours), ("draft", theirs)):
        if vocab.kind == "none":
            return f"the {who} has no tokenizer"
        if vocab.pre_type is None:
            return f"the {who}'s pre-tokenizer {shown(vocab.pre)} is unknown to llama.cpp here"
    if ours.kind != theirs.kind:
        return f"tokenizer types differ: target {ours.kind}, draft {theirs.kind}"
    difference = abs(ours.n_tokens - theirs.n_tokens)  # says more than the tokens that begin and end a text
    if difference > MAX_SIZE_DIFFERENCE:
        sizes = f"target {ours.n_tokens} tokens, draft {theirs.n_tokens}"
        return f"vocabulary sizes differ by {difference}, more than {MAX_SIZE_DIFFERENCE}: {sizes}"
    for name in ("bos", "eos"):
        adds = [getattr(v, f"add_{name}") for v in (ours, theirs)]
        ids = [getattr(v, f"{name}_id") for v in (ours, theirs)]
        if adds[0] != adds[1]:
            which = ["does not add", "adds"]
            return f"the target {which[adds[0]]} a {name} token, the draft {which[adds[1]]} one"
        if adds[0] and ids[0] != ids[1]:
            return f"{name} tokens differ: target {ours.named(ids[0])}, draft {theirs.named(ids[1])}"
    return None
