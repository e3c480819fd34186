"""GGUF headers: reads valid ones, and rejects all others with file, field and offset."""

from __future__ import annotations

import math
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specllama.errors import GGUFError, IntegrityError, NotFoundError, UsageError
from specllama.gguf import parse as format_
from specllama.gguf.header import Header, read_header, read_model, read_source
from specllama.gguf.parse import parse
from specllama.gguf.source import FileSource
from specllama.heads.check import check_model
from tests.support.ggufbytes import GGUF, BytesSource, Tensor, Typed, llama, string, u32, words


def write(path: Path, gguf: GGUF | bytes) -> Path:
    path.write_bytes(gguf if isinstance(gguf, bytes) else gguf.build())
    return path


def rejection(gguf: GGUF | bytes) -> str:
    data = gguf if isinstance(gguf, bytes) else gguf.build()
    with pytest.raises(GGUFError) as caught:
        read_source(BytesSource(data))
    assert caught.value.hint
    assert caught.value.message.startswith("memory.gguf: ")
    assert "at byte" in caught.value.message
    return caught.value.message


def model_rejection(gguf: GGUF) -> str:
    with pytest.raises(GGUFError) as caught:
        check_model(read_source(BytesSource(gguf.build())))
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize("version", [2, 3])
def test_reads_the_metadata_and_tensors_of_a_model(tmp_path: Path, version: int) -> None:
    gguf = llama(metadata={"tokenizer.chat_template": "{{ messages }}", "tokenizer.ggml.bos_token_id": 3})
    gguf.version = version
    path = write(tmp_path / "m.gguf", gguf)
    h = read_model(path)
    check_model(h)
    with FileSource(path) as source:
        parsed = parse(source)
    assert (parsed.version, parsed.alignment) == (version, 32)
    assert (h.architecture, h.name, h.quant) == ("llama", "tiny", "F16")
    assert (h.n_layer, h.n_embd, h.n_ctx_train, h.n_vocab) == (2, 64, 2048, 32)
    assert (h.n_head, h.n_head_kv) == ((4, 4), (2, 2))
    assert (h.bos_id, h.eos_id, h.chat_template) == (3, None, "{{ messages }}")
    assert list(h.tokens) == words(32)
    assert h.tokens.raw(31) == b"t31"
    types = h.metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, np.ndarray)
    assert types.tolist() == [1] * 32
    assert h.file_bytes == path.stat().st_size
    assert h.weight_bytes == sum(t.n_bytes for t in h.tensors)
    embedding = h.tensors[0]
    assert (embedding.name, embedding.shape, embedding.type, embedding.n_bytes) == (
        "token_embd.weight",
        (64, 32),
        "F16",
        64 * 32 * 2,
    )
    assert embedding.offset % 32 == 0
    assert h.n_params == sum(t.n_elements for t in h.tensors)
    assert h.tensors[-1].offset + h.tensors[-1].n_bytes <= h.file_bytes


def test_reads_every_value_type() -> None:
    values = {
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -2,
        "u32": 1 << 31,
        "i32": -3,
        "f32": 0.5,
        "bool": True,
        "u64": 1 << 63,
        "i64": -(1 << 62),
        "f64": 0.25,
        "str": "schön",
    }
    arrays = {f"arr[{k}]": [v, v] for k, v in values.items()}
    meta = {k: Typed(k, v) for k, v in values.items()} | {k: Typed(k, v) for k, v in arrays.items()}
    h = read_source(BytesSource(GGUF(meta).build()))
    assert {k: h.metadata[k] for k in values} == values
    for kind in arrays:
        assert list(h.metadata[kind]) == arrays[kind]  # type: ignore[arg-type]
    assert isinstance(h.metadata["bool"], bool)


def test_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    reader = pytest.importorskip("gguf").GGUFReader
    path = write(tmp_path / "m.gguf", llama(type_id=8))
    ours, theirs = read_header(path), reader(path)
    tensors = [(t.name, tuple(t.shape), t.type, t.n_bytes, t.offset) for t in ours.tensors]
    assert tensors == [
        (t.name, tuple(map(int, t.shape)), t.tensor_type.name, t.n_bytes, t.data_offset)
        for t in theirs.tensors
    ]


