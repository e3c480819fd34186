"""Prompts that fill a gap: the layout of llama-server, token by token, with a real tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama.client.protocol import Infill, InfillChunk
from specllama.config.load import ModelSettings
from specllama.core.prefix.stored import distances
from specllama.errors import NotSupportedError
from specllama.llama.model import LlamaModel, fim_tokens
from specllama.worker.prompts import infill_boundaries, infill_ids
from tests.support import tinygguf

N = tinygguf.N_VOCAB
PRE, SUF, MID, REP, SEP = range(N - 5, N)
BOS = tinygguf.ENDOFTEXT


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = tinygguf.llama(tmp_path_factory.mktemp("fim") / "fim.gguf", more=tinygguf.FIM)
    one = LlamaModel(ModelSettings(path=str(path), n_gpu_layers=0), vocab_only=True)
    yield one
    one.close()


def ids(model: LlamaModel, text: str) -> list[int]:
    return model.tokenize(text, False, False)


def digits(text: str) -> list[int]:
    """Digits are one token each, the byte's."""
    return [3 + ord(c) for c in text]


def test_the_tokens_are_those_of_the_vocabulary(model: LlamaModel) -> None:
    assert tuple(fim_tokens(model)) == (PRE, SUF, MID, REP, SEP)
    assert {REP, SEP, tinygguf.IM_END} <= model.end_ids  # a gap never contains another file


def test_prefix_and_suffix_alone(model: LlamaModel) -> None:
    assert infill_ids(model, Infill("12", "34"), 512, 64) == [
        BOS,
        PRE,
        *digits("12"),
        SUF,
        *digits("34"),
        MID,
    ]


def test_the_parts_in_order(model: LlamaModel) -> None:
    """[REP]myproject [SEP]a.py 5 [SEP]tmp 6 [SEP]filename [BOS][PRE]12 9[SUF]34[MID]"""
    chunks = [InfillChunk("5", "a.py"), InfillChunk("6")]
    expected = [
        *[REP, *ids(model, "myproject\n")],
        *[SEP, *ids(model, "a.py\n"), *digits("5")],
        *[SEP, *ids(model, "tmp\n"), *digits("6")],
        *[SEP, *ids(model, "filename\n")],
        *[BOS, PRE, *digits("129"), SUF, *digits("34"), MID],
    ]
    assert infill_ids(model, Infill("12", "34", "9", chunks), 512, 64) == expected


def test_the_suffix_first(model: LlamaModel) -> None:
    prompt = infill_ids(model, Infill("12", "34", "9", suffix_first=True), 512, 64)
    assert prompt == [BOS, SUF, *digits("34"), PRE, *digits("129"), MID]


def test_prefix_and_suffix_share_a_batch_three_to_one(model: LlamaModel) -> None:
    """n_batch 64: 48 of the prefix, 16 - (2 + 1) of the suffix, which begins at the gap."""
    prefix, suffix = "0123456789" * 9, "9876543210" * 9
    prompt = infill_ids(model, Infill(prefix, suffix, "7", []), 1024, 64)
    at = prompt.index(PRE)
    assert prompt[at + 1 :] == [*digits(prefix[-48:] + "7"), SUF, *digits(suffix[:13]), MID]


def test_other_texts_fill_the_rest_of_the_context(model: LlamaModel) -> None:
    """Of 512 tokens 64 are for the batch, 64 + 4 are left free: the last 380 of the other texts remain."""
    chunks = [InfillChunk("1" * 300), InfillChunk("2" * 300)]
    prompt = infill_ids(model, Infill("7", "8", "", chunks), 512, 64)
    everything = infill_ids(model, Infill("7", "8", "", chunks), 4096, 64)
    assert prompt == everything[len(everything) - len(prompt) :]
    assert prompt.index(BOS) == 380
    assert len(prompt) < 512


def test_control_tokens_in_the_texts_are_text(model: LlamaModel) -> None:
    mark = "<|fim_middle|>"
    prompt = infill_ids(model, Infill(mark, mark, mark, [InfillChunk(mark, mark)]), 1024, 256)
    assert prompt.count(MID) == 1


def test_texts_are_cut_before_they_are_tokenised(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    tokenize = model.tokenize

    def counted(text: str, *flags: bool) -> list[int]:
        sizes.append(len(text))
        return tokenize(text, *flags)

    monkeypatch.setattr(model, "tokenize", counted)
    long = "1" * 3_000_000
    prompt = infill_ids(model, Infill(long, long, "", [InfillChunk(long)] * 3), 512, 64)
    assert len(prompt) < 512
    assert max(sizes) <= 512 * model.longest_token


def test_the_prefix_begins_at_the_same_line_while_the_gap_moves(model: LlamaModel) -> None:
    """In 100 moves by a line, a prefix of 160 lines begins at a new line every few moves, not every time."""
    lines = [f"{i * i % 97} = {i * 31 % 89}\n" for i in range(400)]
    starts = []
    for gap in range(250, 350):
        prompt = infill_ids(model, Infill("".join(lines[gap - 240 : gap]), "8", "", []), 4096, 2048)
        prefix = prompt[prompt.index(PRE) + 1 : prompt.index(SUF)]
        text = b"".join(map(model.piece, prefix)).decode()
        assert "".join(lines[:gap]).endswith("\n" + text)
        assert 1536 * 7 // 8 - 20 <= len(prefix) <= 1536
        starts.append(gap - text.count("\n"))
    assert len(set(starts)) < 25
    assert starts == sorted(starts)


def test_a_vocabulary_without_the_tokens(tmp_path: Path) -> None:
    path = tinygguf.llama(tmp_path / "plain.gguf", more=("<|fim_prefix|>",))
    model = LlamaModel(ModelSettings(path=str(path), n_gpu_layers=0), vocab_only=True)
    try:
        with pytest.raises(NotSupportedError, match="no token for suffix, middle"):
            infill_ids(model, Infill("1", "2"), 512, 64)
    finally:
        model.close()


def test_the_places_that_later_prompts_share(model: LlamaModel) -> None:
    """The starts of the two parts, whichever comes first, and places at distances from the end."""
    chunks = [InfillChunk("5" * 200, "a.py")]
    for first in (False, True):
        gap = Infill("1" * 300, "3" * 100, extra=chunks, suffix_first=first)
        prompt = infill_ids(model, gap, 2048, 2048)
        starts = [prompt.index(SUF), prompt.index(PRE)] if first else [prompt.index(PRE), prompt.index(SUF)]
        boundaries = infill_boundaries(model, prompt)
        assert [b.n for b in boundaries if b.kind == "system"] == starts[:1]
        assert [b.n for b in boundaries if b.kind == "user"] == starts[1:]
        assert {b.n for b in boundaries if b.kind == "distance"} == {b.n for b in distances(len(prompt))}
