"""GGUF headers in pieces that can be changed one by one: counts, metadata entries, tensor infos."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.fuzz.mutate import INTEGERS, TEXTS

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
TOKENS, MERGES = b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges"
N_EMBD = 32
SMALL_TOKENS = 1500
# A model of this shape has every vocabulary; its weights are zeros.
SHAPE: dict[bytes, tuple[int, bytes]] = {
    b"general.architecture": (STRING, struct.pack("<Q", 5) + b"llama"),
    **{
        b"llama." + key: (4, struct.pack("<I", n))
        for key, n in (
            (b"context_length", 256), (b"embedding_length", N_EMBD), (b"block_count", 1),
            (b"feed_forward_length", 32), (b"attention.head_count", 2), (b"attention.head_count_kv", 1),
            (b"rope.dimension_count", 16),
        )
    },
    b"llama.attention.layer_norm_rms_epsilon": (6, struct.pack("<f", 1e-5)),
}  # fmt: skip

_NUMBERS = (0.0, -1.0, 1e-5, 10000.0, 1e38, float("nan"), float("inf"))


@dataclass(frozen=True)
class Entry:
    """A metadata entry: its key, the id of its type, and the bytes of its value."""

    key: bytes
    kind: int
    value: bytes

    def bytes(self) -> bytes:
        return struct.pack("<Q", len(self.key)) + self.key + struct.pack("<I", self.kind) + self.value


@dataclass(frozen=True)
class TensorPiece:
    name: bytes
    shape: tuple[int, ...]
    kind: int
    offset: int

    def bytes(self) -> bytes:
        name = struct.pack("<Q", len(self.name)) + self.name
        shape = struct.pack(f"<I{len(self.shape)}Q", len(self.shape), *self.shape)
        return name + shape + struct.pack("<IQ", self.kind, self.offset)


@dataclass(frozen=True)
class Pieces:
    """A header. n_data: bytes of tensor data after it, all zeros."""

    entries: tuple[Entry, ...]
    tensors: tuple[TensorPiece, ...] = ()
    n_data: int = 0
    counts: tuple[int, int] | None = None
    version: int = 3
    tail: bytes = field(default=b"")

    def bytes(self) -> bytes:
        """The header, without the data."""
        counts = self.counts or (len(self.tensors), len(self.entries))
        out = b"GGUF" + struct.pack("<IQQ", self.version, *counts)
        return out + b"".join(p.bytes() for p in (*self.entries, *self.tensors)) + self.tail


def strings(value: bytes) -> list[bytes]:
    """The elements of an array of strings."""
    (n,) = struct.unpack_from("<Q", value, 4)
    out, at = [], 12
    for _ in range(n):
        (length,) = struct.unpack_from("<Q", value, at)
        out.append(value[at + 8 : at + 8 + length])
        at += 8 + length
    return out


def string_array(items: list[bytes]) -> bytes:
    head = struct.pack("<IQ", STRING, len(items))
    return head + b"".join(struct.pack("<Q", len(item)) + item for item in items)


def read(path: Path) -> tuple[Entry, ...]:
    """The metadata of a file that is in order."""
    data = path.read_bytes()
    (n,) = struct.unpack_from("<Q", data, 16)
    at, out = 24, []
    for _ in range(n):
        (length,) = struct.unpack_from("<Q", data, at)
        key = data[at + 8 : at + 8 + length]
        at += 8 + length
        (kind,) = struct.unpack_from("<I", data, at)
        end = _end(data, at + 4, kind)
        out.append(Entry(key, kind, data[at + 4 : end]))
        at = end
    return tuple(out)


def _end(data: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return at + 8 + int(struct.unpack_from("<Q", data, at)[0])
    if kind != ARRAY:
        return at + _SIZES[kind]
    inner, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner != STRING:
        return at + int(n) * _SIZES[inner]
    for _ in range(n):
        at += 8 + int(struct.unpack_from("<Q", data, at)[0])
    return at


def runnable(entries: tuple[Entry, ...], small: bool) -> Pieces:
    """A small model with this vocabulary. small: with the first tokens and merges only."""
    kept = [e for e in entries if e.key not in SHAPE and not e.key.startswith(b"split.")]
    found = {e.key: e for e in kept}
    n_tokens = len(strings(found[TOKENS].value))
    if small and n_tokens > SMALL_TOKENS:
        kept = [_shortened(e, n_tokens) for e in kept]
        n_tokens = SMALL_TOKENS
    made = [Entry(key, kind, value) for key, (kind, value) in SHAPE.items()]
    shapes = {
        "token_embd": (N_EMBD, n_tokens), "output_norm": (N_EMBD,), "blk.0.attn_norm": (N_EMBD,),
        "blk.0.ffn_norm": (N_EMBD,), "blk.0.attn_q": (N_EMBD, 32), "blk.0.attn_k": (N_EMBD, 16),
        "blk.0.attn_v": (N_EMBD, 16), "blk.0.attn_output": (32, N_EMBD), "blk.0.ffn_gate": (N_EMBD, 32),
        "blk.0.ffn_up": (N_EMBD, 32), "blk.0.ffn_down": (32, N_EMBD),
    }  # fmt: skip
    tensors, end = [], 0
    for name, shape in shapes.items():
        tensors.append(TensorPiece(f"{name}.weight".encode(), shape, 0, end))
        n = 4
        for dim in shape:
            n *= dim
        end += -(-n // 32) * 32
    return Pieces((*made, *kept), tuple(tensors), end)


def _shortened(entry: Entry, n_tokens: int) -> Entry:
    """The entry for the first SMALL_TOKENS tokens of `n_tokens`."""
    if entry.key in (TOKENS, MERGES):
        return replace(entry, value=string_array(strings(entry.value)[:SMALL_TOKENS]))
    if entry.kind == ARRAY:
        inner, n = struct.unpack_from("<IQ", entry.value)
        if n == n_tokens and inner != STRING:
            size = 12 + SMALL_TOKENS * _SIZES[inner]
            return replace(entry, value=struct.pack("<IQ", inner, SMALL_TOKENS) + entry.value[12:size])
    if entry.key.endswith(b"_token_id"):
        (token,) = struct.unpack("<I", entry.value)
        return replace(entry, value=struct.pack("<I", token % SMALL_TOKENS))
    return entry


def mutated(rng: random.Random, pieces: Pieces) -> Pieces:
    """The header after one to four changes, most of which leave it well formed."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = rng.randrange(12)
        if kind == 0:
            pieces = replace(pieces, counts=(rng.choice(INTEGERS), len(pieces.entries)))
        elif kind == 1:
            pieces = replace(pieces, counts=(len(pieces.tensors), rng.choice(INTEGERS)))
        elif kind == 2:
            pieces = replace(pieces, version=rng.choice((0, 1, 2, 4, 3 << 24)))
        elif kind == 3:
            pieces = replace(pieces, entries=tuple(_listed(rng, list(pieces.entries))))
        elif kind in (4, 5) and pieces.tensors:
            tensors = list(pieces.tensors)
            at = rng.randrange(len(tensors))
            tensors[at : at + 1] = [_tensor(rng, tensors[at])] * rng.choice((1, 1, 1, 1, 2))
            pieces = replace(pieces, tensors=tuple(tensors))
        else:
            entries = list(pieces.entries)
            at = rng.randrange(len(entries))
            entries[at] = _entry(rng, entries[at])
            pieces = replace(pieces, entries=tuple(entries))
    return pieces


