"""Whether a draft can propose tokens for a target: the pair check, from two headers alone.

The rule is llama.cpp's `common_speculative_are_compatible` (common/speculative.cpp) on what its vocabulary
loader (src/llama-vocab.cpp) makes of the keys, defaults included. Reads no model file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from specllama.gguf import Header
from specllama.gguf_check import NO_TOKENIZER, TOKENIZERS

MAX_SIZE_DIFFERENCE = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE
FIRST_CHECKED_ID = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID: below are special tokens, which often differ
MAX_LISTED = 64  # ids in `differing`
COSTLY_DRAFT = 0.5  # bytes read per token, draft over target: from here on a draft hardly pays

# (bos_id, eos_id, add_bos, add_eos) before the keys of the file; None is LLAMA_TOKEN_NULL.
_DEFAULTS: dict[str, tuple[int | None, int | None, bool, bool]] = {
    "spm": (1, 2, True, False),
    "wpm": (101, None, True, False),
    "bpe": (11, 11, False, False),
    "ugm": (None, 1, False, True),
    "rwkv": (None, None, False, False),
    "test": (None, None, False, False),
    "plamo2": (1, 2, False, False),
    "none": (None, None, False, False),
}
_PRE_LLAMA3 = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
_PRE_ADD_BOS = frozenset(f"{_PRE_LLAMA3} tekken chameleon".split())
_PRE_NO_BOS = frozenset(("chatglm-bpe", "glm4", "glm5"))
_PRE_FORCE_BOS = frozenset(("gemma4", "granite-embed-multi-311m"))


@dataclass(frozen=True)
class Vocab:
    """A vocabulary as llama.cpp would load it; None is no such token."""

    kind: str  # a value of TOKENIZERS, or "none"
    pre: str
    n_tokens: int
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool


@dataclass(frozen=True)
class PairVerdict:
    """The answer about a pair.

    differing: ids whose text differs or that one side lacks, the first MAX_LISTED of `n_differing`.
    first_difference: (id, target's text, draft's text), of an incompatible pair the one that decides.
    """

    verdict: Literal["identical", "compatible", "incompatible"]
    reason: str
    differing: tuple[int, ...] = ()
    n_differing: int = 0
    first_difference: tuple[int, str, str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the pair can be used."""
        return self.verdict != "incompatible"


def read_vocab(header: Header) -> Vocab:
    """What llama.cpp makes of the tokenizer keys: defaults by tokenizer, ids out of range ignored."""
    model = header.text("tokenizer.ggml.model")
    kind = "none" if model in NO_TOKENIZER else TOKENIZERS.get(model, "none")
    pre = "gemma4" if model == "gemma4" else header.text("tokenizer.ggml.pre")
    bos_id, eos_id, add_bos, add_eos = _DEFAULTS[kind]
    n_tokens = header.n_vocab
    if kind == "none":
        return Vocab(kind, "", n_tokens, bos_id, eos_id, add_bos, add_eos)
    if kind == "bpe":
        add_bos = pre in _PRE_ADD_BOS
        bos_id = None if pre in _PRE_NO_BOS or model == "gemma4" else bos_id
        eos_id = None if model == "gemma4" else eos_id
    add_bos = _or(header.flag("tokenizer.ggml.add_bos_token"), add_bos)
    return Vocab(
        kind=kind,
        pre=pre if kind == "bpe" else "",
        n_tokens=n_tokens,
        bos_id=_in_range(header.bos_id, bos_id, n_tokens),
        eos_id=_in_range(header.eos_id, eos_id, n_tokens),
        add_bos=add_bos or (kind == "bpe" and pre in _PRE_FORCE_BOS),
        add_eos=_or(header.flag("tokenizer.ggml.add_eos_token"), add_eos),
    )


