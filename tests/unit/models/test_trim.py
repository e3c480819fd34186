"""Trimming by headers alone: which tokens are kept, the shortened tokenizer, damaged files, pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from specllama.errors import GGUFError, UsageError
from specllama.gguf.header import Header, read_header, read_source
from specllama.gguf.parse import parse
from specllama.gguf.source import FileSource
from specllama.gguf.trimmed import PREFIX, read_trim
from specllama.heads.check import check_draft, check_model
from specllama.models.trim import (
    MULTIPLE,
    about,
    by_frequency,
    changed_source,
    choose,
    default_kept,
    sha256_of,
    special_ids,
    trim_source,
    write_trimmed,
)
from specllama.models.trim import shortened as shortened_tokenizer
from specllama.pair.check import check_any, check_pair
from specllama.pair.vocab import stand_ins
from tests.support import tinygguf, tinyheads
from tests.support.ggufbytes import GGUF, Typed, llama, vocab_metadata

N_VOCAB = 600
FIRST_MERGED = 259  # after three control tokens and 256 bytes


def nothing(*_: Any) -> Any:
    raise AssertionError("nothing is written in another type")


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinygguf.llama(tmp_path_factory.mktemp("draft") / "draft.gguf", n_vocab=N_VOCAB)


@pytest.fixture(scope="module")
def trimmed(draft: Path) -> Path:
    """The draft with its first 320 tokens but one, and token 599."""
    ids = np.array([*range(319), 599])
    out = draft.with_name("trimmed.gguf")
    info = about(ids, N_VOCAB, draft.name, "0" * 64, draft.stat().st_size, 0.75)
    write_trimmed(trim_source(read_header(draft), False, None), out, ids, info, "", nothing)
    return out


def header_of(tmp_path: Path, tokens: list[str], **vocab: Any) -> Header:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(llama(tokens=tokens, metadata=vocab_metadata(tokens, **vocab)).build())
    with FileSource(path) as source:
        return read_source(source)


def changed(header: Header, **keys: object) -> Header:
    values = {f"{PREFIX}{name}": value for name, value in keys.items()}
    return replace(header, metadata=MappingProxyType({**header.metadata, **values}))  # type: ignore[dict-item]


def test_special_and_byte_tokens_come_first_then_texts_then_the_order_of_merges(draft: Path) -> None:
    header = read_header(draft)
    special = special_ids(header)
    assert special.tolist() == list(range(FIRST_MERGED))
    assert by_frequency(header)[:3].tolist() == [FIRST_MERGED, FIRST_MERGED + 1, FIRST_MERGED + 2]
    plain = choose(header, 320, {})
    assert plain.tolist() == list(range(320))
    with_texts = choose(header, 320, {599: 3, 598: 1, 40: 9})
    assert with_texts.tolist() == [*range(318), 598, 599]
    rare = dict.fromkeys(range(400, 600), 1) | {597: 5}
    assert 597 in choose(header, 260, rare).tolist()
    assert len(choose(header, 260, rare)) == 320


@pytest.mark.parametrize("n", [0, -1, 601, 259, 100])
def test_impossible_numbers_of_tokens_are_refused(draft: Path, n: int) -> None:
    with pytest.raises(UsageError, match="keep"):
        choose(read_header(draft), n, {})


def test_the_default_is_a_quarter_of_the_vocabulary(draft: Path) -> None:
    assert default_kept(262144) == default_kept(131072) == 32768
    assert default_kept(49152) == 12288
    assert len(choose(read_header(draft), None, {})) == 320  # a quarter would not hold the special tokens
    assert 320 % MULTIPLE == 0


def test_a_head_keeps_only_what_it_can_propose(draft: Path) -> None:
    possible = np.array([*range(599, 100, -1), *range(50)])
    kept = choose(read_header(draft), 320, {60: 9, 599: 1}, possible)
    assert np.isin(kept, possible).all()
    assert 60 not in kept.tolist()
    assert 599 in kept.tolist()


def test_placeholders_are_no_special_tokens(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", "<unused0>", "<|reserved_special_token_7|>", "[PAD]", "a", "b", "c"]
    types = Typed("arr[i32]", [2, 3, 3, 3, 3, 3, 1, 6, 4])
    scores = Typed("arr[f32]", [0.0] * 6 + [-2.0, -1.0, -3.0])
    header = header_of(tmp_path, tokens, model="llama", token_type=types, scores=scores)
    assert special_ids(header).tolist() == [0, 1, 2, 5, 7, 8]


def test_scores_order_the_tokens_of_sentencepiece(tmp_path: Path) -> None:
    """Characters by themselves come first, though their scores are the lowest."""
    tokens = ["<unk>", "<s>", "</s>", "xx", "yy", "zz", "w"]
    scores = Typed("arr[f32]", [0.0, 0.0, 0.0, -3.0, -1.0, -2.0, -9.0])
    types = Typed("arr[i32]", [2, 3, 3, 1, 1, 1, 1])
    header = header_of(tmp_path, tokens, model="llama", token_type=types, scores=scores)
    assert by_frequency(header)[:4].tolist() == [6, 4, 5, 3]


def test_the_written_tokenizer_has_the_kept_tokens_and_their_merges(draft: Path, trimmed: Path) -> None:
    whole, header = read_header(draft), read_header(trimmed)
    texts = whole.token_texts
    assert header.token_texts == [*texts[:319], texts[599]]
    merges = [raw.replace(b" ", b"") for raw in header.metadata["tokenizer.ggml.merges"].raws()]  # type: ignore[union-attr]
    assert merges == header.token_texts[FIRST_MERGED:]
    assert (header.bos_id, header.eos_id) == (whole.bos_id, whole.eos_id)
    assert header.integer("llama.vocab_size") == N_VOCAB
    trim = read_trim(header)
    assert trim is not None
    assert (trim.n_kept, trim.n_vocab, trim.source, trim.shortened) == (320, N_VOCAB, "draft.gguf", True)
    assert trim.label == (
        "trimmed from draft.gguf, 320 of 600 tokens, covers 75.0 % of the texts that it was trimmed for"
    )
    rows = np.fromfile(draft, "<f4").size  # the embeddings of the other tokens are at the end of the file
    assert rows
    original = next(t for t in whole.tensors if t.name == "token_embd.weight")
    table = np.memmap(draft, "<f4", "r", original.offset, original.shape[::-1])
    rest = np.memmap(trimmed, "<f4", "r", trim.rest_offset, (280, original.shape[0]))
    assert np.array_equal(rest, table[[*range(319, 599)]])


def test_ids_of_special_tokens_follow_the_tokens(draft: Path) -> None:
    with FileSource(draft) as source:
        entries = dict(parse(source).entries)
    key = "tokenizer.ggml.eos_token_id"
    entries[key] = entries[key]._replace(value=599)
    entries["tokenizer.ggml.suppress_tokens"] = entries[key]._replace(
        value=np.array([5, 599]), kind="arr[i32]"
    )
    ids = np.array([*range(319), 599])
    shortened = {item.key: item for item in shortened_tokenizer(entries, ids, read_header(draft).token_texts)}
    assert shortened[key].value == 319
    assert shortened["tokenizer.ggml.suppress_tokens"].value == [5, 319]


def test_tokens_without_any_merge_are_refused(draft: Path) -> None:
    header = read_header(draft)
    with FileSource(draft) as source:
        entries = parse(source).entries
    with pytest.raises(UsageError, match="no merge"):
        list(shortened_tokenizer(entries, np.arange(FIRST_MERGED), header.token_texts))


def test_a_trimmed_draft_is_a_draft_and_no_model(trimmed: Path) -> None:
    header = read_header(trimmed)
    check_draft(header)
    with pytest.raises(UsageError, match="a trimmed draft"):
        check_model(header)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"version": 2}, "reads 1"),
        ({"ids": np.array([], np.int32)}, "are needed"),
        ({"ids": np.arange(319, dtype=np.int32)}, "320"),
        ({"ids": np.array([*range(318), 599, 318], np.int32)}, "ascending"),
        ({"ids": np.arange(300, 620, dtype=np.int32)}, "ascending ids of 600"),
        ({"n_vocab": 1 << 31}, "ascending ids of"),
        ({"embeddings_offset": 1 << 40}, "embeddings"),
        ({"embeddings_bytes": 64}, "embeddings"),
        ({"embeddings_type": "Q99"}, "embeddings"),
        ({"embeddings_type": "f32"}, "embeddings"),
        ({"embeddings_type": "I32"}, "embeddings"),
        ({"embeddings_scale": float("nan")}, "embeddings_scale"),
        ({"embeddings_scale": 0.0}, "embeddings_scale"),
        ({"coverage": float("nan")}, "coverage"),
        ({"coverage": 1.5}, "coverage"),
    ],
)
def test_damage_is_named(trimmed: Path, keys: dict[str, object], problem: str) -> None:
    with pytest.raises(GGUFError, match=problem):
        check_draft(changed(read_header(trimmed), **keys))


def test_a_trimmed_file_cannot_be_split(trimmed: Path) -> None:
    with pytest.raises(GGUFError, match="cannot be split"):
        check_draft(replace(read_header(trimmed), parts=("a.gguf", "b.gguf")))


def test_the_name_of_the_source_is_escaped(trimmed: Path) -> None:
    trim = read_trim(changed(read_header(trimmed), source="\x1b]52;c;x\x07" + "a" * 9999))
    assert trim is not None
    assert trim.label.isprintable()
    assert len(trim.label) < 500


def test_a_tensor_with_other_rows_than_tokens_is_damage(draft: Path) -> None:
    header = read_header(draft)
    tensors = [
        replace(t, shape=(t.shape[0], N_VOCAB - 1)) if t.name == "output.weight" else t
        for t in header.tensors
    ]
    with pytest.raises(GGUFError, match=f"'output.weight' has {N_VOCAB - 1} rows for {N_VOCAB} tokens"):
        trim_source(replace(header, tensors=tuple(tensors)), False, None)


def test_a_truncated_file_is_damaged(trimmed: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(trimmed.read_bytes()[:-100])
    with pytest.raises(GGUFError, match="embeddings"):
        check_draft(read_header(cut))


def test_the_pair_check_compares_the_kept_tokens(draft: Path, trimmed: Path, tmp_path: Path) -> None:
    verdict = check_pair(read_header(draft), read_header(trimmed))
    assert (verdict.verdict, verdict.n_differing) == ("identical", 0)
    assert any("trimmed from draft.gguf, 320 of 600" in str(note) for note in verdict.notes)
    assert not any("merges differ" in str(note) for note in verdict.notes)
    smaller = tinygguf.llama(tmp_path / "smaller.gguf", n_vocab=590)
    check = check_pair(read_header(smaller), read_header(trimmed))
    assert (check.verdict, check.n_differing) == ("compatible", 10)
    other = tinygguf.llama(tmp_path / "other.gguf", n_vocab=N_VOCAB, more=("<|x|>",))
    check = check_pair(read_header(other), read_header(trimmed))
    assert not check.ok
    assert check.first_difference is not None
    assert check.first_difference.id == 599


def test_stand_ins_are_the_longest_kept_endings(draft: Path, trimmed: Path) -> None:
    target = read_header(draft)
    stand_in = stand_ins(target, read_header(trimmed))
    kept = read_header(trimmed).token_texts
    for token in (400, 598):
        assert kept[stand_in(token)] == target.token_texts[token][-1:]
    assert stand_in(10_000) == 0


FILES: dict[str, Callable[[Path], Path]] = {
    "an assistant of Gemma 4": tinyheads.gemma4_assistant,
    "the output matrix of its target": tinyheads.eagle3,
}


@pytest.mark.parametrize("problem", FILES)
def test_what_has_no_rows_of_its_own_is_not_trimmed(problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        trim_source(read_header(FILES[problem](tmp_path / "head.gguf")), False, None)


def test_a_trimmed_file_is_not_trimmed_again(draft: Path, trimmed: Path) -> None:
    with pytest.raises(UsageError, match="trimmed already"):
        trim_source(read_header(trimmed), False, None)
    with pytest.raises(UsageError, match="no head inside"):
        trim_source(read_header(draft), True, None)
    assert check_any(read_header(draft), read_header(trimmed)).ok


def test_a_change_of_any_part_of_a_split_source_is_seen(trimmed: Path, tmp_path: Path) -> None:
    whole = llama()
    paths = [tmp_path / f"m-{i + 1:05d}-of-00002.gguf" for i in range(2)]
    for i, path in enumerate(paths):
        keys = {"split.no": Typed("u16", i), "split.count": Typed("u16", 2)}
        more = dict(whole.metadata) if i == 0 else {}  # type: ignore[call-overload]
        path.write_bytes(GGUF({**more, **keys}, list(whole.tensors)[i::2]).build())
    facts = {
        "source": paths[0].name,
        "source_bytes": sum(path.stat().st_size for path in paths),
        "source_sha256": sha256_of(map(str, paths), lambda _share: None),
    }
    draft = replace(changed(read_header(trimmed), **facts), path=str(tmp_path / "draft.gguf"))
    Path(draft.path).touch()
    assert changed_source(draft) == ""
    data = bytearray(paths[1].read_bytes())
    data[-1] ^= 1
    paths[1].write_bytes(data)
    assert changed_source(draft) == paths[0].name
    paths[1].unlink()
    assert changed_source(draft) == paths[0].name
