"""Tiny random heads with files of their own, for tests: Gemma 4 assistants, EAGLE-3, DFlash, DSpark.

    gemma4              the target of an assistant, which reads its KV cache
    gemma4_assistant    its assistant
    eagle3              for any target that hands out its layers' inputs, such as `tinygguf.llama`
    dflash              a block drafter; with `markov=True` DSpark, with a confidence for each token

Vocabularies are those of `tinygguf`. A random head guesses right once in some hundred tokens. With
`copy_of=TARGET` it computes what the target computes:

    eagle3              for a llama target whose blocks before the last add nothing, `adds=(0, ..., 0, 1)`; it
                        lacks the first token of the text, so the two differ now and then
    the others          for a target whose blocks all add nothing: the next token depends on the last alone

`head_noise` mixes random numbers into what the head reads: 0.1 costs some acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.support.tinygguf import EPS, N_EMBD, N_EMBD_HEAD, N_FF, N_HEAD, N_HEAD_KV, N_VOCAB, Builder

N_EMBD_ASSISTANT = 64
MASK = 3  # the id that fills a block drafter's block: a byte that texts do not have


def _gemma4_keys(b: Builder, arch: str, n_layer: int, n_swa: int) -> None:
    w = b.writer
    b.heads(N_HEAD_KV, rope=True)
    w.add_uint32(f"{arch}.attention.key_length_swa", N_EMBD_HEAD)
    w.add_uint32(f"{arch}.attention.value_length_swa", N_EMBD_HEAD)
    w.add_uint32(f"{arch}.rope.dimension_count_swa", N_EMBD_HEAD)
    w.add_float32(f"{arch}.rope.freq_base_swa", 10000.0)
    w.add_sliding_window(n_swa)
    w.add_array(f"{arch}.attention.sliding_window_pattern", [i % 2 == 0 for i in range(n_layer)])
    b.put("rope_freqs.weight", np.ones(N_EMBD_HEAD // 2, np.float32))


def gemma4(
    path: Path | str,
    seed: int = 0,
    *,
    n_layer: int = 2,
    n_swa: int = 512,
    adds: Sequence[float] = (),
    **more: Any,
) -> Path:
    """Blocks with a window of `n_swa` tokens alternate with blocks without; the last has none."""
    b = Builder("gemma4", path, seed, n_layer, **more)
    _gemma4_keys(b, "gemma4", n_layer, n_swa)
    b.writer.add_uint32("gemma4.embedding_length_per_layer_input", 0)
    for i in range(n_layer):
        factor = np.float32(adds[i] if adds else 1.0)
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.attention(i, qk_norm=True)
        b.put(f"blk.{i}.post_attention_norm.weight", np.full(N_EMBD, factor))
        b.feed_forward(i)
        b.put(f"blk.{i}.post_ffw_norm.weight", np.full(N_EMBD, factor))
    return b.write()


def gemma4_assistant(
    path: Path | str,
    seed: int = 1,
    *,
    n_vocab: int = N_VOCAB,
    n_embd_target: int = N_EMBD,
    n_layer: int = 2,
    n_swa: int = 512,
    copy_of: Path | str | None = None,
    head_noise: float = 0.0,
    **more: Any,
) -> Path:
    """The assistant of a `gemma4` model. Its hidden size, N_EMBD_ASSISTANT, must not be the target's."""
    target = read_tensors(copy_of) if copy_of else {}
    n_embd, adds = N_EMBD_ASSISTANT, 0.0 if target else 1.0
    keep = {"token_embd.weight"} if not target else set()
    b = Builder(
        "gemma4-assistant", path, seed, n_layer, n_vocab=n_vocab, n_embd=n_embd,
        keep=lambda name: name not in ("token_embd.weight", "output.weight") or name in keep, **more,
    )  # fmt: skip
    if target:
        keep.add("token_embd.weight")
        padded = np.zeros((n_vocab, n_embd), np.float32)
        padded[:, : target["output.weight"].shape[1]] = target["output.weight"]
        b.put("token_embd.weight", padded)
    arch = "gemma4-assistant"
    _gemma4_keys(b, arch, n_layer, n_swa)
    b.writer.add_uint32(f"{arch}.embedding_length_out", n_embd_target)
    b.writer.add_uint32(f"{arch}.nextn_predict_layers", n_layer)
    mixed = b.random(n_embd, 2 * n_embd_target) / np.float32((2 * n_embd_target) ** 0.5)
    if target:
        mixed = np.float32(head_noise) * mixed + np.eye(n_embd, 2 * n_embd_target, dtype=np.float32)
        mixed[n_embd_target:] = 0
    b.put("nextn.pre_projection.weight", mixed)
    b.matrix("nextn.post_projection", n_embd_target, n_embd)
    for i in range(n_layer):
        for name in ("attn_norm", "ffn_norm"):
            b.ones(f"blk.{i}.{name}", n_embd)
        for name in ("post_attention_norm", "post_ffw_norm"):
            b.put(f"blk.{i}.{name}.weight", np.full(n_embd, np.float32(adds)))
        b.matrix(f"blk.{i}.attn_q", N_HEAD * N_EMBD_HEAD, n_embd)
        b.matrix(f"blk.{i}.attn_output", n_embd, N_HEAD * N_EMBD_HEAD)
        b.ones(f"blk.{i}.attn_q_norm", N_EMBD_HEAD)
        b.matrix(f"blk.{i}.ffn_gate", N_FF, n_embd)
        b.matrix(f"blk.{i}.ffn_up", N_FF, n_embd)
        b.matrix(f"blk.{i}.ffn_down", n_embd, N_FF)
        b.ones(f"blk.{i}.layer_output_scale", 1)
    return b.write()


