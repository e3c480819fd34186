"""The pair check: whether a draft, a model or a head, can propose tokens for a target, from the two headers
alone; and notes on a usable pair.

The rule for models is llama.cpp's `common_speculative_are_compatible` (common/speculative.cpp); the notes
cover differences and costs that it does not check. Where llama.cpp has no check of a head it aborts the
process, so a head that does not fit is refused here. Reads no model file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from specllama.config.places import is_same
from specllama.errors import Note, warning
from specllama.gguf.architectures import HYBRID, RECURRENT, ROLLBACK
from specllama.gguf.header import Header
from specllama.gguf.parse import StringArray
from specllama.gguf.trimmed import TrimInfo, is_trimmed, read_trim
from specllama.heads import file_head, is_head_file, read_head, unusable_head
from specllama.heads.kind import HeadInfo
from specllama.pair.vocab import Vocab, end_ids, read_vocab, shown

MAX_SIZE_DIFFERENCE = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE
FIRST_CHECKED_ID = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID: lower ids are special tokens, which often differ
MAX_LISTED = MAX_SIZE_DIFFERENCE + FIRST_CHECKED_ID  # the most that can differ in a compatible pair
COSTLY_DRAFT = 0.5  # ratio of bytes read per token, draft to target, from which a draft rarely pays
_SHOWN = 4  # ids in one note
# Ratio of bytes read, a step of the head to a token of the target, from which it rarely pays.
COSTLY_STEP = 0.3


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
    usable pair. Only `reason` and `notes` are safe to print: other fields have texts as in the files.
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
        return self.verdict != "incompatible"


def check_pair(target: Header, draft: Header) -> PairVerdict:
    """Whether the draft's token ids mean the same to the target by llama.cpp's rule, with notes on the rest.

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
    first = differing[:1] if deciding is None else [deciding]
    listed = [TokenDifference(i, ours.text(i), theirs.text(i)) for i in (*first, *differing[:MAX_LISTED])]
    return PairVerdict(
        verdict=verdict,
        reason=reason,
        target=ours,
        draft=theirs,
        differing=tuple(listed[1:]),
        n_differing=len(differing),
        first_difference=listed[0] if listed else None,
        notes=notes(target, draft, ours, theirs) if refusal is None else (),
    )


def _whole(kept: Vocab, trim: TrimInfo, target: Vocab) -> Vocab:
    """A trimmed draft's vocabulary with its source's ids; tokens that it lacks have the target's texts."""
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
        return self.verdict != "incompatible"


def check_any(target: Header, draft: Header) -> PairVerdict | HeadVerdict:
    """Whether a draft, a model or a head, can propose tokens. Raises GGUFError for an incomplete head."""
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
    notes = tuple(_head_notes(target, head))
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
    """Bytes of weights that a step of a head, or a block, reads, the target's output included if needed."""
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


def _head_notes(target: Header, head: HeadInfo) -> Iterator[Note]:
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


def notes(target: Header, draft: Header, ours: Vocab, theirs: Vocab) -> tuple[Note, ...]:
    """The notes on a usable pair. ours, theirs: the vocabularies of target and draft."""
    return (
        *trimmed(draft),
        *_splitting(target, draft, ours, theirs),
        *_ends(target, draft, ours, theirs),
        *_training(target, draft),
        *costs(target, draft),
    )


def trimmed(draft: Header) -> Iterator[Note]:
    if (trim := read_trim(draft)) is not None:
        yield Note(trim.label)


def _splitting(target: Header, draft: Header, ours: Vocab, theirs: Vocab) -> Iterator[Note]:
    """Differences in how the two tokenise text: the draft then reads sequences that it was not trained on."""
    if ours.kind != "bpe" or is_trimmed(draft):  # a trimmed draft reads the target's tokens
        return
    so = "the draft was trained on other token sequences, so fewer of its tokens may be accepted"
    if ours.pre_type != theirs.pre_type:
        names = f"target {ours.pre or 'default'}, draft {theirs.pre or 'default'}"
        yield Note(f"pre-tokenizers differ: {names}; {so}")
    a, b = _merges(target), _merges(draft)
    if a == b:
        return
    x, y = a.raws(), b.raws()
    first = next((i for i, (m, n) in enumerate(zip(x, y, strict=False)) if m != n), min(len(x), len(y)))
    alone = len(set(x) ^ set(y))
    what = f"{alone} in one of them only" if alone else "the same ones in another order"
    one, other = (
        shown(m[first].decode(errors="backslashreplace") if first < len(m) else None) for m in (x, y)
    )
    yield Note(
        f"merges differ: target {len(x)}, draft {len(y)}, {what}; the first at {first}: target {one}, "
        f"draft {other}; {so}"
    )


def _merges(header: Header) -> StringArray:
    value = header.metadata.get("tokenizer.ggml.merges")
    return value if isinstance(value, StringArray) else StringArray.empty()


def _ends(target: Header, draft: Header, ours: Vocab, theirs: Vocab) -> Iterator[Note]:
    trim = read_trim(draft)
    a, b = end_ids(target, ours), end_ids(draft, theirs)
    if trim is not None and trim.shortened:
        b = frozenset(int(trim.ids[i]) for i in end_ids(draft, read_vocab(draft)))
    if a != b:
        parts = [f"{_list(ours, a - b)} of the target only"] if a - b else []
        parts += [f"{_list(theirs, b - a)} of the draft only"] if b - a else []
        yield Note(f"tokens that end a generation differ: {', '.join(parts)}; the target's are used")


def _list(vocab: Vocab, ids: frozenset[int]) -> str:
    named = [vocab.named(i) for i in sorted(ids)[:_SHOWN]]
    more = [f"{len(ids) - _SHOWN} more"] if len(ids) > _SHOWN else []
    return ", ".join(named + more)


def _training(target: Header, draft: Header) -> Iterator[Note]:
    """Chat templates, and the context that the two were trained on."""
    a, b = target.chat_template, draft.chat_template
    if a is None:
        yield Note("the target has no chat template: messages need one, raw prompts do not")
    elif b is None:
        yield Note("the draft has no chat template: it may not have been trained on conversations")
    elif a != b:
        text = "chat templates differ: the target's is used, which the draft may not have been trained on"
        yield Note(text)
    n_target, n_draft = target.n_ctx_train, draft.n_ctx_train
    if 0 < n_draft < n_target:
        trained = f"the draft was trained on {n_draft} tokens of context, the target on {n_target}"
        yield Note(f"{trained}: beyond {n_draft} fewer of its tokens are accepted")


def costs(target: Header, draft: Header) -> Iterator[Note]:
    """Whether the draft is small enough to pay."""
    if target.path == draft.path or is_same(Path(target.path), Path(draft.path)):
        yield warning("target and draft are the same file, which cannot be faster")
        return
    a, b = target.bytes_per_token, draft.bytes_per_token
    for who, n_bytes in (("target", a), ("draft", b)):
        if not n_bytes:
            yield warning(f"the {who} is a vocabulary without weights: it cannot be run")
    if not a or not b:
        return
    ratio, sizes = b / a, f"{_size(b)} against {_size(a)}"
    times = f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
    reads = f"the draft reads {times} times what the target reads per token ({sizes})"
    if ratio >= 1:
        yield warning(f"{reads}: it cannot be faster; a tenth is usual; are target and draft swapped?")
    elif ratio >= COSTLY_DRAFT:
        share = f"more than {100 * ratio:.0f} % of its tokens must be accepted"
        yield warning(f"{reads}: to gain anything, {share}; a tenth is usual")
    else:
        yield Note(reads)


def _size(n_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes / 1e3:.1f} kB"