def _listed(rng: random.Random, entries: list[Entry]) -> list[Entry]:
    at = rng.randrange(len(entries))
    kind = rng.randrange(4)
    if kind == 0:
        del entries[at]
    elif kind == 1:
        entries.insert(rng.randrange(len(entries)), entries[at])
    elif kind == 2:
        entries.append(replace(entries[at], key=rng.choice(TEXTS).encode("utf-8", "surrogatepass")))
    else:
        entries.append(_extra(rng))
    return entries


def _extra(rng: random.Random) -> Entry:
    """An entry that few files have and llama.cpp or specllama reads."""
    n, x = struct.pack("<I", rng.choice(INTEGERS) % (1 << 32)), struct.pack("<f", rng.choice(_NUMBERS))
    ids = [rng.choice((0, 5, 1499, 1500, 1 << 20, (1 << 32) - 1)) for _ in range(rng.choice((1, 3, 500)))]
    table = struct.pack(f"<IQ{len(ids)}I", 5, len(ids), *ids)
    text = rng.choice(("yarn", "linear", "longrope", "none", *TEXTS)).encode("utf-8", "surrogatepass")
    string = struct.pack("<Q", len(text)) + text
    return rng.choice(
        (
            Entry(b"general.alignment", 4, n), Entry(b"llama.vocab_size", 4, n),
            Entry(b"tokenizer.ggml.suppress_tokens", ARRAY, table), Entry(b"llama.rope.freq_base", 6, x),
            Entry(b"llama.rope.scaling.factor", 6, x), Entry(b"llama.rope.scaling.type", STRING, string),
            Entry(b"llama.attention.key_length", 4, n), Entry(b"llama.attention.value_length", 4, n),
            Entry(b"llama.attention.sliding_window", 4, n), Entry(b"llama.expert_count", 4, n),
            Entry(b"llama.expert_used_count", 4, n), Entry(b"llama.attention.clamp_kqv", 6, x),
            Entry(b"general.sampling.temp", 6, x), Entry(b"general.sampling.top_k", 5, n),
            Entry(b"general.sampling.top_p", 6, x), Entry(b"tokenizer.ggml.add_bos_token", 7, b"\1"),
            Entry(b"tokenizer.ggml.add_eos_token", 7, b"\1"), Entry(b"tokenizer.ggml.pre", STRING, string),
            Entry(b"tokenizer.ggml.model", STRING, string), Entry(b"tokenizer.ggml.eot_token_id", 4, n),
            Entry(b"tokenizer.chat_template", STRING, string), Entry(b"general.quantization_version", 4, n),
            Entry(b"tokenizer.ggml.precompiled_charsmap", ARRAY, table), Entry(b"split.count", 2, n[:2]),
            Entry(b"llama.leading_dense_block_count", 4, n), Entry(b"llama.logit_scale", 6, x),
        )
    )  # fmt: skip


