"""Notes on a usable pair, one line each: differences and costs that the rule in check.py does not cover."""

from __future__ import annotations

import os
from collections.abc import Iterator

from specllama.errors import Note, warning
from specllama.gguf.header import Header
from specllama.gguf.parse import StringArray
from specllama.gguf.trimmed import is_trimmed, read_trim
from specllama.pair.vocab import Vocab, end_ids, read_vocab, shown

COSTLY_DRAFT = 0.5  # ratio of bytes read per token, draft to target, from which a draft rarely pays
_SHOWN = 4  # ids in one note


def notes(target: Header, draft: Header, ours: Vocab, theirs: Vocab) -> tuple[Note, ...]:
    """The notes on a usable pair. ours, theirs: the vocabularies of target and draft."""
    return (
        *trimmed(draft),
        *_splitting(target, draft, ours, theirs),
        *_ends(target, draft, ours, theirs),
        *_templates(target, draft),
        *_contexts(target, draft),
        *costs(target, draft),
    )


def trimmed(draft: Header) -> Iterator[Note]:
    """What a trimmed draft was made from."""
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


def _templates(target: Header, draft: Header) -> Iterator[Note]:
    a, b = target.chat_template, draft.chat_template
    if a is None:
        yield Note("the target has no chat template: messages need one, raw prompts do not")
    elif b is None:
        yield Note("the draft has no chat template: it may not have been trained on conversations")
    elif a != b:
        yield Note(
            "chat templates differ: the target's is used, which the draft may not have been trained on"
        )


def _contexts(target: Header, draft: Header) -> Iterator[Note]:
    a, b = target.n_ctx_train, draft.n_ctx_train
    if 0 < b < a:
        trained = f"the draft was trained on {b} tokens of context, the target on {a}"
        yield Note(f"{trained}: beyond {b} fewer of its tokens are accepted")


def costs(target: Header, draft: Header) -> Iterator[Note]:
    """Whether the draft is small enough to pay."""
    if _same_file(target.path, draft.path):
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


def _same_file(a: str, b: str) -> bool:
    try:
        return a == b or os.path.samefile(a, b)
    except (OSError, ValueError):  # an address, or removed meanwhile
        return False
