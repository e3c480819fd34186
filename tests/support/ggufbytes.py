"""GGUF files byte by byte: a writer without checks, so that it can write malformed files too."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TYPE_IDS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "arr": 9}
TYPE_IDS |= {"u64": 10, "i64": 11, "f64": 12}
_FORMATS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?"}
_FORMATS |= {"u64": "Q", "i64": "q", "f64": "d"}


@dataclass(frozen=True)
class Typed:
    """A metadata value with its GGUF type: `Typed("u32", 7)`, `Typed("arr[str]", ["a"])`."""

    kind: str
    value: Any


@dataclass(frozen=True)
class Tensor:
    """A tensor info. n_bytes: zeros written for it; 0: as many as its shape needs. offset: None: after the
    previous tensor.
    """

    name: str | bytes
    shape: Sequence[int]
    type_id: int = 0
    n_bytes: int = 0
    offset: int | None = None


class BytesSource:
    """A GGUF file in memory, which may say that it has another size. n_requested: bytes requested so far."""

    def __init__(self, data: bytes, name: str = "memory.gguf", size: int | None = None) -> None:
        self.data, self.name = data, name
        self.size = len(data) if size is None else size
        self.n_requested = 0

    def read(self, offset: int, n: int) -> bytes:
        self.n_requested += n
        return self.data[offset : offset + n]


def u32(value: int) -> Typed:
    return Typed("u32", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: str, value: Any) -> bytes:
    return string(value) if kind == "str" else struct.pack("<" + _FORMATS[kind], value)


def typed(value: Any) -> Typed:
    """The value with the type that converters give to it."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, bool):
        return Typed("bool", value)
    if isinstance(value, (str, bytes)):
        return Typed("str", value)
    if isinstance(value, int):
        return u32(value)
    if isinstance(value, float):
        return Typed("f32", value)
    items = list(value)
    inner = "str" if items and isinstance(items[0], (str, bytes)) else "i32"
    return Typed(f"arr[{inner}]", items)


def pair(key: str | bytes, value: Any) -> bytes:
    """One metadata entry. The value of `Typed("raw", …)` is written as it is, in place of type and value."""
    t = typed(value)
    if t.kind == "raw":
        return string(key) + t.value
    if t.kind.startswith("arr["):
        inner = t.kind[4:-1]
        body = b"".join(scalar(inner, v) for v in t.value)
        return string(key) + struct.pack("<IIQ", TYPE_IDS["arr"], TYPE_IDS[inner], len(t.value)) + body
    return string(key) + struct.pack("<I", TYPE_IDS[t.kind]) + scalar(t.kind, t.value)


def tensor_bytes(shape: Sequence[int], type_id: int) -> int:
    blocks = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 14: (256, 210)}
    size, n_bytes = blocks[type_id]
    n = 1
    for dim in shape:
        n *= dim
    return n // size * n_bytes