def test_quantisation_comes_from_the_file_type_or_the_tensors() -> None:
    assert read_source(BytesSource(GGUF({"general.file_type": 15}).build())).quant == "Q4_K_M"
    assert read_source(BytesSource(GGUF({"general.file_type": 1024 + 7}).build())).quant == "Q8_0"
    tensors = [Tensor("a", (256,), 0), Tensor("b", (256, 9), 12)]
    assert read_source(BytesSource(GGUF({}, tensors).build())).quant == "Q4_K"
    assert read_source(BytesSource(GGUF({"general.file_type": 9999}).build())).quant == ""


def test_bytes_per_token_counts_the_weights_read_per_token() -> None:
    dense, tied = (read_source(BytesSource(llama(tied=t).build())) for t in (False, True))
    embedding = 64 * 32 * 2
    assert dense.bytes_per_token == dense.weight_bytes - embedding
    assert tied.bytes_per_token == tied.weight_bytes
    experts = llama(metadata={"llama.expert_count": 4, "llama.expert_used_count": 1})
    experts.tensors = [*experts.tensors, Tensor("blk.0.ffn_up_exps.weight", (64, 32, 4), 1)]
    routed = read_source(BytesSource(experts.build()))
    assert routed.bytes_per_token == dense.bytes_per_token + 64 * 32 * 2


def test_per_layer_lists_and_their_length() -> None:
    lists = {"llama.attention.head_count_kv": Typed("arr[i32]", [2, 0])}
    assert read_source(BytesSource(llama(metadata=lists).build())).n_head_kv == (2, 0)
    wrong = {"llama.attention.head_count_kv": Typed("arr[i32]", [2, 0, 2])}
    assert "3 values for 2 layers" in model_rejection(llama(metadata=wrong))
    absent = llama(metadata={"llama.attention.head_count_kv": None})
    assert read_source(BytesSource(absent.build())).n_head_kv == (4, 4)


FOREIGN = {
    "empty": (b"", "empty"),
    "html": (b"<!DOCTYPE html>\n<html><head><title>401</title></head></html>", "HTML"),
    "html without doctype": (b"\n  <html>", "HTML"),
    "json": (b'{"error": "Repository not found"}', "JSON"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4920739232\n",
        "git-LFS pointer",
    ),
    "safetensors": (struct.pack("<Q", 120) + b'{"__metadata__":{}}', "safetensors"),
    "zip": (b"PK\x03\x04" + bytes(60), "PyTorch"),
    "ggml": (b"tjgg" + bytes(60), "GGML"),
    "zeros": (bytes(4096), "unfinished"),
    "text": (b"hello there, this is not a model at all", "b'hell'"),
    "short": (b"GG", "b'GG'"),
}


