"""What large vocabularies share is worked out once, and a file that is damaged counts as missing."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.gguf.header import Header, read_header
from specllama.pair import overlap as comparison
from specllama.pair import overlap as overlap_file
from specllama.pair.overlap import overlap
from specllama.pair.vocab import Overlap
from tests.support.foreign import permuted


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Header, Header]:
    path = tmp_path_factory.mktemp("pair") / "draft.gguf"
    other = permuted(Path(EMBEDDED_DRAFT), path, every=4, drop=True)
    return read_header(EMBEDDED_TARGET), read_header(other)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files are, for vocabularies of any size."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(overlap_file, "LEAST_TOKENS", 0)
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
    monkeypatch.setattr(comparison, "token_bytes", lambda _header: pytest.fail("compared again"))
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
        assert overlap_file.read(*pair) is None
    assert same(compared(pair), first)
    assert path.read_bytes() == whole
    path.unlink()
    path.mkdir()
    assert same(compared(pair), first)


def test_files_without_an_end_are_not_read(pair: tuple[Header, Header], folder: Path) -> None:
    first = compared(pair)
    path = only_file(folder)
    path.write_bytes(path.read_bytes() + b"x" * (1 << 20))
    assert overlap_file.read(*pair) is None
    path.unlink()
    os.mkfifo(path)
    assert overlap_file.read(*pair) is None
    assert same(first, compared(pair))
    assert path.is_file()


def test_a_file_of_another_pair_under_its_name(pair: tuple[Header, Header], folder: Path) -> None:
    target, draft = pair
    compared(pair)
    mine = only_file(folder)
    compared((draft, target))
    (other,) = (path for path in folder.iterdir() if path != mine)
    mine.write_bytes(other.read_bytes())
    assert overlap_file.read(*pair) is None


def test_nothing_is_stored_where_that_is_not_possible(
    pair: tuple[Header, Header], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.write_text("a file in place of the cache")
    assert compared(pair).n_shared > 0
    monkeypatch.setattr(overlap_file, "LEAST_TOKENS", 1 << 16)
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
    for i in range(overlap_file.MAX_FILES):
        old = folder / f"{i:032x}.overlap"
        old.write_bytes(b"x")
        os.utime(old, (i, i))
    first.unlink()
    compared(pair)
    left = sorted(path.name for path in folder.iterdir())
    assert len(left) == overlap_file.MAX_FILES
    assert first.name in left
    assert f"{0:032x}.overlap" not in left
