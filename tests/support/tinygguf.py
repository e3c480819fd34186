"""Tiny random GGUF models for tests: one builder for each kind of memory that llama.cpp keeps.

    llama    plain attention: can be truncated anywhere
    gemma3   sliding window of 16: with `swa_full` off, truncation is accepted but the logits are wrong
    mamba    recurrent: can only be emptied
    jamba    recurrent and attention, without rollback: can only be emptied
    lfm2     recurrent and attention: with `n_rs_seq` > 0 it can roll back that many tokens once

Each is a function `(path, seed=0, *, n_layer=2, ..., **more) -> path`, whose `more` (n_vocab, noise,
n_ctx_train ...) is that of `Builder`, and writes 270 to 390 kB
in some milliseconds. The vocabularies of equal `n_vocab` are equal, so any two of them make a pair.
`noise` mixes another model into the weights (0: none, 1: half), for a draft that agrees with the noiseless
model part of the time (0.1: in six tokens of ten, 0.2: four, 0.5: one). The output is not meaningful, but
greedy generation depends on the context, has some forty different tokens and never ends by itself: control
tokens are the least likely.

Weights are f32. Logits of batches of different sizes still differ by up to 1e-2, because flash attention and
the f16 cache round differently, so one token in some thousands differs. A test that needs equal tokens sets
`type_k` and `type_v` to f32 and flash attention off: 1e-4 (gemma3 1e-2, its GELU is a table). Independent of
specllama.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

ENDOFTEXT, IM_START, IM_END = 0, 1, 2  # token ids; IM_END ends a turn and the generation
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
N_VOCAB = len(CONTROL) + 256 + 21
LETTERS = "etaoinshrdlucmfwygpbvk"  # by frequency; the merged tokens are pairs of them

N_EMBD, N_HEAD, N_HEAD_KV, N_FF = 48, 3, 1, 96
N_EMBD_HEAD = N_EMBD // N_HEAD
LOGIT_STD = 3.0
ROW_SPREAD = 0.5  # some tokens are frequent, as in text: larger gaps between the two best logits
EPS = 1e-5


def byte_tokens() -> list[str]:
    """GPT-2's 256 characters, one for each byte value, in the order of the values."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = (chr(256 + i) for i in range(256))
    return [chr(b) if b in printable else next(others) for b in range(256)]