def read_tensors(path: Path | str) -> dict[str, NDArray[np.float32]]:
    """The f32 tensors of a file by name, in numpy's order of dimensions."""
    return {t.name: np.array(t.data) for t in gguf.GGUFReader(str(path)).tensors}


def eagle3(
    path: Path | str,
    seed: int = 1,
    *,
    n_embd_target: int = N_EMBD,
    target_layers: Sequence[int] = (0, 1, 1),
    own_embeddings: bool = False,
    own_output: bool = False,
    d2t: Sequence[int] = (),
    copy_of: Path | str | None = None,
    head_noise: float = 0.0,
    **more: Any,
) -> Path:
    """An EAGLE-3 head. Without `own_embeddings` and `own_output` it uses the target's tensors.

    d2t: the ids of the target that the head's own output proposes.
    """
    target = read_tensors(copy_of) if copy_of else {}
    kept = {"token_embd.weight": own_embeddings, "output.weight": False}
    b = Builder("eagle3", path, seed, 1, keep=lambda name: kept.get(name, True), **more)
    w = b.writer
    w.add_array("eagle3.target_layers", list(target_layers))
    w.add_uint32("eagle3.target_hidden_size", n_embd_target)
    if target and own_embeddings:
        raise ValueError("a copy reads the target's embeddings")
    if own_output or d2t:
        output = target.get("output.weight", b.tensors["output.weight"])
        kept["output.weight"] = True
        b.put("output.weight", output[list(d2t)] if d2t else output)
    if d2t:
        b.writer.add_tensor("d2t", np.array(d2t, np.int64))
    b.matrix("fc", N_EMBD, len(target_layers) * n_embd_target)
    if target:
        _eagle3_copy(b, target, head_noise)
        return b.write()
    b.heads(N_HEAD_KV, rope=True)
    for name in ("attn_norm", "attn_norm_2"):
        b.ones(f"blk.0.{name}", N_EMBD)
    n_kv = N_HEAD_KV * N_EMBD_HEAD
    b.matrix("blk.0.attn_q", N_HEAD * N_EMBD_HEAD, 2 * N_EMBD, 1.6)
    b.matrix("blk.0.attn_k", n_kv, 2 * N_EMBD, 1.6)
    b.matrix("blk.0.attn_v", n_kv, 2 * N_EMBD, 1.5)
    b.matrix("blk.0.attn_output", N_EMBD, N_HEAD * N_EMBD_HEAD)
    b.feed_forward(0)
    return b.write()


def _eagle3_copy(b: Builder, target: dict[str, NDArray[np.float32]], head_noise: float) -> None:
    """The target's last block inside an EAGLE-3 head.

    The residual stream of such a head has no token embedding, only attention sees it. So three more heads
    attend to their own position alone and carry the embedding into the residual stream.
    """
    last = max(int(name.split(".")[1]) for name in target if name.startswith("blk."))
    of = {name.removeprefix(f"blk.{last}."): x for name, x in target.items()}
    n = N_EMBD_HEAD
    b.heads(2 * N_HEAD, rope=True, n_head=2 * N_HEAD)
    # The residual stream then begins at attn_norm_2, zero here.
    b.writer.add_bool("eagle3.norm_before_residual", True)
    b.put("blk.0.attn_norm.weight", of["attn_norm.weight"])
    b.put("blk.0.attn_norm_2.weight", np.full(N_EMBD, head_noise, np.float32))
    group = N_HEAD // N_HEAD_KV
    # All embeddings begin with 1, so these queries and keys are constant but for their rotation, which is
    # equal at distance 0 alone: at all others up to 4,096 the attention is e^-18 or less.
    own_position = np.zeros((N_HEAD * n, N_EMBD), np.float32)
    own_position.reshape(N_HEAD, n, N_EMBD)[:, ::2, 0] = 12
    carried = np.eye(N_EMBD, dtype=np.float32)
    wide = {
        "attn_q": np.concatenate([of["attn_q.weight"], own_position]),
        "attn_k": np.concatenate([_repeated(of["attn_k.weight"], group), own_position]),
        "attn_v": np.concatenate([_repeated(of["attn_v.weight"], group), carried]),
    }
    for name, x in wide.items():
        b.put(f"blk.0.{name}.weight", np.concatenate([x, np.zeros_like(x)], axis=1))
    b.put("blk.0.attn_output.weight", np.concatenate([of["attn_output.weight"], carried], axis=1))
    for name in ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"):
        b.put(f"blk.0.{name}.weight", of[f"{name}.weight"])


