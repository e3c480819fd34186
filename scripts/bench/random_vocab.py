"""A pair of llama models with random weights and a vocabulary of any size, to measure time and memory outside
the models.

These grow with the vocabulary: rows of logits, tries of grammars, softmax. The draft consists of the first
channels of the target, whose other channels are smaller, so that the two agree in part of their choices.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MERGES = ("Ġ t", "h e", "Ġt he", "i n", "Ġ a", "r e", "o n", "e r", "Ġ s", "a t", "e n", "o r")
SPACE = "Ġ"  # GPT-2's character for the byte of a space
N_EMBD, N_EMBD_DRAFT, N_EMBD_HEAD = 256, 64, 32
OWN_SCALE = 0.3  # of the target's own channels, relative to the shared ones
BLOCK_GAIN = 0.2  # scale of the output of a block
LOGIT_STD = 3.0
MIN_VOCAB = 1000


def byte_tokens() -> list[str]:
    """GPT-2's 256 characters, one for each byte value, in the order of the values."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = (chr(256 + i) for i in range(256))
    return [chr(b) if b in printable else next(others) for b in range(256)]


def tokens(n_vocab: int) -> list[str]:
    """Control tokens, bytes, results of the merges, then words of letters, every second one after a space."""
    out = dict.fromkeys([*CONTROL, *byte_tokens(), *(m.replace(" ", "") for m in MERGES)])
    i = 0
    while len(out) < n_vocab:
        word, rest = "", i // 2 + 26  # two letters at least
        while rest:
            rest, letter = divmod(rest, 26)
            word += chr(ord("a") + letter)
        out[SPACE * (i % 2) + word] = None
        i += 1
    return list(out)


def write_pair(target: Path, draft: Path, n_vocab: int, seed: int = 0) -> None:
    """Write both models in f16: 256 wide with two blocks, and 64 wide with one."""
    rng = np.random.default_rng(seed)
    words = tokens(n_vocab)
    size = np.where(np.arange(N_EMBD) < N_EMBD_DRAFT, 1.0, OWN_SCALE).astype(np.float32)
    embedding = rng.standard_normal((n_vocab, N_EMBD), dtype=np.float32) * size
    output = rng.standard_normal((n_vocab, N_EMBD), dtype=np.float32) * size
    output *= np.float32(LOGIT_STD / N_EMBD_DRAFT**0.5)
    output[: len(CONTROL)] *= np.float32(0.05)  # so that greedy generation does not end
    _write(target, words, embedding, output, size, rng, n_layer=2)
    shared = slice(0, N_EMBD_DRAFT)
    _write(draft, words, embedding[:, shared], output[:, shared], size[shared], rng, n_layer=1)


def _write(
    path: Path,
    words: list[str],
    embedding: NDArray[np.float32],
    output: NDArray[np.float32],
    size: NDArray[np.float32],
    rng: np.random.Generator,
    n_layer: int,
) -> None:
    d = len(size)
    n_head, ff = d // N_EMBD_HEAD, 4 * d
    w = gguf.GGUFWriter(path, "llama")
    w.add_name(path.stem)
    w.add_description("Random weights, for measurements only")
    w.add_context_length(8192)
    w.add_embedding_length(d)
    w.add_block_count(n_layer)
    w.add_feed_forward_length(ff)
    w.add_head_count(n_head)
    w.add_head_count_kv(n_head // 2)
    w.add_rope_dimension_count(N_EMBD_HEAD)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    w.add_vocab_size(len(words))
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(words)
    w.add_token_types(
        [gguf.TokenType.CONTROL] * len(CONTROL) + [gguf.TokenType.NORMAL] * (len(words) - len(CONTROL))
    )
    w.add_token_merges(list(MERGES))
    w.add_bos_token_id(0)
    w.add_eos_token_id(CONTROL.index("<|im_end|>"))
    w.add_add_bos_token(True)
    w.add_chat_template(CHATML)

    def put(name: str, n_out: int, n_in: int, scale: NDArray[np.float32] | float = 1.0) -> None:
        x = rng.standard_normal((n_out, n_in), dtype=np.float32) / np.float32(n_in**0.5)
        w.add_tensor(f"{name}.weight", (x * scale).astype(np.float16))

    w.add_tensor("token_embd.weight", embedding.astype(np.float16))
    w.add_tensor("output.weight", output.astype(np.float16))
    w.add_tensor("output_norm.weight", np.ones(d, np.float32))
    to_stream = BLOCK_GAIN * size[:, None]
    for i in range(n_layer):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(d, np.float32))
        w.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(d, np.float32))
        put(f"blk.{i}.attn_q", d, d)
        put(f"blk.{i}.attn_k", d // 2, d)
        put(f"blk.{i}.attn_v", d // 2, d)
        put(f"blk.{i}.attn_output", d, d, to_stream)
        put(f"blk.{i}.ffn_gate", ff, d)
        put(f"blk.{i}.ffn_up", ff, d)
        put(f"blk.{i}.ffn_down", d, ff, to_stream)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
