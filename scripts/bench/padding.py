"""Cost-padding: a llama GGUF with extra blocks that cost time as others do and change no logit.

The output projections of the extra blocks (attention and feed-forward) are zero, so each adds exactly 0 to
the residual stream; their other weights are small noise, so that no infinity is multiplied by these zeros.
Written in f16 as architecture `deci`, which is llama with a feed-forward size for each block, as llama where
all blocks have the same size, or as `ernie4_5-moe`, in which blocks after the first ones are mixtures of
experts. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

NOISE = 0.02  # standard deviation of the padding's weights
ROW = 256  # K-quants need row lengths that are a multiple of this


class NotPaddable(Exception):
    """The model cannot be padded; the message says why."""


@dataclass(frozen=True)
class Padding:
    """Extra blocks of one size. ff: their feed-forward size, or that of each expert. n_experts: of a block, 0
    for dense ones. n_used: experts that a token takes.
    """

    n_blocks: int
    ff: int
    n_experts: int = 0
    n_used: int = 0


@dataclass(frozen=True)
class Source:
    """A llama model's keys and its tensors in f16 (norms in f32)."""

    fields: dict[str, gguf.ReaderField]
    tensors: dict[str, NDArray[np.generic]]

    def value(self, key: str) -> int:
        return int(self.fields[f"llama.{key}"].contents())

    @property
    def n_embd(self) -> int:
        return self.value("embedding_length")

    @property
    def n_embd_kv(self) -> int:
        """Width of keys, and of values."""
        return self.n_embd // self.value("attention.head_count") * self.value("attention.head_count_kv")

    @property
    def n_params(self) -> int:
        return sum(t.size for t in self.tensors.values())

    def block_params(self, ff: int, n_experts: int = 0) -> int:
        """Parameters of one extra block with this feed-forward size."""
        d = self.n_embd
        return 2 * d + 2 * d * d + 2 * d * self.n_embd_kv + 3 * d * ff * max(1, n_experts) + d * n_experts

    def fit(self, n_extra: float, n_blocks: int, n_experts: int = 0, n_used: int = 0) -> Padding:
        """The padding of about `n_extra` parameters in `n_blocks` blocks, in fewer if `n_extra` is small."""
        smallest = self.block_params(ROW, n_experts)
        if n_extra < smallest / 2:
            return Padding(0, 0)
        n_blocks = max(1, min(n_blocks, round(n_extra / smallest)))
        ff = (n_extra / n_blocks - self.block_params(0, n_experts)) / (3 * self.n_embd * max(1, n_experts))
        return Padding(n_blocks, max(ROW, round(ff / ROW) * ROW), n_experts, n_used)


def read_source(path: Path) -> Source:
    """Read a llama GGUF of any type; quantised weights are dequantised to f16. Raises NotPaddable."""
    try:
        reader = gguf.GGUFReader(path)
        arch = reader.fields["general.architecture"].contents()
        if arch != "llama":
            raise NotPaddable(f"{path}: architecture {arch}; only llama can be padded")
        tensors: dict[str, NDArray[np.generic]] = {}
        for t in reader.tensors:
            if t.name == "rope_freqs.weight" or t.tensor_type.name in ("F16", "F32"):
                tensors[t.name] = np.array(t.data)
            else:
                tensors[t.name] = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float16)
        source = Source(dict(reader.fields), tensors)
        _check_blocks(path, source)
    except (ValueError, IndexError, NotImplementedError) as error:
        raise NotPaddable(f"{path}: not a whole GGUF file of known types: {error}") from None
    except KeyError as missing:
        raise NotPaddable(f"{path}: no key {missing}, which a llama that can be padded has") from None
    except TypeError:
        raise NotPaddable(f"{path}: its blocks have different sizes; only equal ones can be padded") from None
    return source


def _check_blocks(path: Path, source: Source) -> None:
    """Raises NotPaddable unless the source's blocks have the shapes of the extra ones; KeyError and TypeError
    where their sizes are not in its keys, or are those of each block.
    """
    d, kv, ff = source.n_embd, source.n_embd_kv, source.value("feed_forward_length")
    shapes = {"attn_q": (d, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, d)}
    shapes |= {"ffn_gate": (ff, d), "ffn_up": (ff, d), "ffn_down": (d, ff)}
    for i in range(source.value("block_count")):
        for name, shape in shapes.items():
            tensor = source.tensors.get(f"blk.{i}.{name}.weight")
            if tensor is None or tensor.shape != shape:
                found = "missing" if tensor is None else f"of shape {tensor.shape}"
                raise NotPaddable(
                    f"{path}: blk.{i}.{name}.weight is {found}; only a llama in which it is of shape {shape} "
                    "can be padded"
                )


def write_padded(source: Source, out: Path, padding: Padding | None) -> None:
    """Write the source in f16, with the padding's blocks after its own; unchanged (arch llama) for None."""
    n_layer, ff = source.value("block_count"), source.value("feed_forward_length")
    pad = padding or Padding(0, ff)
    arch = "ernie4_5-moe" if pad.n_experts else "llama" if pad.ff == ff else "deci"
    writer = gguf.GGUFWriter(out, arch)
    for name, field in source.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = field.contents()
        match name:
            case "llama.block_count":
                value = n_layer + pad.n_blocks
            case "llama.feed_forward_length" if arch == "deci":
                value = [ff] * n_layer + [pad.ff] * pad.n_blocks
                kind, sub_type = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32
            case "general.name" if padding:
                value = f"{value}-pad{pad.n_blocks}x{pad.ff}"
            case "general.file_type":
                value = int(gguf.LlamaFileType.MOSTLY_F16)
        if name.startswith("llama."):
            name = f"{arch}.{name.removeprefix('llama.')}"
        writer.add_key_value(name, value, kind, sub_type=sub_type)
    if pad.n_experts:
        writer.add_leading_dense_block_count(n_layer)
        writer.add_interleave_moe_layer_step(1)
        writer.add_expert_count(pad.n_experts)
        writer.add_expert_used_count(pad.n_used)
        writer.add_expert_feed_forward_length(pad.ff)
    for name, tensor in source.tensors.items():
        writer.add_tensor(name, tensor)
    for name, tensor in _extra_block(source, pad).items() if pad.n_blocks else ():
        for i in range(n_layer, n_layer + pad.n_blocks):
            writer.add_tensor(f"blk.{i}.{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _extra_block(source: Source, pad: Padding) -> dict[str, NDArray[np.generic]]:
    """The tensors of one extra block, used for all of them: equal weights take the same time."""
    rng = np.random.default_rng(0)
    d, kv = source.n_embd, source.n_embd_kv

    def noise(*shape: int) -> NDArray[np.float16]:
        return (rng.standard_normal(shape, dtype=np.float32) * NOISE).astype(np.float16)

    shape, suffix = ((pad.n_experts,), "_exps") if pad.n_experts else ((), "")
    router = {"ffn_gate_inp": noise(pad.n_experts, d).astype(np.float32)} if pad.n_experts else {}
    return {
        "attn_norm": np.ones(d, np.float32),
        "attn_q": noise(d, d),
        "attn_k": noise(kv, d),
        "attn_v": noise(kv, d),
        "attn_output": np.zeros((d, d), np.float16),
        "ffn_norm": np.ones(d, np.float32),
        **router,
        f"ffn_gate{suffix}": noise(*shape, pad.ff, d),
        f"ffn_up{suffix}": noise(*shape, pad.ff, d),
        f"ffn_down{suffix}": np.zeros((*shape, d, pad.ff), np.float16),
    }
