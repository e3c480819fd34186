"""Whether a draft can propose tokens for a target: the pair check, from two headers alone.

The rule is llama.cpp's `common_speculative_are_compatible` (common/speculative.cpp) on what its vocabulary
loader (src/llama-vocab.cpp) makes of the keys, defaults included. Reads no model file; what the rule leaves
out is vocab_notes.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from specllama.gguf.check import NO_TOKENIZER, TOKENIZERS
from specllama.gguf.header import Header
from specllama.pair.notes import notes, shown

MAX_SIZE_DIFFERENCE = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE
FIRST_CHECKED_ID = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID: below are special tokens, which often differ
MAX_LISTED = MAX_SIZE_DIFFERENCE + FIRST_CHECKED_ID  # all that can differ in a compatible pair

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

# The names that `tokenizer.ggml.pre` may have where the tokenizer is "bpe": those that split alike, the rest.
_PRE_ALIKE = (
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en "
    "jina-v2-code roberta-bpe exaone4",
    "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez",
    "gpt-4o llama4 kanana2 talkie",
    "chatglm-bpe glm4 glm5",
    "gemma4 granite-embed-multi-311m",
    "tiny_aya cohere2moe",
    "bailingmoe bailingmoe2 llada-moe",
)
_PRE_ALONE = """
    afmoe bloom chameleon codeshell command-r dbrx deepseek-coder deepseek-llm deepseek-v3 default exaone
    exaone-moe falcon gpt3-finnish granite-docling granite-embed-multi-97m grok-2 hunyuan hunyuan-dense hy_v4
    jais jais-2 joyai-llm kimi-k2 laguna mellum2 minerva-7b minicpm5 minimax-m2 mpt olmo poro-chat qwen35
    refact sarvam-moe seed-coder smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder superbpe tekken
    trillion ufakzeka viking whitespace youtu
"""
PRE_TYPES = {"": "default"} | {name: name for name in _PRE_ALONE.split()}
PRE_TYPES |= {name: line.split()[0] for line in _PRE_ALIKE for name in line.split()}
_ADD_BOS = frozenset(("llama3", "tekken", "chameleon"))  # by default
_FORCE_BOS = "gemma4"  # whatever the key says

_KMER_MARK = "\ue000".encode()


@dataclass(frozen=True)
class Vocab:
    """A vocabulary as llama.cpp would load it; None is no such token.

    kind: a value of TOKENIZERS, or "none". pre: the pre-tokenizer's name, "" without one. texts: of each id,
    as llama.cpp compares them.
    """

    kind: str
    pre: str
    n_tokens: int
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    texts: Sequence[bytes] = field(default=(), repr=False)

    @property
    def pre_type(self) -> str | None:
        """The first of the pre-tokenizer's names; None where llama.cpp knows none of them."""
        return PRE_TYPES.get(self.pre)

    def text(self, token: int) -> str | None:
        """The text of an id, bytes that are no UTF-8 as \\xNN; None for an id that there is not."""
        return self.texts[token].decode(errors="backslashreplace") if token < len(self.texts) else None

    def named(self, token: int | None) -> str:
        """An id and its text for people, "none" for no token."""
        return "none" if token is None else f"{token} {shown(self.text(token))}"


class TokenDifference(NamedTuple):
    """A token id that does not mean the same; the text is None on the side that lacks the id."""

    id: int
    target: str | None
    draft: str | None