def _repeated(x: NDArray[np.float32], times: int) -> NDArray[np.float32]:
    """Each head's rows of a key or value matrix, repeated for every query head of its group."""
    return np.repeat(x.reshape(-1, N_EMBD_HEAD, x.shape[1]), times, axis=0).reshape(-1, x.shape[1])


def _selector(b: Builder, n_vocab: int, n_layer: int, top_k: int, rank: int = 8, kernel: int = 3) -> None:
    """What DFlash 2 adds: convolutions over the block, and scores of pairs of candidates."""
    group = 16
    for name, value in {
        "selector_rank": rank,
        "selector_top_k": top_k,
        "conv_kernel_size": kernel,
        "conv_group_size": group,
    }.items():
        b.writer.add_uint32(f"dflash.{name}", value)
    b.put("selector_predecessor.weight", b.random(n_vocab, rank))
    b.put("selector_successor.weight", b.random(n_vocab, rank))
    b.matrix("selector_hidden", rank, N_EMBD)
    for i in range(n_layer):
        for kind in ("attn", "ffn"):
            b.put(f"blk.{i}.{kind}_conv_base", b.random(2, kernel, N_EMBD) / np.float32(kernel))
            b.matrix(f"blk.{i}.{kind}_conv_proj", 2 * kernel * N_EMBD // group, N_EMBD)


def dflash(
    path: Path | str,
    seed: int = 1,
    *,
    n_vocab: int = N_VOCAB,
    n_layer: int = 2,
    block_size: int = 4,
    target_layers: Sequence[int] = (0, 1),
    markov: bool = False,
    top_k: int = 0,
    own_embeddings: bool = False,
    copy_of: Path | str | None = None,
    **more: Any,
) -> Path:
    """A drafter of whole blocks: DFlash, with `markov` DSpark, with a selector of `top_k` candidates for each
    token DFlash 2. Its hidden size is the target's.

    Without `own_embeddings` it uses the target's embeddings and output.
    """
    target = read_tensors(copy_of) if copy_of else {}
    if target and not markov:
        raise ValueError("only the Markov matrices can be those of a target")
    shared = ("token_embd.weight", "output.weight")
    b = Builder(
        "dflash", path, seed, n_layer, n_vocab=n_vocab, **more,
        keep=lambda name: name != "output_norm.weight" and (own_embeddings or name not in shared),
    )  # fmt: skip
    w = b.writer
    b.heads(N_HEAD_KV, rope=True)
    w.add_array("dflash.target_layers", list(target_layers))
    w.add_uint32("dflash.block_size", block_size)
    w.add_mask_token_id(MASK)
    b.matrix("fc", N_EMBD, len(target_layers) * N_EMBD)
    b.ones("enc.output_norm", N_EMBD)
    b.writer.add_tensor("output_norm.weight", np.full(N_EMBD, 0.0 if target else 1.0, np.float32))
    for i in range(n_layer):
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.attention(i, qk_norm=True)
        b.feed_forward(i)
    if top_k:
        _selector(b, n_vocab, n_layer, top_k)
    if markov:
        first, second = b.random(n_vocab, N_EMBD), b.random(n_vocab, N_EMBD) / np.float32(N_EMBD**0.5)
        if target:
            first, second = target["token_embd.weight"], target["output.weight"]
            first = first / np.sqrt((first**2).mean(axis=1, keepdims=True) + EPS)
        b.put("markov_w1.weight", first)
        b.put("markov_w2.weight", second)
        b.put("conf_proj.weight", b.random(1, 2 * N_EMBD) * np.float32(0.01))
        b.put("conf_proj.bias", np.full(1, 4.0 if target else 0.0, np.float32))
    return b.write()