def check_pair(target: Header, draft: Header) -> PairVerdict:
    """Whether the draft's tokens mean the same to the target by llama.cpp's rule, with notes on the rest."""
    ours, theirs = read_vocab(target), read_vocab(draft)
    same = target.tokens == draft.tokens
    a, b = ([], []) if same else (_texts(target), _texts(draft))
    shared = min(len(a), len(b))
    differing = [i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    deciding = next((i for i in differing if i >= FIRST_CHECKED_ID), None)
    differing += range(shared, max(len(a), len(b)))
    refusal = _flags_refusal(ours, theirs)
    if refusal is None and deciding is not None:
        refusal = (
            f"token {deciding} is {_show(a[deciding])} in the target and {_show(b[deciding])} in the draft"
        )
    first = deciding if deciding is not None else next(iter(differing), None)
    verdict: Literal["identical", "compatible", "incompatible"] = "identical"
    reason = f"the same {ours.n_tokens} tokens"
    if refusal is not None:
        verdict, reason = "incompatible", refusal
    elif differing:
        verdict, reason = "compatible", f"{len(differing)} of {max(len(a), len(b))} token ids differ"
    return PairVerdict(
        verdict=verdict,
        reason=reason,
        differing=tuple(differing[:MAX_LISTED]),
        n_differing=len(differing),
        first_difference=None if first is None else (first, _text(a, first), _text(b, first)),
        notes=(*_vocab_notes(ours, theirs), *_cost_notes(target, draft)),
    )


def _flags_refusal(ours: Vocab, theirs: Vocab) -> str | None:
    """llama.cpp's conditions on everything but the texts, in its order."""
    if "none" in (ours.kind, theirs.kind):
        who = "target" if ours.kind == "none" else "draft"
        return f"the {who} has no tokenizer"
    if ours.kind != theirs.kind:
        return f"tokenizer types differ: target {ours.kind}, draft {theirs.kind}"
    for name in ("bos", "eos"):
        adds = [getattr(v, f"add_{name}") for v in (ours, theirs)]
        ids = [getattr(v, f"{name}_id") for v in (ours, theirs)]
        if adds[0] != adds[1]:
            which = ["does not add", "adds"]
            return f"the target {which[adds[0]]} a {name} token, the draft {which[adds[1]]} one"
        if adds[0] and ids[0] != ids[1]:
            return f"{name} tokens differ: target {ids[0]}, draft {ids[1]}"
    difference = abs(ours.n_tokens - theirs.n_tokens)
    if difference > MAX_SIZE_DIFFERENCE:
        sizes = f"target {ours.n_tokens} tokens, draft {theirs.n_tokens}"
        return f"vocabulary sizes differ by {difference}, more than {MAX_SIZE_DIFFERENCE}: {sizes}"
    return None


def _vocab_notes(ours: Vocab, theirs: Vocab) -> list[str]:
    notes = []
    if ours.pre != theirs.pre:
        notes.append(
            f"pre-tokenizers differ: target {ours.pre or 'default'}, draft {theirs.pre or 'default'}"
        )
    if ours.eos_id != theirs.eos_id and not ours.add_eos:
        notes.append(f"end tokens differ: target {ours.eos_id}, draft {theirs.eos_id}; the target's decides")
    return notes


def _cost_notes(target: Header, draft: Header) -> list[str]:
    notes = []
    if _same_file(target.path, draft.path):
        notes.append("warning: target and draft are the same file, which cannot be faster")
    if target.bytes_per_token and draft.bytes_per_token:
        ratio = draft.bytes_per_token / target.bytes_per_token
        sizes = f"{draft.bytes_per_token / 1e6:.0f} MB against {target.bytes_per_token / 1e6:.0f} MB"
        notes.append(f"the draft reads {ratio:.2f} of the target's weights per token ({sizes})")
        if ratio >= COSTLY_DRAFT:
            notes.append(
                "warning: the draft costs too much beside this target to gain anything; a tenth is usual"
            )
    return notes


def _same_file(a: str, b: str) -> bool:
    try:
        return a == b or os.path.samefile(a, b)
    except (OSError, ValueError):  # an address, or gone by now
        return False


def _texts(header: Header) -> list[bytes]:
    """Token texts as llama.cpp compares them: empty ones named by their id, each only up to a NUL."""
    raws = header.tokens.raws()
    return [raw.partition(b"\0")[0] if raw else b"[EMPTY_%d]" % i for i, raw in enumerate(raws)]


def _text(texts: list[bytes], i: int) -> str:
    return texts[i].decode(errors="replace") if i < len(texts) else ""


def _show(raw: bytes) -> str:
    return repr(raw.decode(errors="replace"))


def _or(value: bool | None, default: bool) -> bool:
    return default if value is None else value


def _in_range(given: int | None, default: int | None, n_tokens: int) -> int | None:
    if given is not None and given < n_tokens:
        return given
    return default if default is not None and default < n_tokens else None
