"""The key of a model changes with everything that could change a state, and a scope with its API key."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from specllama.gguf.header import HEAD_BYTES, file_identity
from specllama.prefix_disk.scopes import LOCAL, OPEN, SHARED, model_key, scope_of, state_name


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(random.Random(1).randbytes(3_000_000))
    os.utime(path, (1e9, 1e9))
    return path


def key(*paths: Path, **facts: object) -> str:
    return model_key(map(file_identity, paths), facts, {})


def test_the_same_file_has_the_same_key(file: Path) -> None:
    assert key(file) == key(file)
    assert len(key(file)) == 32
    assert key(file) != key(file, file) != key()


def test_a_copy_under_another_name_is_the_same_model(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(file.read_bytes())
    os.utime(other, (1e9, 1e9))
    assert key(other) == key(file)
    (tmp_path / "link.gguf").symlink_to(file)
    assert key(tmp_path / "link.gguf") == key(file)


@pytest.mark.parametrize("at", [0, 100, HEAD_BYTES - 1, 2_999_999, 2_996_000])
def test_another_byte_at_the_beginning_or_the_end_is_another_model(file: Path, at: int) -> None:
    before, data = key(file), bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    os.utime(file, (1e9, 1e9))
    assert key(file) != before


def test_a_file_of_other_content_under_the_same_name_size_and_time_is_another_model(file: Path) -> None:
    before = key(file)
    file.write_bytes(file.read_bytes()[:HEAD_BYTES] + random.Random(2).randbytes(3_000_000 - HEAD_BYTES))
    os.utime(file, (1e9, 1e9))
    assert key(file) != before


def test_a_change_that_no_sample_sees_is_seen_by_its_time(file: Path) -> None:
    before = key(file)
    os.utime(file, (1e9, 1e9 + 1))
    assert key(file) != before


def test_a_file_that_the_hub_names_by_its_hash_needs_no_time(file: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    blob = tmp_path / "blobs" / ("a" * 64)
    blob.write_bytes(file.read_bytes())
    (tmp_path / "name.gguf").symlink_to(blob)
    before = key(tmp_path / "name.gguf")
    os.utime(blob, (2e9, 2e9))
    assert key(tmp_path / "name.gguf") == before
    assert before != key(file)


@pytest.mark.parametrize("n_bytes", [0, 1, 4096, 4097, 100_000])
def test_small_files_have_keys_too(tmp_path: Path, n_bytes: int) -> None:
    (tmp_path / "small").write_bytes(b"x" * n_bytes)
    assert file_identity(tmp_path / "small").content.split()[0] == str(n_bytes)


def test_a_file_that_is_replaced_is_seen(file: Path, tmp_path: Path) -> None:
    before = file_identity(file)
    assert before.unchanged()
    new = tmp_path / "new"
    new.write_bytes(file.read_bytes())
    os.utime(new, (1e9, 1e9))
    new.replace(file)
    assert not before.unchanged()
    file.unlink()
    assert not before.unchanged()
    with pytest.raises(OSError, match=r"model\.gguf"):
        file_identity(file)


def test_facts_and_variables_of_llama_cpp_are_in_the_key(file: Path) -> None:
    identity = [file_identity(file)]
    plain = model_key(identity, {}, {})
    assert model_key(identity, {"threads": [2, 2]}, {}) != plain
    assert model_key(identity, {}, {"GGML_CUDA_FORCE_MMQ": "1"}) != plain
    assert model_key(identity, {}, {"LLAMA_ARG_CTX_SIZE": "1", "HOME": "/", "XGGML_A": "1"}) == plain
    assert model_key(identity, {"a": 1, "b": 2}, {}) == model_key(identity, {"b": 2, "a": 1}, {})


def test_scopes_depend_on_the_key_and_the_directory_alone() -> None:
    assert scope_of("first", b"s" * 32) == scope_of("first", b"s" * 32)
    scopes = {scope_of(k, s) for k in ("first", "second", "", "\udcff") for s in (b"s" * 32, b"t" * 32)}
    assert len(scopes) == 8
    assert not scopes & {LOCAL, OPEN, SHARED}
    assert not any("first" in scope for scope in scopes)


def test_names_of_files_depend_on_all_of_a_state() -> None:
    plain = ("key", "scope", "whole", b"ids", b"s" * 32)
    names = {state_name(*plain)}
    for i, other in enumerate(("other", "other", "partial", b"sdi", b"t" * 32)):
        names.add(state_name(*plain[:i], other, *plain[i + 1 :]))  # type: ignore[arg-type]
    names.add(state_name("keys", "cope", "whole", b"ids", b"s" * 32))
    assert len(names) == 7