def _tensor(rng: random.Random, t: TensorPiece) -> TensorPiece:
    kind, n = rng.randrange(5), rng.choice(INTEGERS)
    if kind == 0:
        return replace(t, name=rng.choice((b"", b"x" * 64, b"\xff", b"token_embd.weight", t.name + b"\0")))
    if kind == 1:
        return replace(t, kind=rng.randrange(45))
    if kind == 2:
        return replace(t, offset=n)
    shape = list(t.shape)
    if kind == 3 and shape:
        shape[rng.randrange(len(shape))] = n
    else:
        shape = (shape * 3)[: rng.randrange(6)]
    return replace(t, shape=tuple(shape))


def _entry(rng: random.Random, e: Entry) -> Entry:
    if rng.random() < 0.1:
        return replace(e, kind=rng.randrange(14))
    if e.kind == STRING:
        text = rng.choice(TEXTS).encode("utf-8", "surrogatepass") * rng.choice((1, 1, 1, 1000))
        length = rng.choice(INTEGERS) if rng.random() < 0.3 else len(text)
        return replace(e, value=struct.pack("<Q", length) + text)
    if e.kind == ARRAY:
        return _array(rng, e)
    n = rng.choice(INTEGERS).to_bytes(8, "little") if rng.random() < 0.8 else rng.randbytes(8)
    return replace(e, value=n[: len(e.value)])


def _array(rng: random.Random, e: Entry) -> Entry:
    if len(e.value) < 12:  # changed before
        return replace(e, value=rng.randbytes(16))
    inner, n = struct.unpack_from("<IQ", e.value)
    kind = rng.randrange(5)
    if kind == 0:
        return replace(e, value=struct.pack("<IQ", rng.randrange(14), n) + e.value[12:])
    if kind == 1:
        return replace(e, value=struct.pack("<IQ", inner, rng.choice(INTEGERS)) + e.value[12:])
    if inner == STRING:
        try:
            items = strings(e.value)
        except struct.error:  # changed before
            return replace(e, value=e.value[:-1])
        for _ in range(rng.choice((1, 1, 5, 200))):
            if items:
                new = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
                new = rng.choice(
                    (new, new, b"", b"\xff\xfe", rng.choice(items), rng.randbytes(5), b"x" * 5000)
                )
                items[rng.randrange(len(items))] = new
        return replace(e, value=string_array(items[: rng.choice((len(items), len(items), 1, 0))]))
    size = _SIZES.get(inner, 1)
    body = bytearray(e.value[12:])
    for _ in range(rng.choice((1, 1, 5, 200, min(n, 5000)))):
        if body:
            at = rng.randrange(max(1, len(body) // size)) * size
            new = rng.choice(INTEGERS).to_bytes(8, "little") if rng.random() < 0.7 else b"\0\0\xc0\x7f" * 2
            body[at : at + size] = new[:size]
    if kind == 2:
        del body[len(body) // size // 2 * size :]
    return replace(e, value=struct.pack("<IQ", inner, len(body) // size) + bytes(body))
