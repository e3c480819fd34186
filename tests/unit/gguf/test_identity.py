"""A model is known by the content of its files, wherever they are."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.gguf import header as module
from specllama.gguf.header import identity, read_model
from tests.support.ggufbytes import GGUF, Typed, llama


def written(path: Path, gguf: GGUF, weights: int) -> Path:
    """The file with random weights."""
    path.write_bytes(gguf.header() + random.Random(weights).randbytes(gguf.data_bytes()))
    return path


def split(folder: Path, weights: int, last_weights: int) -> list[Path]:
    """Three parts of one model; the last one has its own weights."""
    folder.mkdir()
    whole, parts = llama(), []
    for i in range(3):
        keys = {"split.no": Typed("u16", i), "split.count": Typed("u16", 3)}
        meta = {**(dict(whole.metadata) if i == 0 else {}), **keys}  # type: ignore[call-overload]
        part = GGUF(meta, list(whole.tensors)[i::3])
        parts.append(
            written(folder / f"m-0000{i + 1}-of-00003.gguf", part, last_weights if i == 2 else weights)
        )
    return parts


def known(path: Path) -> list[str | int]:
    return identity(read_model(path))


def test_models_that_differ_in_weights_alone_are_apart(tmp_path: Path) -> None:
    one, other = (written(tmp_path / f"{n}.gguf", llama(), n) for n in (1, 2))
    assert one.stat().st_size == other.stat().st_size
    assert known(one) == known(one) != known(other)
    assert known(one)[:-1] == known(other)[:-1]


@pytest.mark.parametrize("name", ["", "Tiny"])
def test_a_copy_is_the_same_model(tmp_path: Path, name: str) -> None:
    gguf = llama()
    gguf.metadata = {**dict(gguf.metadata), "general.name": name}  # type: ignore[call-overload]
    one = written(tmp_path / "one.gguf", gguf, 1)
    before = known(one)
    assert before[0] == (name or "llama"), "which doctor shows"
    copy = Path(shutil.copy(one, tmp_path / "another name.gguf"))
    os.utime(copy, (1e9, 1e9))
    os.utime(one, (2e9, 2e9))
    (tmp_path / "link.gguf").symlink_to(one)
    assert known(copy) == known(one) == known(tmp_path / "link.gguf") == before


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    first, *_ = split(tmp_path / "one", 1, 1)
    copy, *_ = split(tmp_path / "copy", 1, 1)
    other, *_ = split(tmp_path / "other", 1, 2)
    assert known(first) == known(copy) != known(other)
    assert len(known(first)) == len(known(other)), "one hash, however many parts"


def test_a_model_that_is_not_on_this_disk_has_name_and_sizes(tmp_path: Path) -> None:
    header = read_model(written(tmp_path / "one.gguf", llama(), 1))
    remote = replace(header, path="owner/repo/m.gguf", parts=("owner/repo/m.gguf",))
    expected = ["tiny", "llama", header.quant, header.n_params, header.file_bytes]
    assert identity(remote) == identity(replace(remote, parts=())) == expected


def test_files_are_read_once_for_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = read_model(written(tmp_path / "one.gguf", llama(), 1))
    before = identity(header)
    monkeypatch.setattr(module, "file_identity", None)
    assert identity(header) == before
