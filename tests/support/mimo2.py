"""A llama model with a multi-token head: its weights as architecture `mimo2`, which has MTP blocks.

The trunk computes what the source computes, up to rounding. The head is random unless weights are given for
it. Knows nothing about training.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.support.tinygguf import written

Part = Literal["all", "trunk", "head"]
_ARCH = "mimo2"


def mimo2_of(
    source: Path | str,
    path: Path | str,
    seed: int = 0,
    head: Mapping[str, NDArray[np.float32]] | None = None,
    part: Part = "all",
) -> Path:
    """Writes the llama model `source` as a mimo2 model with one MTP block to `path`.

    head: tensors of the MTP block by their names without `blk.N.`; others are random. part: the trunk alone,
    or the head in a file of its own, as in mtp-*.gguf; its feed-forward size may differ from the trunk's.
    Matrices of the trunk keep their types. Raises ValueError for a model of another architecture.
    """
    reader = gguf.GGUFReader(str(source))
    if _value(reader, "general.architecture") != "llama":
        raise ValueError(f"{source}: not a llama model")
    tensors = {t.name: t for t in reader.tensors}
    n_layer, n_embd, n_head, n_kv = (
        int(_value(reader, f"llama.{key}"))
        for key in ("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv")
    )
    n_ff, n_ctx = (int(_value(reader, f"llama.{key}")) for key in ("feed_forward_length", "context_length"))
    n_rot = n_embd // n_head
    given = dict(head or {})
    n_ff_head = len(given["ffn_gate"]) if "ffn_gate" in given else n_ff
    if n_ff_head != n_ff and part == "all":
        raise ValueError(f"the MTP block has a feed-forward size of {n_ff_head}, the model one of {n_ff}")
    n_mtp = 0 if part == "trunk" else 1
    w = gguf.GGUFWriter(str(path), _ARCH)
    w.add_name(f"{_value(reader, 'general.name')} {'MTP' if n_mtp else 'trunk'}")
    w.add_context_length(n_ctx)
    w.add_embedding_length(n_embd)
    w.add_block_count(n_layer + n_mtp)
    w.add_feed_forward_length(n_ff_head if part == "head" else n_ff)
    w.add_head_count(n_head)
    w.add_head_count_kv(n_kv)
    w.add_key_length(n_rot)
    w.add_value_length(n_rot)
    w.add_rope_dimension_count(n_rot)
    base = float(_value(reader, "llama.rope.freq_base"))
    w.add_rope_freq_base(base)
    w.add_float32(f"{_ARCH}.rope.freq_base_swa", base)
    w.add_layer_norm_rms_eps(float(_value(reader, "llama.attention.layer_norm_rms_epsilon")))
    w.add_uint32(f"{_ARCH}.nextn_predict_layers", n_mtp)
    w.add_sliding_window(n_ctx)  # one layer must have a window
    w.add_array(
        f"{_ARCH}.attention.sliding_window_pattern", [i == n_layer - 1 for i in range(n_layer + n_mtp)]
    )
    w.add_uint32(f"{_ARCH}.expert_feed_forward_length", 0)
    _copy_tokenizer(reader, w)
    for name in ("token_embd.weight", "output_norm.weight"):
        _copy(w, tensors[name], name)
    _copy(w, tensors.get("output.weight", tensors["token_embd.weight"]), "output.weight")
    for i in range(0 if part == "head" else n_layer):
        block = f"blk.{i}."
        q, k, v = (tensors[f"{block}attn_{name}.weight"] for name in "qkv")
        rows = [_half_split(q.data, n_head), _half_split(k.data, n_kv), v.data]
        w.add_tensor(f"{block}attn_qkv.weight", np.concatenate(rows), raw_dtype=q.tensor_type)
        for name in ("attn_output", "attn_norm", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"):
            _copy(w, tensors[f"{block}{name}.weight"], f"{block}{name}.weight")
    random_head = _random_head(n_embd, (n_head + 2 * n_kv) * n_rot, n_ff_head, seed)
    for name, x in random_head.items() if n_mtp else ():
        w.add_tensor(f"blk.{n_layer}.{name}.weight", np.ascontiguousarray(given.pop(name, x)))
    if given and n_mtp:
        raise ValueError(f"the MTP block has no {', '.join(sorted(given))}")
    return written(w, Path(path))


def _random_head(n_embd: int, n_qkv: int, n_ff: int, seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    shapes = {
        "attn_qkv": (n_qkv, n_embd),
        "attn_output": (n_embd, n_embd),
        "ffn_gate": (n_ff, n_embd),
        "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
        "nextn.eh_proj": (n_embd, 2 * n_embd),
    }
    made = {n: rng.standard_normal(s, np.float32) / np.float32(s[1] ** 0.5) for n, s in shapes.items()}
    norms = ("attn_norm", "ffn_norm", "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
    return made | {name: np.ones(n_embd, np.float32) for name in norms}


def _half_split(rows: NDArray[Any], n_head: int) -> NDArray[Any]:
    """Rows of queries or keys in the order that mimo2 rotates: llama pairs neighbours, mimo2 halves."""
    return rows.reshape(n_head, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _copy(w: gguf.GGUFWriter, tensor: Any, name: str) -> None:
    w.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)


def _copy_tokenizer(reader: gguf.GGUFReader, w: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            w.add_key_value(key, field.contents(), kind, sub)


def _value(reader: gguf.GGUFReader, key: str) -> Any:
    field = reader.fields[key]
    return field.contents()
