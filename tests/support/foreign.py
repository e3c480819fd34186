"""Copies of a draft with another vocabulary: the same tokens under other ids, and fewer merges."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

_PER_TOKEN = ("tokens", "token_type", "scores")
_ROWS = ("token_embd.weight", "output.weight")


def permuted(source: Path, out: Path, seed: int = 0, every: int = 0) -> Path:
    """A copy with the same tokens under other ids. every: without every so manieth merge among the later
    half, so that the same text has other tokens; 0 keeps all.
    """
    reader = gguf.GGUFReader(source)
    n = len(reader.fields["tokenizer.ggml.tokens"].data)
    order = np.random.default_rng(seed).permutation(n)  # the source's id of each token
    place = np.argsort(order)
    writer = gguf.GGUFWriter(str(out), str(reader.fields["general.architecture"].contents()))
    for key, item in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, name = item.contents(), key.removeprefix("tokenizer.ggml.")
        if name in _PER_TOKEN:
            value = [value[i] for i in order]
        elif name == "merges" and every:
            first = len(value) // 2
            value = [merge for i, merge in enumerate(value) if i < first or i % every]
        elif name.endswith("_token_id"):
            value = int(place[value])
        elif name == "model" or key == "general.name":
            value = str(value) if key != "general.name" else f"{value} permuted"
        kind = item.types[0]
        sub = item.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, kind, sub)
    for tensor in reader.tensors:
        data = tensor.data[order] if tensor.name in _ROWS else tensor.data
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