def vocabulary(n_vocab: int, more: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Tokens (three control tokens, 256 bytes, pairs of letters, `more` control tokens) and the merges that
    make the pairs.
    """
    pairs = [f"{a} {b}" for a in LETTERS for b in LETTERS]
    n_pairs = n_vocab - len(CONTROL) - 256 - len(more)
    if not 1 <= n_pairs <= len(pairs):  # llama.cpp needs merges, and gguf cannot write an empty list
        raise ValueError(f"n_vocab {n_vocab}: must be in {N_VOCAB - 20}..{len(CONTROL) + 256 + len(pairs)}")
    merges = pairs[:n_pairs]
    return [*CONTROL, *byte_tokens(), *(m.replace(" ", "") for m in merges), *more], merges


class Builder:
    """Builds a GGUF file: the keys and tensors that all architectures share, and random weights."""

    def __init__(
        self,
        arch: str,
        path: Path | str,
        seed: int,
        n_layer: int,
        *,
        n_vocab: int = N_VOCAB,
        noise: float = 0.0,
        n_ctx_train: int = 2048,
        pre: str = "gpt-2",
        more: Sequence[str] = (),
        n_embd: int = N_EMBD,
        unit_rows: bool = False,
        keep: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """pre: the pre-tokenizer that the file names. more: further control tokens, such as FIM. unit_rows:
        all embeddings have the same norm, and the same first element. keep: which of the tensors that are put
        are written, by name; the others use up their random numbers too, so that two files of one model fit
        together.
        """
        self.arch, self.path, self.noise, self.keep = arch, Path(path), noise, keep
        self.n_ctx_train = n_ctx_train
        self.tensors: dict[str, NDArray[np.generic]] = {}
        self.rng, self.other = np.random.default_rng(seed), np.random.default_rng([seed, 1])
        self.writer = w = gguf.GGUFWriter(str(path), arch)
        w.add_name(f"tiny-{arch}")
        w.add_file_type(gguf.LlamaFileType.ALL_F32)
        w.add_context_length(n_ctx_train)
        w.add_embedding_length(n_embd)
        w.add_block_count(n_layer)
        w.add_layer_norm_rms_eps(EPS)
        w.add_vocab_size(n_vocab)
        tokens, merges = vocabulary(n_vocab, more)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre(pre)
        w.add_token_list(tokens)
        control = range(len(CONTROL)), range(n_vocab - len(more), n_vocab)
        types = [gguf.TokenType.NORMAL] * n_vocab
        for i in (*control[0], *control[1]):
            types[i] = gguf.TokenType.CONTROL
        w.add_token_types(types)
        w.add_token_merges(merges)
        w.add_bos_token_id(ENDOFTEXT)
        w.add_eos_token_id(IM_END)
        w.add_add_bos_token(True)
        w.add_chat_template(CHATML)
        # Gemma multiplies its embeddings by sqrt(n_embd): all residual streams start at about 1 per channel.
        gain = 1.0 if arch in ("gemma3", "gemma4") else n_embd**0.5
        embedding = self.random(n_vocab, n_embd)
        if unit_rows:
            embedding[:, 1:] /= np.sqrt((embedding[:, 1:] ** 2).mean(axis=1, keepdims=True))
            embedding[:, 0] = 1
        self.put("token_embd.weight", embedding * np.float32(gain / n_embd**0.5))
        output = self.random(n_vocab, n_embd) * np.float32(LOGIT_STD / n_embd**0.5)
        output *= np.exp(ROW_SPREAD * self.rng.standard_normal((n_vocab, 1), dtype=np.float32))
        output[: len(CONTROL)] *= 0.05
        output[n_vocab - len(more) :] *= 0.05
        self.put("output.weight", output)
        self.ones("token_embd_norm" if arch == "lfm2" else "output_norm", n_embd)

    def random(self, *shape: int) -> NDArray[np.float32]:
        """Standard normal numbers, mixed with those of another model if `noise` is not 0."""
        x, y = (r.standard_normal(shape, dtype=np.float32) for r in (self.rng, self.other))
        x += np.float32(self.noise) * y
        x /= np.float32((1 + self.noise**2) ** 0.5)
        return x

    def put(self, name: str, x: NDArray[np.generic]) -> None:
        self.tensors[name] = x
        if self.keep(name):
            self.writer.add_tensor(name, np.ascontiguousarray(x))

    def matrix(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        """A weight that turns inputs of size 1 per channel into outputs of size `gain` per channel."""
        self.put(f"{name}.weight", self.random(n_out, n_in) * np.float32(gain / n_in**0.5))

    def ones(self, name: str, n: int) -> None:
        self.put(f"{name}.weight", np.ones(n, np.float32))

    def heads(self, n_head_kv: int | list[int], *, rope: bool, n_head: int = N_HEAD) -> None:
        """Metadata of blocks. n_head_kv: a list has the KV heads of each block, 0 for recurrent blocks."""
        w = self.writer
        w.add_feed_forward_length(N_FF)
        w.add_head_count(n_head)
        w.add_head_count_kv(n_head_kv)
        w.add_key_length(N_EMBD_HEAD)
        w.add_value_length(N_EMBD_HEAD)
        if rope:
            w.add_rope_dimension_count(N_EMBD_HEAD)
            w.add_rope_freq_base(10000.0)

    def attention(self, i: int, *, qk_norm: bool = False, adds: float = 1.0) -> None:
        """Queries and keys are large, so that each head attends to few positions and the context matters.

        adds: a factor on the output.
        """
        gain = 1.0 if qk_norm else 1.6
        self.matrix(f"blk.{i}.attn_q", N_EMBD, N_EMBD, gain)
        self.matrix(f"blk.{i}.attn_k", N_HEAD_KV * N_EMBD_HEAD, N_EMBD, gain)
        self.matrix(f"blk.{i}.attn_v", N_HEAD_KV * N_EMBD_HEAD, N_EMBD, 1.5)
        self.matrix(f"blk.{i}.attn_output", N_EMBD, N_EMBD, adds)
        if qk_norm:
            self.put(f"blk.{i}.attn_q_norm.weight", np.full(N_EMBD_HEAD, 1.6, np.float32))
            self.put(f"blk.{i}.attn_k_norm.weight", np.full(N_EMBD_HEAD, 1.6, np.float32))

    def feed_forward(self, i: int, norm: str = "ffn_norm", adds: float = 1.0) -> None:
        self.ones(f"blk.{i}.{norm}", N_EMBD)
        self.matrix(f"blk.{i}.ffn_gate", N_FF, N_EMBD)
        self.matrix(f"blk.{i}.ffn_up", N_FF, N_EMBD)
        self.matrix(f"blk.{i}.ffn_down", N_EMBD, N_FF, adds)

    def ssm_keys(self, d_state: int, dt_rank: int, d_conv: int = 4) -> None:
        w = self.writer
        w.add_ssm_conv_kernel(d_conv)
        w.add_ssm_inner_size(2 * N_EMBD)
        w.add_ssm_state_size(d_state)
        w.add_ssm_time_step_rank(dt_rank)

    def mamba_mixer(
        self, i: int, d_state: int, dt_rank: int, d_conv: int = 4, *, norms: bool = False
    ) -> None:
        """A Mamba-1 mixer with the initialisation of its paper: steps of 0.01 to 0.3, decays 1..d_state."""
        d_inner = 2 * N_EMBD
        blk = f"blk.{i}.ssm"
        self.matrix(f"{blk}_in", 2 * d_inner, N_EMBD)
        self.put(f"{blk}_conv1d.weight", self.random(d_inner, d_conv) / np.float32(d_conv**0.5))
        self.put(f"{blk}_conv1d.bias", np.zeros(d_inner, np.float32))
        self.matrix(f"{blk}_x", dt_rank + 2 * d_state, d_inner, gain=2.0)
        self.matrix(f"{blk}_dt", d_inner, dt_rank)
        dt = np.exp(np.linspace(np.log(0.01), np.log(0.3), d_inner))
        self.put(f"{blk}_dt.bias", np.log(np.expm1(dt)).astype(np.float32))  # softplus turns it into dt again
        if norms:
            for name, n in (("dt", dt_rank), ("b", d_state), ("c", d_state)):
                self.ones(f"{blk}_{name}_norm", n)
        self.put(f"{blk}_a", -np.tile(np.arange(1, d_state + 1, dtype=np.float32), (d_inner, 1)))
        self.put(f"{blk}_d", np.ones(d_inner, np.float32))
        self.matrix(f"{blk}_out", N_EMBD, d_inner, gain=2.0)

    def write(self) -> Path:
        return written(self.writer, self.path)


def written(w: gguf.GGUFWriter, path: Path) -> Path:
    """The file, whole."""
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def llama(
    path: Path | str,
    seed: int = 0,
    *,
    n_layer: int = 2,
    adds: Sequence[float] = (),
    sampling: Mapping[str, int | float | str] | None = None,
    **more: Any,
) -> Path:
    """Plain attention in every block; with `n_layer=1` the same first block and a cheaper draft. adds: a
    factor for each block on what it adds to the residual stream; the embeddings then have equal norms.
    sampling: values of general.sampling.*.
    """
    b = Builder("llama", path, seed, n_layer, unit_rows=bool(adds), **more)
    factors = adds or (1.0,) * n_layer
    b.heads(N_HEAD_KV, rope=True)
    add = {int: b.writer.add_int32, float: b.writer.add_float32, str: b.writer.add_string}
    for key, value in (sampling or {}).items():
        add[type(value)](f"general.sampling.{key}", value)
    for i in range(n_layer):
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.attention(i, adds=factors[i])
        b.feed_forward(i, adds=factors[i])
    return b.write()


def gemma3(path: Path | str, seed: int = 0, *, n_layer: int = 2, n_swa: int = 16, **more: Any) -> Path:
    """Blocks with a window of `n_swa` tokens alternate with blocks without.

    llama.cpp rounds the window's cache up to n_swa + n_ubatch and then to 256 cells: a wrong truncation is
    visible only in sequences longer than that.
    """
    b = Builder("gemma3", path, seed, n_layer, **more)
    b.heads(N_HEAD_KV, rope=True)
    b.writer.add_sliding_window(n_swa)
    b.writer.add_sliding_window_pattern(2)
    for i in range(n_layer):
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.attention(i, qk_norm=True)
        b.ones(f"blk.{i}.post_attention_norm", N_EMBD)
        b.feed_forward(i)
        b.ones(f"blk.{i}.post_ffw_norm", N_EMBD)
    return b.write()


def mamba(path: Path | str, seed: int = 0, *, n_layer: int = 2, d_state: int = 16, **more: Any) -> Path:
    """Recurrent in every block."""
    b = Builder("mamba", path, seed, n_layer, **more)
    b.writer.add_head_count(0)
    b.writer.add_feed_forward_length(0)
    b.ssm_keys(d_state, dt_rank=4)
    for i in range(n_layer):
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.mamba_mixer(i, d_state, dt_rank=4)
    return b.write()


def jamba(path: Path | str, seed: int = 0, *, n_layer: int = 2, d_state: int = 16, **more: Any) -> Path:
    """A hybrid without rollback: recurrent blocks alternate with attention blocks without positions."""
    b = Builder("jamba", path, seed, n_layer, **more)
    b.heads([N_HEAD_KV * (i % 2) for i in range(n_layer)], rope=False)
    b.ssm_keys(d_state, dt_rank=4)
    for i in range(n_layer):
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        if i % 2:
            b.attention(i)
        else:
            b.mamba_mixer(i, d_state, dt_rank=4, norms=True)
        b.feed_forward(i)
    return b.write()


def lfm2(path: Path | str, seed: int = 0, *, n_layer: int = 3, l_cache: int = 4, **more: Any) -> Path:
    """A hybrid with rollback: short convolutions over `l_cache` tokens, every second block attention."""
    b = Builder("lfm2", path, seed, n_layer, **more)
    b.heads([N_HEAD_KV * (i % 2) for i in range(n_layer)], rope=True)
    b.writer.add_shortconv_l_cache(l_cache)
    for i in range(n_layer):
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        if i % 2:
            b.attention(i, qk_norm=True)
        else:
            b.put(f"blk.{i}.shortconv.conv.weight", b.random(N_EMBD, l_cache) / np.float32(l_cache**0.5))
            b.matrix(f"blk.{i}.shortconv.in_proj", 3 * N_EMBD, N_EMBD)
            b.matrix(f"blk.{i}.shortconv.out_proj", N_EMBD, N_EMBD)
        b.feed_forward(i)
    return b.write()


BUILDERS = {"llama": llama, "gemma3": gemma3, "mamba": mamba, "jamba": jamba, "lfm2": lfm2}
