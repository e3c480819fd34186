"""Drafts of another vocabulary for `-md auto`: those that were measured to pay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.gguf.header import Header, identity, read_header
from specllama.models.foreign_drafts import PAYS, DraftRecord, MeasuredDrafts, Source
from specllama.models.prepare import pair_on_disk
from specllama.models.resolve import Library
from tests.support.demo import Notes
from tests.support.foreign import permuted


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that no draft is known for, with a cache of its own."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copy(EMBEDDED_TARGET, tmp_path / "big.gguf"))


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return permuted(Path(EMBEDDED_DRAFT), tmp_path / "other.gguf", every=4, drop=True)


def measured(path: Path, speedup: float, without: float = 1.0, source: Source = "tune") -> DraftRecord:
    return DraftRecord(str(path), identity(read_header(path)), source, speedup, without, 640, 0.5, 0.3)


def chosen(target: Path, vocab: str) -> tuple[str | None, list[str]]:
    """The path of the draft that `-md auto` uses, and the notes."""
    notes = Notes()
    pair = pair_on_disk(Library(notes), str(target), "auto", vocab)
    assert pair is not None
    return (pair[1] if len(pair) > 1 else None), notes.notes


def header(path: Path) -> Header:
    return read_header(path)


def test_none_is_used_before_it_was_measured(target: Path, draft: Path) -> None:
    assert draft.exists()
    assert chosen(target, "auto") == (None, [])


def test_one_that_pays_is_used_where_tokens_are_translated(target: Path, draft: Path) -> None:
    MeasuredDrafts(header(target)).put(measured(draft, 1.4, 1.1))
    path, notes = chosen(target, "auto")
    assert path == str(draft)
    assert "tune predicted 1.40 x plain decoding, 1.10 x without it" in notes[0]
    assert "% of tokens shared" in notes[0]
    path, (note,) = chosen(target, "strict")
    assert path is None
    assert "would use the draft other.gguf" in note


def test_it_has_to_gain_over_copying_alone(target: Path, draft: Path) -> None:
    drafts = MeasuredDrafts(header(target))
    for speedup, without, used in ((1.4, 1.4, False), (1.02, 1.0, False), (1.1, 0.9, True), (1.6, 1.5, True)):
        drafts.put(measured(draft, speedup, without))
        assert (chosen(target, "auto")[0] is not None) == used
    assert len(drafts.all()) == 1


def test_answers_count_as_what_was_measured_last(target: Path, draft: Path) -> None:
    drafts = MeasuredDrafts(header(target))
    drafts.put(measured(draft, 1.4))
    drafts.put(measured(draft, PAYS - 0.1, source="answers"))
    path, (note,) = chosen(target, "auto")
    assert path is None
    assert "other.gguf is left out: in answers here, rounds with it were 0.95 x as fast" in note
    assert chosen(target, "strict") == (None, [])
    drafts.put(measured(draft, PAYS + 0.1, source="answers"))
    path, (note,) = chosen(target, "auto")
    assert path == str(draft)
    assert "rounds with it were 1.15 x as fast" in note


def test_drafts_that_differ_in_weights_alone_have_records_of_their_own(
    target: Path, draft: Path, tmp_path: Path
) -> None:
    trained = Path(shutil.copy(draft, tmp_path / "trained.gguf"))
    with trained.open("r+b") as file:
        file.seek(-4096, 2)
        file.write(bytes(4096))
    drafts = MeasuredDrafts(header(target))
    for one, speedup in ((draft, 1.4), (trained, 1.2)):
        drafts.put(measured(one, speedup))
    moved = Path(shutil.copy(trained, tmp_path / "moved.gguf"))
    assert [found and found.speedup for found in map(drafts.of, map(header, (draft, moved)))] == [1.4, 1.2]


def test_the_one_that_gains_most_is_used_if_it_is_still_there(
    target: Path, draft: Path, tmp_path: Path
) -> None:
    better = permuted(Path(EMBEDDED_DRAFT), tmp_path / "better.gguf")
    drafts = MeasuredDrafts(header(target))
    drafts.put(measured(draft, 1.4))
    drafts.put(measured(better, 1.5))
    assert chosen(target, "auto")[0] == str(better)
    shutil.copy(EMBEDDED_TARGET, better)  # another model under its name
    assert chosen(target, "auto")[0] == str(draft)
    better.write_bytes(b"no model")
    assert chosen(target, "auto")[0] == str(draft)
    draft.unlink()
    assert chosen(target, "auto") == (None, [])


def test_damaged_records_count_as_none(target: Path, draft: Path, tmp_path: Path) -> None:
    drafts = MeasuredDrafts(header(target))
    drafts.put(measured(draft, 1.4))
    (path,) = (tmp_path / "cache" / "drafts").glob("*.json")
    whole = json.loads(path.read_text())
    good = whole["drafts"][0]
    for wrong in (
        {"speedup": "fast"}, {"speedup": -1}, {"speedup": 1e9}, {"without": None}, {"path": 3},
        {"model": "x"}, {"source": "guess"}, {"n_tokens": 1.5}, {"acceptance": 2}, {"needed": "0.3"},
        {"more": 1},
    ):  # fmt: skip
        path.write_text(json.dumps({**whole, "drafts": [{**good, **wrong}, 7]}))
        assert drafts.all() == []
    for text in ("", "[]", '{"schema": 1, "drafts": 3}', "{" * 100):
        path.write_text(text)
        assert drafts.all() == []
    drafts.put(measured(draft, 1.4))
    assert [one.speedup for one in drafts.all()] == [1.4]


def test_the_oldest_are_forgotten(target: Path, draft: Path) -> None:
    drafts = MeasuredDrafts(header(target))
    for i in range(40):
        one = measured(draft, 1.0 + i / 100)
        drafts.put(DraftRecord(**{**_fields(one), "model": [f"draft {i}", *one.model[1:]]}))
    assert [one.model[0] for one in drafts.all()] == [f"draft {i}" for i in range(39, 23, -1)]


def _fields(one: DraftRecord) -> dict[str, object]:
    return {name: getattr(one, name) for name in DraftRecord.__dataclass_fields__}
