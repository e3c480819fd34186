"""The tokens that two vocabularies share, from headers alone; for large ones this is worked out once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.config.load import ModelSettings
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.gguf.header import Header, read_header, read_source
from specllama.llama.model import LlamaModel
from specllama.pair import overlap as overlap_module
from specllama.pair.overlap import check_translated, overlap
from specllama.pair.vocab import Overlap, token_bytes
from tests.support.foreign import permuted
from tests.support.ggufbytes import GGUF, BytesSource, Typed, vocab_metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def header(tokens: Sequence[str], model: str = "gpt2", types: Sequence[int] = (), **extra: Any) -> Header:
    kinds = Typed("arr[i32]", [*types, *[NORMAL] * (len(tokens) - len(types))])
    keys = {"scores": Typed("arr[f32]", [0.0] * len(tokens)), "token_type": kinds, **extra}
    meta = {"general.architecture": "llama", **vocab_metadata(tokens, model, **keys)}
    return read_source(BytesSource(GGUF(meta).build()))


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
        (BPE, header([f"~{i}" for i in range(200)]), "share 0 of the draft's 200 tokens"),
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


# Comparisons that are stored: a file that is damaged counts as missing.


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Header, Header]:
    path = tmp_path_factory.mktemp("pair") / "draft.gguf"
    other = permuted(Path(EMBEDDED_DRAFT), path, every=4, drop=True)
    return read_header(EMBEDDED_TARGET), read_header(other)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files are, for vocabularies of any size."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(overlap_module, "LEAST_TOKENS", 0)
    return tmp_path / "cache" / "vocabularies"


def compared(pair: tuple[Header, Header]) -> Overlap:
    shared, problem = overlap(*pair)
    assert shared is not None, problem
    return shared


def same(a: Overlap, b: Overlap) -> bool:
    arrays = (
        np.array_equal(getattr(a, n), getattr(b, n)) for n in ("to_target", "may_grow", "never_drafted")
    )
    numbers = ("n_target", "n_shared", "n_ordinary")
    return all(arrays) and all(getattr(a, n) == getattr(b, n) for n in numbers)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_it_is_worked_out_once(
    pair: tuple[Header, Header], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compared(pair)
    monkeypatch.setattr(overlap_module, "token_bytes", lambda _header: pytest.fail("compared again"))
    again = compared(pair)
    assert same(first, again)
    assert (again.to_target.dtype, again.may_grow.dtype, again.never_drafted.dtype) == (
        np.int64,
        np.bool_,
        np.int64,
    )
    assert folder.stat().st_mode & 0o777 == 0o700
    assert only_file(folder).stat().st_mode & 0o777 == 0o600


def test_pairs_are_told_apart(pair: tuple[Header, Header], folder: Path) -> None:
    target, draft = pair
    assert compared((target, draft)).n_target == target.n_vocab
    assert compared((draft, target)).n_target == draft.n_vocab
    assert compared((target, target)).share == 1.0
    assert len(list(folder.iterdir())) == 3


def test_a_changed_tokenizer_is_compared_again(pair: tuple[Header, Header], folder: Path) -> None:
    target, draft = pair
    compared(pair)
    changed = dict(target.metadata) | {"tokenizer.ggml.eot_token_id": 7}
    compared((Header(**{**_fields(target), "metadata": changed}), draft))
    assert len(list(folder.iterdir())) == 2


def _fields(header: Header) -> dict[str, object]:
    return {f.name: getattr(header, f.name) for f in dataclasses.fields(header) if f.init}


def test_damaged_files_are_ignored_and_replaced(pair: tuple[Header, Header], folder: Path) -> None:
    first = compared(pair)
    path = only_file(folder)
    whole = path.read_bytes()
    damaged = [whole[:n] for n in (0, 1, 31, 32, 40, 72, len(whole) // 2, len(whole) - 1)]
    for at in range(0, len(whole), len(whole) // 23):
        damaged.append(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    for data in (*damaged, whole + b"\0", b"\xff" * len(whole)):
        path.write_bytes(data)
        assert overlap_module.read(*pair) is None
    assert same(compared(pair), first)
    assert path.read_bytes() == whole
    path.unlink()
    path.mkdir()
    assert same(compared(pair), first)


def test_files_without_an_end_are_not_read(pair: tuple[Header, Header], folder: Path) -> None:
    first = compared(pair)
    path = only_file(folder)
    path.write_bytes(path.read_bytes() + b"x" * (1 << 20))
    assert overlap_module.read(*pair) is None
    path.unlink()
    os.mkfifo(path)
    assert overlap_module.read(*pair) is None
    assert same(first, compared(pair))
    assert path.is_file()


def test_a_file_of_another_pair_under_its_name(pair: tuple[Header, Header], folder: Path) -> None:
    target, draft = pair
    compared(pair)
    mine = only_file(folder)
    compared((draft, target))
    (other,) = (path for path in folder.iterdir() if path != mine)
    mine.write_bytes(other.read_bytes())
    assert overlap_module.read(*pair) is None


def test_nothing_is_stored_where_that_is_not_possible(
    pair: tuple[Header, Header], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.write_text("a file in place of the cache")
    assert compared(pair).n_shared > 0
    monkeypatch.setattr(overlap_module, "LEAST_TOKENS", 1 << 16)
    monkeypatch.setenv("SPECLLAMA_CACHE", str(folder.parent.with_name("small")))
    compared(pair)
    assert not folder.parent.with_name("small").exists()


def test_a_folder_that_others_may_enter_is_closed_to_them(pair: tuple[Header, Header], folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    compared(pair)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_only_the_newest_are_kept(pair: tuple[Header, Header], folder: Path) -> None:
    compared(pair)
    first = only_file(folder)
    for i in range(overlap_module.MAX_FILES):
        old = folder / f"{i:032x}.overlap"
        old.write_bytes(b"x")
        os.utime(old, (i, i))
    first.unlink()
    compared(pair)
    left = sorted(path.name for path in folder.iterdir())
    assert len(left) == overlap_module.MAX_FILES
    assert first.name in left
    assert f"{0:032x}.overlap" not in left