@dataclass(frozen=True)
class PairVerdict:
    """The answer about a pair.

    differing: ids whose text differs or that one side lacks, the first MAX_LISTED of `n_differing`.
    first_difference: of an incompatible pair the one that decides, where texts do. notes: what else should be
    known of a pair that can be used; those that begin with "warning:" should be acted on. Texts of the files
    are fit for a terminal in `reason` and `notes`, and only there.
    """

    verdict: Literal["identical", "compatible", "incompatible"]
    reason: str
    target: Vocab
    draft: Vocab
    differing: tuple[TokenDifference, ...] = ()
    n_differing: int = 0
    first_difference: TokenDifference | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the pair can be used."""
        return self.verdict != "incompatible"


def read_vocab(header: Header) -> Vocab:
    """What llama.cpp makes of the tokenizer keys: defaults by tokenizer, ids out of range ignored."""
    model = _c_string(header, "tokenizer.ggml.model")
    kind = "none" if model in NO_TOKENIZER else TOKENIZERS.get(model, "none")
    bos_id, eos_id, add_bos, add_eos = _DEFAULTS[kind]
    if kind == "none":
        size = header.arch_integer("vocab_size")
        return Vocab(kind, "", size, bos_id, eos_id, add_bos, add_eos)
    pre = ""
    if kind == "bpe":
        pre = "gemma4" if model == "gemma4" else _c_string(header, "tokenizer.ggml.pre")
        pre_type = PRE_TYPES.get(pre)
        add_bos = pre_type in _ADD_BOS
        bos_id = None if pre_type == "chatglm-bpe" or model == "gemma4" else bos_id
        eos_id = None if model == "gemma4" else eos_id
    texts = _texts(header)
    n_tokens = len(texts)
    return Vocab(
        kind=kind,
        pre=pre,
        n_tokens=n_tokens,
        bos_id=_in_range(header.bos_id, bos_id, n_tokens),
        eos_id=_in_range(header.eos_id, eos_id, n_tokens),
        add_bos=_flag(header, "add_bos_token", add_bos) or (kind == "bpe" and pre_type == _FORCE_BOS),
        add_eos=_flag(header, "add_eos_token", add_eos),
        texts=_bare_kmers(texts) if model == "hybriddna" else texts,
    )


def check_pair(target: Header, draft: Header) -> PairVerdict:
    """Whether the draft's tokens mean the same to the target by llama.cpp's rule, with notes on the rest.

    Two headers without a tokenizer, and pre-tokenizers that llama.cpp does not know, are incompatible here:
    it would not run them.
    """
    ours, theirs = read_vocab(target), read_vocab(draft)
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


def _refusal(ours: Vocab, theirs: Vocab) -> str | None:
    """llama.cpp's conditions on everything but the texts, in its order."""
    for who, vocab in (("target", ours), ("draft", theirs)):
        if vocab.kind == "none":
            return f"the {who} has no tokenizer"
        if vocab.pre_type is None:
            return f"the {who}'s pre-tokenizer {shown(vocab.pre)} is unknown to llama.cpp here"
    if ours.kind != theirs.kind:
        return f"tokenizer types differ: target {ours.kind}, draft {theirs.kind}"
    for name in ("bos", "eos"):
        adds = [getattr(v, f"add_{name}") for v in (ours, theirs)]
        ids = [getattr(v, f"{name}_id") for v in (ours, theirs)]
        if adds[0] != adds[1]:
            which = ["does not add", "adds"]
            return f"the target {which[adds[0]]} a {name} token, the draft {which[adds[1]]} one"
        if adds[0] and ids[0] != ids[1]:
            return f"{name} tokens differ: target {ours.named(ids[0])}, draft {theirs.named(ids[1])}"
    difference = abs(ours.n_tokens - theirs.n_tokens)
    if difference > MAX_SIZE_DIFFERENCE:
        sizes = f"target {ours.n_tokens} tokens, draft {theirs.n_tokens}"
        return f"vocabulary sizes differ by {difference}, more than {MAX_SIZE_DIFFERENCE}: {sizes}"
    return None


def _texts(header: Header) -> list[bytes]:
    """Token texts as C strings: each up to a NUL, empty ones named by their id."""
    raws = header.tokens.raws()
    if all(raws) and b"\0" not in b"".join(raws):
        return raws
    return [raw.partition(b"\0")[0] or b"[EMPTY_%d]" % i for i, raw in enumerate(raws)]


def _bare_kmers(texts: list[bytes]) -> list[bytes]:
    """A "hybriddna" tokenizer's texts without the mark that its DNA tokens, those behind <oov>, end with."""
    if b"<oov>" not in texts:
        return texts
    first = texts.index(b"<oov>") + 1
    return texts[:first] + [t if t == _KMER_MARK else t.removesuffix(_KMER_MARK) for t in texts[first:]]


def _c_string(header: Header, key: str) -> str:
    return header.text(key).partition("\0")[0]


def _flag(header: Header, name: str, default: bool) -> bool:
    value = header.flag(f"tokenizer.ggml.{name}")
    return default if value is None else value


def _in_range(given: int | None, default: int | None, n_tokens: int) -> int | None:
    if given is not None and 0 <= given < n_tokens:
        return given
    return default if default is not None and default < n_tokens else None
