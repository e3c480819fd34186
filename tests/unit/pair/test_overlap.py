"""What two vocabularies share, from headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.config.load import ModelSettings
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.gguf.header import Header, read_header, read_source
from specllama.llama.model import LlamaModel
from specllama.pair.overlap import check_translated, overlap
from specllama.pair.vocab import token_bytes
from tests.support.foreign import permuted
from tests.support.ggufbytes import GGUF, Typed, vocab_metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


class Bytes:
    name = "memory.gguf"

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, offset: int, n: int) -> bytes:
        return self.data[offset : offset + n]


def header(tokens: Sequence[str], model: str = "gpt2", types: Sequence[int] = (), **extra: Any) -> Header:
    kinds = Typed("arr[i32]", [*types, *[NORMAL] * (len(tokens) - len(types))])
    keys = {"scores": Typed("arr[f32]", [0.0] * len(tokens)), "token_type": kinds, **extra}
    meta = {"general.architecture": "llama", **vocab_metadata(tokens, model, **keys)}
    return read_source(Bytes(GGUF(meta).build()))


BPE = header(["<s>", "Ġthe", "a", "Ċ", "é", "Ã©", "<tool>"], types=[CONTROL, 1, 1, 1, 1, 1, USER_DEFINED])
SPM = header(
    ["<unk>", "<s>", "</s>", "<0x0A>", "▁the", "▁there", "a", "<tool>", "é", "pad"],
    "llama",
    [UNKNOWN, CONTROL, CONTROL, BYTE, 1, 1, 1, USER_DEFINED, 1, UNUSED],
)


def test_tokens_are_compared_by_their_bytes() -> None:
    bpe, spm = token_bytes(BPE), token_bytes(SPM)
    assert bpe is not None
    assert spm is not None
    assert bpe.pieces == [b"", b" the", b"a", b"\n", b"\xe9", b"\xc3\xa9", b"<tool>"]
    assert spm.pieces == [b"", b"", b"", b"\n", b" the", b" there", b"a", b"<tool>", b"\xc3\xa9", b""]
    shared, problem = overlap(SPM, BPE)
    assert problem == ""
    assert shared is not None
    assert shared.to_target.tolist() == [1, 4, 6, 3, -1, 8, 7]
    assert (shared.n_shared, shared.n_ordinary, shared.n_target) == (5, 6, 10)
    assert np.flatnonzero(shared.may_grow).tolist() == [4]  # of " there", which the draft lacks
    assert shared.never_drafted.tolist() == []


def test_no_two_tokens_have_one_meaning() -> None:
    draft = header(["a", "a", "b", "<s>"], types=[1, USER_DEFINED, 1, CONTROL])
    shared, _ = overlap(BPE, draft)
    assert shared is not None
    assert shared.to_target.tolist() == [2, -1, -1, 0]


def test_ends_of_turns_are_the_same_whatever_they_are_called() -> None:
    ours = header(["a", "<end_of_turn>", "<eos>"], types=[1, 3, 3], eos_token_id=2)
    theirs = header(["<|im_end|>", "a", "<|endoftext|>"], types=[3, 1, 3], eos_token_id=2)
    shared, _ = overlap(ours, theirs)
    assert shared is not None
    assert shared.to_target.tolist() == [1, 0, 2]
    alone = header(["<|im_end|>", "a", "<|other|>"], types=[3, 1, 3], eos_token_id=0)
    shared, _ = overlap(ours, alone)
    assert shared is not None
    assert shared.to_target.tolist() == [1, 0, -1]
    assert shared.never_drafted.tolist() == [2]


@pytest.mark.parametrize(
    ("target", "draft", "problem"),
    [
        (BPE, header([f"~{i}" for i in range(200)]), "nothing in common: 0 tokens shared"),
        (BPE, header(["[UNK]", "a"], "bert"), "the draft's tokenizer, wpm, is not one of"),
        (header(["[UNK]", "a"], "bert"), BPE, "the target's tokenizer, wpm, is not one of"),
    ],
)
def test_what_cannot_be_translated_is_said_in_a_line(target: Header, draft: Header, problem: str) -> None:
    shared, reason = overlap(target, draft)
    assert shared is None
    assert problem in reason
    assert "\n" not in reason
    assert check_translated(target, draft, True).verdict == "incompatible"


def test_only_a_pair_that_does_not_fit_is_translated(tmp_path: Path) -> None:
    target, draft = read_header(EMBEDDED_TARGET), read_header(EMBEDDED_DRAFT)
    other = read_header(permuted(Path(EMBEDDED_DRAFT), tmp_path / "draft.gguf"))
    assert check_translated(target, draft, True).verdict == "identical"
    assert check_translated(target, other, False).verdict == "incompatible"
    verdict = check_translated(target, other, True)
    assert (verdict.verdict, verdict.ok, verdict.reason) == ("translated", True, "100 % of tokens shared")
    assert "bos tokens differ" in str(verdict.notes[0])  # what llama.cpp would say


def test_the_bytes_are_those_that_llama_cpp_writes() -> None:
    spelling = token_bytes(read_header(EMBEDDED_TARGET))
    model = LlamaModel(ModelSettings(path=str(EMBEDDED_TARGET)), vocab_only=True)
    try:
        assert spelling is not None
        assert spelling.pieces == [model.piece(token) for token in range(model.n_vocab)]
    finally:
        model.close()
