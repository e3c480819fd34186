"""What the pair check's rule leaves out and a user of the pair should know: notes, each one line.

Also which tokens end a generation, as llama.cpp derives them from the header. Knows the two vocabularies, not
the rule; that is vocab.py's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specllama.gguf.header import Header, StringArray

if TYPE_CHECKING:
    from specllama.pair.vocab import Vocab

COSTLY_DRAFT = 0.5  # bytes read per token, draft over target: from here on a draft hardly pays
_SHOWN = 4  # ids in one note
_LONGEST = 60  # characters of a text that are shown

# Texts of tokens that end a generation, whatever the keys say.
_END_TEXTS = """
<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s>
<|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response>
<｜end▁of▁sentence｜> [e~[
""".encode().split()
# Those too: the key that names each, and the texts that are looked for where it does not.
_FILL_TEXTS = {
    "fim_pad": (b"<|fim_pad|>", b"<fim-pad>", b"<fim_pad>", b"<PAD>", b"[PAD]"),
    "fim_rep": (b"<|fim_repo|>", b"<|repo_name|>", b"<fim-repo>", b"<REPO>", b"<reponame>"),
    "fim_sep": (b"<|file_sep|>",),
}
_WANTED = frozenset((*_END_TEXTS, *(text for texts in _FILL_TEXTS.values() for text in texts)))


def notes(target: Header, draft: Header, ours: Vocab, theirs: Vocab) -> tuple[str, ...]:
    """What to know of a pair that can be used; what should be acted on begins with "warning:".

    ours, theirs: the vocabularies of target and draft.
    """
    return (
        *_splitting(target, draft, ours, theirs),
        *_ends(target, draft, ours, theirs),
        *_templates(target, draft),
        *_contexts(target, draft),
        *_costs(target, draft),
    )


def shown(text: str | None) -> str:
    """A text of a file for people: quoted, nothing in it that a terminal would obey, and not too long."""
    if text is None:
        return "none"
    return repr(text) if len(text) <= _LONGEST else f"{text[:_LONGEST]!r}…"


def end_ids(header: Header, vocab: Vocab) -> frozenset[int]:
    """The tokens that end a generation: those that keys name, and those with a text that is known for it.

    Of several texts for one purpose in fill-in-the-middle llama.cpp takes any, here it is the first.
    """
    if vocab.kind == "none":
        return frozenset()
    found = {text: i for i, text in enumerate(vocab.texts) if text in _WANTED}
    ids = {found[text] for text in _END_TEXTS if text in found}
    named = [vocab.eos_id, _named(header, vocab, "eot"), _named(header, vocab, "eom")]
    for key, texts in _FILL_TEXTS.items():
        by_key = _named(header, vocab, key)
        named.append(next((found[t] for t in texts if t in found), None) if by_key is None else by_key)
    ids.update(i for i in named if i is not None)
    texts_of = {vocab.texts[i] for i in ids}
    # The one closes a part of the answer where these are; the other is text where those are.
    if texts_of & {b"<|call|>", b"<|calls|>"} and texts_of & {b"<|return|>", b"<|flush|>"}:
        ids.discard(found.get(b"<|end|>", -1))
    if texts_of & {b"<|tool_response>", b"<|plamo:eos|>"}:
        ids.discard(found.get(b"</s>", -1))
    return frozenset(ids)


def _named(header: Header, vocab: Vocab, key: str) -> int | None:
    token = header.integer(f"tokenizer.ggml.{key}_token_id", -1)
    return token if 0 <= token < vocab.n_tokens else None


def _splitting(target: Header, draft: Header, ours: Vocab, theirs: Vocab) -> Iterator[str]:
    """Both tokenise differently: the draft reads ids that it has not learnt to expect."""
    if ours.kind != "bpe":
        return
    so = "the draft has learnt to read text in other pieces, so it may be right less often"
    if ours.pre_type != theirs.pre_type:
        names = f"target {ours.pre or 'default'}, draft {theirs.pre or 'default'}"
        yield f"pre-tokenizers differ: {names}; {so}"
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
    yield (
        f"merges differ: target {len(x)}, draft {len(y)}, {what}; the first at {first}: target {one}, "
        f"draft {other}; {so}"
    )


def _merges(header: Header) -> StringArray:
    value = header.metadata.get("tokenizer.ggml.merges")
    return value if isinstance(value, StringArray) else StringArray.empty()


def _ends(target: Header, draft: Header, ours: Vocab, theirs: Vocab) -> Iterator[str]:
    a, b = end_ids(target, ours), end_ids(draft, theirs)
    if a != b:
        parts = [f"{_list(ours, a - b)} of the target only"] if a - b else []
        parts += [f"{_list(theirs, b - a)} of the draft only"] if b - a else []
        yield f"tokens that end a generation differ: {', '.join(parts)}; the target's are used"


def _list(vocab: Vocab, ids: frozenset[int]) -> str:
    named = [vocab.named(i) for i in sorted(ids)[:_SHOWN]]
    more = [f"{len(ids) - _SHOWN} more"] if len(ids) > _SHOWN else []
    return ", ".join(named + more)


def _templates(target: Header, draft: Header) -> Iterator[str]:
    a, b = target.chat_template, draft.chat_template
    if a is None:
        yield "the target has no chat template: messages need --chat-template, or --raw for a bare prompt"
    elif b is None:
        yield "the draft has no chat template: it may not have been trained on conversations"
    elif a != b:
        yield "chat templates differ: the target's is used, which the draft may know less well"


def _contexts(target: Header, draft: Header) -> Iterator[str]:
    a, b = target.n_ctx_train, draft.n_ctx_train
    if 0 < b < a:
        yield f"the draft was trained on {b} tokens of context, the target on {a}: beyond {b} it drafts badly"


def _costs(target: Header, draft: Header) -> Iterator[str]:
    if _same_file(target.path, draft.path):
        yield "warning: target and draft are the same file, which cannot be faster"
        return
    a, b = target.bytes_per_token, draft.bytes_per_token
    for who, n_bytes in (("target", a), ("draft", b)):
        if not n_bytes:
            yield f"warning: the {who} is a vocabulary without weights: it cannot be run"
    if not a or not b:
        return
    ratio, sizes = b / a, f"{_size(b)} against {_size(a)}"
    times = f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
    says = f"the draft reads {times} times what the target reads per token ({sizes})"
    if ratio >= 1:
        yield f"warning: {says}: it cannot be faster; a tenth is usual, so did the two change places?"
    elif ratio >= COSTLY_DRAFT:
        share = f"more than {100 * ratio:.0f} % of its tokens must be accepted"
        yield f"warning: {says}: to gain anything, {share}; a tenth is usual"
    else:
        yield says


def _size(n_bytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes / 1e3:.1f} kB"


def _same_file(a: str, b: str) -> bool:
    try:
        return a == b or os.path.samefile(a, b)
    except (OSError, ValueError):  # an address, or gone by now
        return False
