"""Copies of a draft with another vocabulary: the same tokens under other ids, fewer tokens, fewer merges."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

_PER_TOKEN = ("tokens", "token_type", "scores")
_ROWS = ("token_embd.weight", "output.weight")


def permuted(
    source: Path, out: Path, seed: int = 0, every: int = 0, drop: bool = False, prefix: str = ""
) -> Path:
    """A copy with the same tokens under other ids. every: without every so manieth merge of the later half,
    so that the same text has other tokens; 0 keeps all. drop: without the tokens that these merges make, and
    all that are made of them. prefix: before the text of every token.
    """
    reader = gguf.GGUFReader(source)
    texts = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = _fewer(reader.fields["tokenizer.ggml.merges"].contents(), every, drop)
    made = {merge.replace(" ", "", 1) for merge in merges}
    lost = {m.replace(" ", "", 1) for m in reader.fields["tokenizer.ggml.merges"].contents()} - made
    order = np.random.default_rng(seed).permutation(len(texts))  # the source's id of each token
    order = np.array([i for i in order if not drop or texts[i] not in lost])
    place = {int(old): new for new, old in enumerate(order)}
    writer = gguf.GGUFWriter(str(out), str(reader.fields["general.architecture"].contents()))
    for key, item in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, name = item.contents(), key.removeprefix("tokenizer.ggml.")
        if name in _PER_TOKEN:
            value = [value[i] for i in order]
            value = [f"{prefix}{text}" for text in value] if name == "tokens" else value
        elif name == "merges":
            value = merges
        elif name.endswith("_token_id"):
            value = place[value]
        elif key == f"{reader.fields['general.architecture'].contents()}.vocab_size":
            value = len(order)
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


def _fewer(merges: list[str], every: int, drop: bool) -> list[str]:
    """The merges without every so manieth one of the later half; with `drop` without those of what is no
    longer made.
    """
    if not every:
        return merges
    first, lost, kept = len(merges) // 2, set[str](), []
    for i, merge in enumerate(merges):
        made = merge.replace(" ", "", 1)
        if (i >= first and i % every == 0) or (drop and lost.intersection(merge.split(" "))):
            lost.add(made)
        else:
            lost.discard(made)
            kept.append(merge)
    return kept