@dataclass
class GGUF:
    """A GGUF file; every count and field can be overridden."""

    metadata: Mapping[str, Any] | Sequence[tuple[str | bytes, Any]] = field(default_factory=dict)
    tensors: Sequence[Tensor] = ()
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_kv: int | None = None
    alignment: int = 32
    truncate: int = 0  # bytes missing at the end

    def header(self) -> bytes:
        items = list(self.metadata.items()) if isinstance(self.metadata, Mapping) else list(self.metadata)
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_kv = len(items) if self.n_kv is None else self.n_kv
        out = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_kv)
        out += b"".join(pair(k, v) for k, v in items)
        end = 0
        for t in self.tensors:
            dims = struct.pack(f"<I{len(t.shape)}Q", len(t.shape), *t.shape)
            offset = end if t.offset is None else t.offset
            out += string(t.name) + dims + struct.pack("<IQ", t.type_id, offset)
            end = self._pad(offset + self._size(t))
        return out

    def data_bytes(self) -> int:
        """Bytes of the tensor data with the padding before it, from the end of the header."""
        begin = self._pad(len(self.header()))
        return begin - len(self.header()) + sum(self._pad(self._size(t)) for t in self.tensors)

    def build(self) -> bytes:
        out = self.header() + (bytes(self.data_bytes()) if self.tensors else b"")
        return out[: len(out) - self.truncate]

    def _size(self, t: Tensor) -> int:
        return t.n_bytes or tensor_bytes(t.shape, t.type_id)

    def _pad(self, n: int) -> int:
        return -(-n // self.alignment) * self.alignment


def vocab_metadata(tokens: Sequence[str | bytes], model: str = "gpt2", **extra: Any) -> dict[str, Any]:
    """Tokenizer metadata. extra: further keys, without `tokenizer.ggml.`; None removes a key."""
    out: dict[str, Any] = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": Typed("arr[str]", list(tokens)),
        "tokenizer.ggml.token_type": Typed("arr[i32]", [1] * len(tokens)),
        "tokenizer.ggml.merges": Typed("arr[str]", ["a b"]),
    }
    out |= {f"tokenizer.ggml.{k}": v for k, v in extra.items()}
    return {k: v for k, v in out.items() if v is not None}


def vocabulary(tokens: Sequence[str | bytes], model: str = "gpt2", **extra: Any) -> GGUF:
    """A vocabulary without weights that llama.cpp would load; extra keys as in `vocab_metadata`."""
    texts = [t if isinstance(t, str) else t.decode(errors="replace") for t in tokens]
    kinds = [6 if t.startswith("<0x") else 2 if t == "<unk>" else 1 for t in texts]
    keys = {"scores": Typed("arr[f32]", [0.0] * len(texts)), "token_type": Typed("arr[i32]", kinds), **extra}
    meta = {"general.architecture": "llama", "llama.vocab_size": 77, **vocab_metadata(tokens, model, **keys)}
    return GGUF(meta)


def words(n: int) -> list[str]:
    """`n` distinct token texts."""
    return [f"t{i}" for i in range(n)]


def llama(
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    tokens: Sequence[str] | None = None,
    n_ctx_train: int = 2048,
    type_id: int = 1,
    metadata: Mapping[str, Any] | None = None,
    tied: bool = False,
) -> GGUF:
    """A model of architecture llama that llama.cpp would load, with weights of zeros."""
    tokens = words(32) if tokens is None else tokens
    head = n_embd // n_head
    meta: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.file_type": u32(type_id if type_id < 2 else {8: 7}[type_id]),
        "llama.context_length": n_ctx_train,
        "llama.embedding_length": n_embd,
        "llama.block_count": n_layer,
        "llama.feed_forward_length": n_ff,
        "llama.attention.head_count": n_head,
        "llama.attention.head_count_kv": n_head_kv,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": head,
    }
    meta |= vocab_metadata(tokens)
    meta |= metadata or {}
    tensors = [
        Tensor("token_embd.weight", (n_embd, len(tokens)), type_id),
        Tensor("output_norm.weight", (n_embd,)),
    ]
    if not tied:
        tensors.append(Tensor("output.weight", (n_embd, len(tokens)), type_id))
    for i in range(n_layer):
        shapes = {
            "attn_q": (n_embd, n_embd),
            "attn_k": (n_embd, head * n_head_kv),
            "attn_v": (n_embd, head * n_head_kv),
            "attn_output": (n_embd, n_embd),
            "ffn_gate": (n_embd, n_ff),
            "ffn_up": (n_embd, n_ff),
            "ffn_down": (n_ff, n_embd),
        }
        tensors += [Tensor(f"blk.{i}.{name}.weight", (n_embd,)) for name in ("attn_norm", "ffn_norm")]
        tensors += [Tensor(f"blk.{i}.{name}.weight", shape, type_id) for name, shape in shapes.items()]
    return GGUF({k: v for k, v in meta.items() if v is not None}, tensors)
