"""How long steps of drafts take before and after trimming.

usage: python -m scripts.bench.trim --out DIR [--vocab 128256] [--kind draft|head] [--keep 8192,16384,32768]
       python -m scripts.bench.trim --out DIR --draft DRAFT.gguf [--keep 32768]

Random weights of the shape of a draft (12 blocks, 1024 wide, feed-forward 2816) or of an EAGLE-3 head (2048
wide), the output matrix in Q8_0, the rest in Q4_0; or a file of one's own. A step is a decode of one row,
with the choice of a token at temperature 0 and its probability. All files are timed in turns; DIR holds the
files.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import gguf
import numpy as np
from numpy.typing import NDArray

from scripts import cli
from scripts.bench.random_vocab import byte_tokens
from specllama.client.tune_messages import Trim
from specllama.config.load import ModelSettings
from specllama.core.interfaces import BatchRow, HeadRow
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.proposal import probability
from specllama.core.sampling.sampler import KeyedSampler
from specllama.errors import SpecllamaError
from specllama.gguf.header import read_model
from specllama.gguf.trimmed import read_trim
from specllama.llama.context import LlamaContext
from specllama.llama.draft_contexts import TrimmedContext
from specllama.llama.heads import HeadContext, NoTarget
from specllama.llama.model import LlamaModel
from specllama.worker.trim import trim

Bytes = NDArray[np.uint8]
N_HEAD, N_CTX, N_PAST = 16, 512, 64
SHAPES = {"draft": (1024, 12, 2816), "head": (2048, 1, 5632)}  # width, blocks, feed-forward
_BLOCKS = {"Q8_0": (34, 32), "Q4_0": (18, 32)}


def random_rows(rng: np.random.Generator, kind: str, n_rows: int, n: int) -> Bytes:
    """Rows of random weights of a small scale."""
    size, length = _BLOCKS[kind]
    blocks = rng.integers(0, 256, (n_rows, n // length, size), np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(2e-4 if kind == "Q8_0" else 3e-3).tobytes(), np.uint8)
    return blocks.reshape(n_rows, -1)


def vocabulary(n: int) -> tuple[list[str], list[str]]:
    """The 256 characters of bytes, then merges of them until there are n tokens."""
    letters = byte_tokens()
    tokens, merges = list(letters), list[str]()
    first = 0
    while len(tokens) < n:
        for letter in letters[: min(len(letters), n - len(tokens))]:
            merges.append(f"{tokens[first]} {letter}")
            tokens.append(tokens[first] + letter)
        first += 1
    return tokens, merges


def write_random(path: Path, kind: str, n_vocab: int) -> None:
    """A draft model of architecture llama, or an EAGLE-3 head with embeddings and an output of its own."""
    arch, (n, n_layer, n_ff) = {"draft": "llama", "head": "eagle3"}[kind], SHAPES[kind]
    w, rng = gguf.GGUFWriter(str(path), arch), np.random.default_rng(0)
    w.add_context_length(4096)
    w.add_embedding_length(n)
    w.add_block_count(n_layer)
    w.add_feed_forward_length(n_ff)
    w.add_head_count(N_HEAD)
    w.add_head_count_kv(N_HEAD // 4)
    w.add_rope_dimension_count(n // N_HEAD)
    w.add_key_length(n // N_HEAD)
    w.add_value_length(n // N_HEAD)
    w.add_layer_norm_rms_eps(1e-5)
    tokens, merges = vocabulary(n_vocab)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.NORMAL] * n_vocab)
    w.add_token_merges(merges)
    w.add_bos_token_id(0)
    w.add_eos_token_id(1)

    def put(name: str, n_out: int, n_in: int, type_name: str = "Q4_0") -> None:
        data = random_rows(rng, type_name, n_out, n_in)
        w.add_tensor(f"{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType[type_name])

    def ones(name: str) -> None:
        w.add_tensor(f"{name}.weight", np.ones(n, np.float32))

    wide, n_kv = (2 * n, n // 4) if kind == "head" else (n, n // 4)
    if kind == "head":
        w.add_array("eagle3.target_layers", [1, 2, 3])
        w.add_uint32("eagle3.target_hidden_size", n)
        put("fc", n, 3 * n)
        ones("blk.0.attn_norm_2")
    put("token_embd", n_vocab, n, "Q8_0")
    put("output", n_vocab, n, "Q8_0")
    ones("output_norm")
    for i in range(n_layer):
        ones(f"blk.{i}.attn_norm")
        ones(f"blk.{i}.ffn_norm")
        for name, n_out, n_in in (
            ("attn_q", n, wide), ("attn_k", n_kv, wide), ("attn_v", n_kv, wide), ("attn_output", n, n),
            ("ffn_gate", n_ff, n), ("ffn_up", n_ff, n), ("ffn_down", n, n_ff),
        ):  # fmt: skip
            put(f"blk.{i}.{name}", n_out, n_in)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def model_step(stack: ExitStack, path: Path, n_threads: int) -> Callable[[], None]:
    """A function that makes a step of a draft model after N_PAST tokens."""
    header = read_model(path)
    model = LlamaModel(ModelSettings(path=str(path), n_threads=n_threads, n_gpu_layers=0))
    stack.callback(model.close)
    trimmed = read_trim(header)
    context = LlamaContext(model, N_CTX, 1, 8)
    if trimmed is not None:
        context.close()
        context = TrimmedContext(model, header, trimmed, lambda _token: 0, N_CTX, 1, 8)
    stack.callback(context.close)
    token = context.random_token()
    context.decode([BatchRow(token, i, 0, False) for i in range(N_PAST)])
    sampler = KeyedSampler(SamplingParams(temperature=0), 0, context.n_vocab)

    def step() -> None:
        row = context.decode([BatchRow(token, N_PAST, 0, True)])[0]
        probability(row, sampler.choose(row, [token]).token)
        context.truncate(0, N_PAST)

    return step


def head_step(stack: ExitStack, path: Path, n_threads: int) -> Callable[[], None]:
    """The same for a head, after one row."""
    model = LlamaModel(ModelSettings(path=str(path), n_threads=n_threads, n_gpu_layers=0), is_head=True)
    stack.callback(model.close)
    n_features = 3 * SHAPES["head"][0]
    context = HeadContext(model, NoTarget(model), N_CTX, encodes=True, n_features=n_features)
    stack.callback(context.close)
    hidden = context.hidden(0, np.zeros((1, n_features), np.float32))[0]
    sampler = KeyedSampler(SamplingParams(temperature=0), 0, context.n_vocab)

    def step() -> None:
        row = context.decode([HeadRow(5, 0, 0, hidden, True)])[0][0]
        probability(row, sampler.choose(row, [5]).token)
        context.truncate(0, 0)

    return step


def timed(steps: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Median seconds of each step, all in turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            found[name].append(time.perf_counter() - began)
    return {name: median(times) for name, times in found.items()}


def copies(a: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """(label, path) of the draft and of its trimmed copies."""
    source = a.draft or a.out / f"random-{a.kind}-{a.vocab}.gguf"
    if not source.exists():
        write_random(source, a.kind, a.vocab)
    yield "whole", source
    for n in a.keep:
        path = a.out / f"{source.stem}-{n}.gguf"
        if not path.exists():
            request = Trim(str(source), str(path), f"{path}.tmp", keep=n, n_threads=a.threads)
            found = trim(request, lambda _message: None)
            print(f"{n} tokens: greatest difference of logits {found.difference}", flush=True)
        yield str(n), path


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--out", type=cli.folder, required=True, metavar="DIR", help="folder for the files")
    p.add_argument("--kind", choices=tuple(SHAPES), default="draft")
    p.add_argument("--vocab", type=cli.whole(4096), default=128256, metavar="N", help="tokens")
    p.add_argument("--draft", type=Path, metavar="GGUF", help="in place of random weights")
    p.add_argument("--keep", default="8192,16384,32768", metavar="N,N", help="sizes of the copies")
    p.add_argument("--seconds", type=cli.whole(1), default=20, metavar="S", help="of timing")
    p.add_argument("--threads", type=cli.threads, default=2, metavar="N")
    a = p.parse_args()
    a.keep = [int(n) for n in a.keep.split(",")]
    a.out.mkdir(parents=True, exist_ok=True)
    files = list(copies(a))
    with ExitStack() as stack:
        make = head_step if a.kind == "head" and not a.draft else model_step
        times = timed({name: make(stack, path, a.threads) for name, path in files}, a.seconds)
    for name, path in files:
        size = path.stat().st_size / 1e6
        ms, gain = 1000 * times[name], times["whole"] / times[name]
        print(f"{name:>6}: {ms:7.2f} ms a step, {gain:.2f} x, {size:.0f} MB")


if __name__ == "__main__":
    cli.run(main, OSError, SpecllamaError, ValueError)