@pytest.mark.parametrize(("data", "message_part"), FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_files_are_named(data: bytes, message_part: str) -> None:
    message = rejection(data)
    assert message_part in message
    assert message.index("not a GGUF model") < message.index("magic at byte 0")


def test_rejects_everything_but_regular_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a directory"):
        read_header(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(UsageError, match="a named pipe"):
        read_header(tmp_path / "pipe.gguf")
    with pytest.raises(UsageError, match="a device"):
        read_header("/dev/zero")
    with pytest.raises(NotFoundError, match=r"absent\.gguf"):
        read_header(tmp_path / "absent.gguf")
    with pytest.raises(NotFoundError):
        read_header(tmp_path / "pipe.gguf" / "below")
    with pytest.raises(UsageError):
        read_header("nul\0byte")
    with pytest.raises(UsageError):
        read_header("n" * 5000)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads everything")
def test_rejects_an_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", llama())
    path.chmod(0)
    with pytest.raises(UsageError, match="permission"):
        read_header(path)


@pytest.mark.parametrize(
    ("version", "message_part"),
    [(0, "0 cannot be read"), (1, "1 cannot be read"), (99, "99"), (3 << 24, "big-endian")],
)
def test_rejects_other_versions(version: int, message_part: str) -> None:
    message = rejection(GGUF(version=version))
    assert message_part in message
    assert "version at byte 4" in message


META = {"general.architecture": "llama", "llama.block_count": 2}
HUGE = (1 << 64) - 1


def raw_value(type_id: int, body: bytes) -> Typed:
    return Typed("raw", struct.pack("<I", type_id) + body)


MALFORMED = {
    "tensor count": (GGUF(META, n_tensors=HUGE), "tensor_count at byte 8"),
    "tensor count, plausible": (GGUF(META, n_tensors=10), "tensor_count"),
    "kv count": (GGUF(META, n_kv=HUGE), "metadata_kv_count at byte 16"),
    "one kv too many": (GGUF({**META, "k": "v" * 40}, n_kv=4), "metadata[3] key"),
    "key length": (GGUF().build()[:16] + struct.pack("<QQ", 1, HUGE) + bytes(64), "metadata[0] key"),
    "empty key": (GGUF([("", 1)]), "metadata[0] ''"),
    "key not UTF-8": (GGUF([(b"\xff\xfe", 1)]), "not UTF-8"),
    "duplicate key": (GGUF([("a", 1), ("b", 2), ("a", 3)]), "metadata[2] 'a' at byte"),
    "string length": (GGUF([("a", raw_value(8, struct.pack("<Q", HUGE)))]), "metadata[0] 'a'"),
    "value type": (GGUF([("a", raw_value(13, bytes(8)))]), "metadata[0] 'a' type"),
    "array type": (GGUF([("a", raw_value(9, struct.pack("<IQ", 77, 1) + bytes(8)))]), "element type"),
    "nested array": (GGUF([("a", raw_value(9, struct.pack("<IQ", 9, 1) + bytes(64)))]), "array of arrays"),
    "array length": (GGUF([("a", raw_value(9, struct.pack("<IQ", 4, HUGE) + bytes(8)))]), "'a' length"),
    "array 2^61": (GGUF([("a", raw_value(9, struct.pack("<IQ", 10, 1 << 61) + bytes(8)))]), "'a' length"),
    "strings length": (GGUF([("a", raw_value(9, struct.pack("<IQ", 8, HUGE) + bytes(8)))]), "'a' length"),
    "third string": (
        GGUF([("a", raw_value(9, struct.pack("<IQ", 8, 3) + string("x") * 2 + struct.pack("<Q", 1 << 62)))]),
        "metadata[0] 'a'[2] at byte",
    ),
    "string of 2^64 - 1": (
        GGUF([("a", raw_value(9, struct.pack("<IQ", 8, 2) + struct.pack("<Q", HUGE) + bytes(40)))]),
        "metadata[0] 'a'[0] at byte",
    ),
    "alignment 0": (GGUF({"general.alignment": 0}), "general.alignment at byte 24"),
    "alignment 4": (GGUF({"general.alignment": 4}), "general.alignment"),
    "alignment 48": (GGUF({"general.alignment": 48}), "general.alignment"),
    "alignment type": (GGUF({"general.alignment": Typed("u64", 32)}), "u64, not u32"),
    "wrong kind": (GGUF({"general.architecture": 7}), "'general.architecture' at byte 24"),
    "wrong kind of layers": (
        GGUF({"general.architecture": "llama", "llama.block_count": "two"}),
        "metadata[1] 'llama.block_count' at byte",
    ),
    "tokens of numbers": (GGUF({"tokenizer.ggml.tokens": Typed("arr[i32]", [1])}), "arr[i32], not arr[str]"),
    "no dimensions": (GGUF({}, [Tensor("a", (), 0, 4)]), "tensor[0] 'a' dimensions"),
    "five dimensions": (GGUF({}, [Tensor("a", (1, 1, 1, 1, 1))]), "there are 5"),
    "a million dimensions": (
        GGUF(n_tensors=1).build() + string("a") + struct.pack("<I", 1 << 20) + bytes(64),
        "tensor[0] 'a' dimensions",
    ),
    "dimension 0": (GGUF({}, [Tensor("a", (4, 0), 0, 16)]), "dimension of 0"),
    "dimensions overflow": (GGUF({}, [Tensor("a", (1 << 40, 1 << 40), 0, 16)]), "overflows"),
    "dimension 2^63": (GGUF({}, [Tensor("a", (1 << 63,), 0, 16)]), "overflows"),
    "blocks": (GGUF({}, [Tensor("a", (255,), 12, 144)]), "blocks of 256 (Q4_K)"),
    "tensor type": (GGUF({}, [Tensor("a", (4,), 99, 16)]), "tensor[0] 'a' type"),
    "tensor type 4": (GGUF({}, [Tensor("a", (4,), 4, 16)]), "Q4_2 is no longer read"),
    "tensor name": (GGUF({}, [Tensor("n" * 64, (4,))]), "tensor[0] name"),
    "no tensor name": (GGUF({}, [Tensor("", (4,))]), "tensor[0] name"),
    "duplicate tensor": (GGUF({}, [Tensor("a", (4,)), Tensor("a", (4,))]), "occurs twice"),
    "unaligned": (GGUF({}, [Tensor("a", (4,)), Tensor("b", (4,), offset=20)]), "tensor[1] 'b' offset"),
    "overlap": (GGUF({}, [Tensor("a", (40,)), Tensor("b", (4,), offset=32)]), "overlaps"),
    "hole": (GGUF({}, [Tensor("a", (4,)), Tensor("b", (4,), offset=64)]), "hole"),
    "offset 2^64 - 32": (GGUF({}, [Tensor("a", (4,), offset=HUGE - 31)]), "hole"),
}


@pytest.mark.parametrize(("gguf", "message_part"), MALFORMED.values(), ids=MALFORMED.keys())
def test_rejects_malformed_headers(gguf: GGUF | bytes, message_part: str) -> None:
    assert message_part in rejection(gguf)


def test_offsets_in_messages_point_to_the_field() -> None:
    data = GGUF([("a", 1), ("b", 2), ("a", 3)]).build()
    message = rejection(data)
    offset = int(message.split("at byte ")[1].split(":")[0])
    assert data[offset : offset + 9] == string("a")
    assert offset == data.rindex(string("a"))


def test_truncated_data_is_an_error_with_the_missing_bytes() -> None:
    gguf = llama()
    gguf.truncate = 1000
    message = rejection(gguf)
    assert "1000 bytes are missing" in message
    assert "data at byte" in message


def test_padding_of_the_last_tensor_may_be_missing() -> None:
    gguf = GGUF({}, [Tensor("a", (1,))])
    gguf.truncate = 28
    assert read_source(BytesSource(gguf.build())).tensors[0].n_bytes == 4


def test_rejects_a_header_truncated_anywhere() -> None:
    data = llama().header()
    for end in range(0, len(data), 7):
        with pytest.raises(GGUFError):
            read_source(BytesSource(data[:end]))


def test_a_false_length_allocates_no_memory() -> None:
    claim = struct.pack("<IQ", 8, 1 << 27) + bytes(64)
    source = BytesSource(GGUF([("a", raw_value(9, claim))]).build(), size=1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError):
            read_source(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20


def empty_strings(n: int) -> Typed:
    return raw_value(9, struct.pack("<IQ", 8, n) + bytes(8 * n))


EXCESSIVE = {  # GGUF, part of the message
    "architecture": (lambda: GGUF({"general.architecture": "x" * (4 << 20)}), "4194304 bytes, more than 64"),
    "architecture with controls": (lambda: GGUF({"general.architecture": "a\x1b[2J"}), "is not a name"),
    "name": (lambda: GGUF({"general.name": "x" * (1 << 20)}), "more than 65536"),
    "template": (lambda: GGUF({"tokenizer.chat_template": "x" * (2 << 20)}), "more than 1048576"),
    "long tokens": (lambda: GGUF({"tokenizer.ggml.tokens": ["x" * (17 << 20)]}), "the tokens have"),
    "strings": (
        lambda: GGUF({"a": empty_strings(1), "b": empty_strings((4 << 20) + 1)}),
        "'b' length at byte 74: 4194305 elements",
    ),
    "flags": (lambda: GGUF({"a": raw_value(9, struct.pack("<IQ", 7, 5 << 20) + bytes(5 << 20))}), "elements"),
    "keys": (lambda: GGUF(n_kv=5000).build() + bytes(1 << 17), "metadata_kv_count at byte 16"),
    "key": (lambda: GGUF({"x" * 2000: 1}), "it has 2000 bytes, more than 1024"),
    "tensors": (lambda: GGUF(n_tensors=70_000).build() + bytes(4 << 20), "tensor_count at byte 8"),
    "scores": (
        lambda: GGUF({"tokenizer.ggml.scores": Typed("arr[f32]", [1.0, float("nan")])}),
        "a score is not a number",
    ),
}


@pytest.mark.parametrize(("make", "message_part"), EXCESSIVE.values(), ids=EXCESSIVE.keys())
def test_rejects_what_is_larger_than_in_any_model(
    make: Callable[[], GGUF | bytes], message_part: str
) -> None:
    made = make()
    data = made if isinstance(made, bytes) else made.build()
    began = time.process_time()
    assert message_part in rejection(data)
    assert time.process_time() - began < 2
    tracemalloc.start()
    try:
        rejection(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(data) + (100 << 20)


def test_rejects_more_tokens_than_in_any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert format_.MAX_TOKENS >= 1 << 19
    monkeypatch.setattr(format_, "MAX_TOKENS", 1000)
    gguf = GGUF({"tokenizer.ggml.tokens": empty_strings(1001)})
    assert "'tokenizer.ggml.tokens' at byte 24: 1001 tokens, more than 1000" in rejection(gguf)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.5])
def test_rejects_numbers_of_layers_that_are_not_whole(bad: float) -> None:
    keys = {"llama.attention.recurrent_layers": Typed("arr[f64]", [1.0, bad])}
    header = read_source(BytesSource(llama(metadata=keys).build()))
    with pytest.raises(GGUFError, match="whole numbers are needed"):
        header.per_layer("attention.recurrent_layers")


def test_a_long_text_is_decoded_when_it_is_used() -> None:
    header = read_source(BytesSource(GGUF({"tokenizer.chat_template": "é" * 4000, "a": "b"}).build()))
    assert isinstance(header.metadata["tokenizer.chat_template"], bytes)
    assert header.chat_template == "é" * 4000


def test_rejects_a_string_longer_than_any_header(tmp_path: Path) -> None:
    path = write(tmp_path / "sparse.gguf", GGUF([("a", raw_value(8, struct.pack("<Q", 1 << 30)))]))
    os.truncate(path, 1 << 32)
    with pytest.raises(GGUFError, match="header of more than"):
        read_header(path)


NOT_RUNNABLE = {
    "no layers": ({"llama.block_count": 0}, "llama.block_count at byte"),
    "a million layers": ({"llama.block_count": 10**6}, "1000000 is not in 1 to 512"),
    "layers absent": ({"llama.block_count": None}, "llama.block_count missing"),
    "no width": ({"llama.embedding_length": 0}, "llama.embedding_length"),
    "no heads": ({"llama.attention.head_count": 0}, "llama.attention.head_count"),
    "heads absent": ({"llama.attention.head_count": None}, "head_count missing"),
    "4 billion heads": ({"llama.attention.head_count": 0xFFFFFFFF}, "heads are not possible"),
    "negative heads": (
        {"llama.attention.head_count_kv": Typed("arr[i32]", [-1, 2])},
        "heads are not possible",
    ),
    "no context": ({"llama.context_length": 0}, "llama.context_length"),
    "key length": ({"llama.attention.key_length": 0}, "llama.attention.key_length"),
    "experts": ({"llama.expert_count": 4096}, "llama.expert_count"),
    "no tokenizer": (
        {"tokenizer.ggml.model": None},
        "tokenizer.ggml.model missing: the file has no tokenizer",
    ),
    "tokenizer none": ({"tokenizer.ggml.model": "no_vocab"}, "the file has no tokenizer"),
    "tokenizer unknown": ({"tokenizer.ggml.model": "sentence"}, "'sentence' is unknown"),
    "no tokens": ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens missing"),
    "no merges": ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges missing"),
    "few types": ({"tokenizer.ggml.token_type": Typed("arr[i32]", [1])}, "1 values for 32 tokens"),
    "same tokens": ({"tokenizer.ggml.tokens": Typed("arr[str]", ["a"] * 32)}, "tokens 0 and 1"),
    "no architecture": ({"general.architecture": None}, "general.architecture missing"),
    "architecture": ({"general.architecture": "lllama"}, "'lllama' is unknown"),
    "projector": ({"general.architecture": "clip"}, "projector"),
    "adapter": ({"general.type": "adapter"}, "adapter"),
    "embedding model": ({"general.architecture": "bert"}, "token by token"),
    "negative epsilon": ({"llama.attention.layer_norm_rms_epsilon": -1e-8}, "is not in 0 to 1"),
    "huge epsilon": ({"llama.attention.layer_norm_rms_epsilon": 3.4e38}, "is not in 0 to 1"),
    "used experts": ({"llama.expert_used_count": 64}, "64 of 0 experts"),
    "no used experts": ({"llama.expert_count": 8}, "0 of 8 experts"),
    "groups": (
        {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_group_count": 3},
        "3 groups of 8 experts",
    ),
    "used groups": (
        {"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_group_count": 4},
        "0 of 4 groups",
    ),
    "rope scaling": ({"llama.rope.scaling.type": "\x1b]52;c"}, "is not one of none, linear, yarn, longrope"),
    "frequency": ({"llama.rope.freq_base": float("nan")}, "llama.rope.freq_base at byte"),
    "vocabulary size": ({"tokenizer.ggml.tokens": Typed("arr[str]", words(31))}, "token_embd.weight"),
}


@pytest.mark.parametrize(("metadata", "message_part"), NOT_RUNNABLE.values(), ids=NOT_RUNNABLE.keys())
def test_rejects_models_that_cannot_run(metadata: dict[str, object], message_part: str) -> None:
    assert message_part in model_rejection(llama(metadata=metadata))


def test_empty_token_texts_are_not_duplicates() -> None:
    tokens = ["", "", *words(30)]
    check_model(read_source(BytesSource(llama(tokens=tokens).build())))


def test_rejects_a_vocabulary_only_file_and_missing_embeddings() -> None:
    gguf = llama()
    gguf.tensors = ()
    assert "vocabulary-only" in model_rejection(gguf)
    gguf.tensors = (Tensor("output_norm.weight", (64,)),)
    assert "token_embd.weight is not among them" in model_rejection(gguf)


@pytest.mark.parametrize(
    ("name", "type_id", "message_part"),
    [
        ("blk.0.attn_v.weight", 26, "type I32, data at byte"),
        ("blk.0.attn_v.weight", 28, "type F64"),
        ("output_norm.weight", 1, "norms and biases are F32"),
    ],
)
def test_rejects_tensor_types_that_ggml_cannot_compute_with(
    name: str, type_id: int, message_part: str
) -> None:
    gguf, n_bytes = llama(), {1: 2, 26: 4, 28: 8}[type_id]
    gguf.tensors = [
        replace(t, type_id=type_id, n_bytes=n_bytes * math.prod(t.shape)) if t.name == name else t
        for t in gguf.tensors
    ]
    assert message_part in model_rejection(gguf)


def split(folder: Path, n_parts: int = 3, n_tensors: int | None = None) -> list[Path]:
    whole = llama()
    tensors = list(whole.tensors)
    paths = []
    for i in range(n_parts):
        keys = {"split.no": Typed("u16", i), "split.count": Typed("u16", n_parts)}
        keys["split.tensors.count"] = Typed("i32", len(tensors) if n_tensors is None else n_tensors)
        meta = {**(dict(whole.metadata) if i == 0 else {}), **keys}  # type: ignore[call-overload]
        path = folder / f"m-{i + 1:05d}-of-{n_parts:05d}.gguf"
        paths.append(write(path, GGUF(meta, tensors[i::n_parts])))
    return paths


def test_split_model_is_merged(tmp_path: Path) -> None:
    paths = split(tmp_path)
    h = read_model(paths[0])
    check_model(h)
    assert h.parts == tuple(map(str, paths))
    assert h.file_bytes == sum(p.stat().st_size for p in paths)
    assert {t.name for t in h.tensors} == {t.name for t in llama().tensors}
    assert {t.part for t in h.tensors} == {0, 1, 2}


def part_rejection(path: Path) -> str:
    with pytest.raises(IntegrityError) as caught:
        read_model(path)
    assert caught.value.hint
    return caught.value.message


def test_rejects_missing_foreign_or_damaged_parts(tmp_path: Path) -> None:
    paths = split(tmp_path)
    assert "part 2 of 3" in part_rejection(paths[1])
    second = paths[1].read_bytes()
    paths[1].unlink()
    assert part_rejection(paths[0]).startswith(f"{paths[1]}: part 2 of 3 is missing")
    paths[1].write_bytes(paths[2].read_bytes())
    assert part_rejection(paths[0]).startswith(f"{paths[1]}: not part 2")
    write(paths[1], llama())
    assert part_rejection(paths[0]).startswith(f"{paths[1]}: not part 2")
    paths[1].write_bytes(second[:-64])
    assert str(paths[1]) in part_rejection(paths[0])
    paths[1].write_bytes(second)
    paths[0].rename(tmp_path / "renamed.gguf")
    assert "must be named" in part_rejection(tmp_path / "renamed.gguf")


def test_says_that_parts_are_joined(tmp_path: Path) -> None:
    joined = b"".join(path.read_bytes() for path in split(tmp_path))
    for name in ("m-00001-of-00003.gguf", "m.gguf"):
        (tmp_path / name).write_bytes(joined)
        with pytest.raises(IntegrityError, match="3 parts of a split model, one after the other") as caught:
            read_model(tmp_path / name)
        assert "llama-gguf-split --merge" in caught.value.hint


def test_rejects_a_part_of_another_model(tmp_path: Path) -> None:
    paths = split(tmp_path)
    meta = {"split.no": Typed("u16", 1), "split.count": Typed("u16", 3)}
    write(paths[1], GGUF(meta, [llama().tensors[0]]))
    assert "is in another part too" in part_rejection(paths[0])
    write(paths[1], GGUF(meta, [Tensor("stranger", (4,))]))
    assert "tensors in its 3 parts" in part_rejection(paths[0])
    write(paths[1], GGUF({**meta, "general.architecture": "qwen2"}, [Tensor("stranger", (4,))]))
    assert part_rejection(paths[0]).startswith(f"{paths[1]}: not part 2")


def test_a_large_header_is_read_fast_and_in_few_pieces() -> None:
    merges = [f"a{i} b{i}" for i in range(280_000)]
    gguf = llama(tokens=words(128_256), metadata={"tokenizer.ggml.merges": Typed("arr[str]", merges)})
    data = gguf.header()
    source = BytesSource(data + bytes(8), size=len(data) + gguf.data_bytes())
    start = time.thread_time()
    h = read_source(source)
    seconds = time.thread_time() - start
    assert len(h.tokens) == 128_256
    assert h.tokens[128_255] == "t128255"
    assert seconds < 1
    assert source.n_requested < 3 * len(data)


def test_headers_share_only_the_same_strings() -> None:
    texts = words(500)

    def read(*more: str, end: int | None = None) -> list[str]:
        data = llama(tokens=[*texts, *more]).build()
        header = read_source(BytesSource(data[:end]))
        kept.append(header)
        return list(header.tokens)

    kept: list[Header] = []
    assert read("a", "bc") == read("a", "bc") == [*texts, "a", "bc"]
    assert read("ab", "c") == [*texts, "ab", "c"], "as many tokens of as many bytes"
    assert kept[0].tokens is kept[1].tokens
    assert kept[0].token_texts is kept[1].token_texts
    begin = kept[0].offsets["tokenizer.ggml.tokens"]
    for end in range(begin, begin + 9_000, 501):
        with pytest.raises(GGUFError):
            read("a", "bc", end=end)


def is_readable(data: bytes) -> bool:
    """Whether a header can be read; any error but GGUFError fails the test."""
    try:
        header = read_source(BytesSource(data))
        check_model(header)
        for name in (
            "name",
            "quant",
            "n_params",
            "bytes_per_token",
            "n_vocab",
            "token_texts",
            "chat_template",
        ):
            getattr(header, name)
        list(header.tokens)
    except GGUFError:
        return False
    return True


@pytest.mark.parametrize("seed", range(8))
def test_mutations_only_ever_raise_gguf_errors(seed: int) -> None:
    rng = random.Random(seed)
    gguf = llama(
        tokens=words(20), metadata={"general.alignment": u32(32), "x.list": Typed("arr[f64]", [1.0, 2.0])}
    )
    original = gguf.build()
    n_header = len(gguf.header())
    tracemalloc.start()
    try:
        start = time.thread_time()
        n_read = 0
        for _ in range(250):
            data = bytearray(original)
            for _ in range(rng.choice((1, 1, 2, 8))):
                at = rng.randrange(n_header)
                kind = rng.randrange(4)
                if kind == 0:
                    data[at] ^= 1 << rng.randrange(8)
                elif kind == 1:
                    data[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, HUGE, 1 << 62, 1 << 32, 1 << 20)))
                elif kind == 2:
                    del data[at : at + rng.randrange(1, 40)]
                else:
                    data[at:at] = rng.randbytes(rng.randrange(1, 16))
            if rng.random() < 0.1:
                del data[rng.randrange(len(data)) :]
            n_read += is_readable(bytes(data))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_read < 250
    assert time.thread_time() - start < 30
    assert peak < 64 << 20
