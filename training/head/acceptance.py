"""How often the target accepts what a head drafts, by draft step, through llama.cpp with the finished file.

usage: python -m training.head.acceptance --model GGUF --head GGUF --texts DIR

The texts are those that `write --held-out` wrote. After every token of an answer the head drafts four tokens,
most probable ones; a draft step counts as accepted if it and the steps before are what the target finds most
probable. Prints the shares by kind of prompt and temperature.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp as lc
import numpy as np
from llama_cpp import llama_cpp_ext as ext
from numpy.typing import NDArray

from scripts import cli
from scripts.bench.llm import Llm, ModelFileError, start_llama
from training.head import shards
from training.head.write import LAYERS

N_STEP = 4


class DraftHead:
    """A head over its target: drafts after tokens whose features are given. Sequence 0 only."""

    def __init__(self, path: Path, target: Llm, n_threads: int, n_ctx: int = 1024) -> None:
        self.model = lc.llama_model_load_from_file(str(path).encode(), lc.llama_model_default_params())
        if not self.model:
            raise ModelFileError(f"{path}: llama.cpp cannot load it")
        params = lc.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = n_threads
        params.ctx_other = target.ctx
        self.ctx = lc.llama_init_from_model(self.model, params)
        if not self.ctx:
            raise ModelFileError(f"{path}: llama.cpp cannot make a context")
        ext.llama_set_embeddings_nextn(self.ctx, True, True)
        self.memory = lc.llama_get_memory(self.ctx)
        self.n_embd = int(lc.llama_model_n_embd(self.model))
        self.n_vocab = target.n_vocab

    def _batch(
        self, tokens: Sequence[int] | None, rows: NDArray[np.float32], first: int, outputs: bool
    ) -> tuple[lc.llama_batch, list[object]]:
        """A batch of rows at consecutive positions, and what has to be kept until it was decoded."""
        n = len(rows)
        rows = np.ascontiguousarray(rows, np.float32)
        positions = (lc.llama_pos * n)(*range(first, first + n))
        counts, seq = (ctypes.c_int32 * n)(*[1] * n), (lc.llama_seq_id * 1)(0)
        ids = (ctypes.POINTER(lc.llama_seq_id) * n)(*[ctypes.cast(seq, ctypes.POINTER(lc.llama_seq_id))] * n)
        wanted = (ctypes.c_int8 * n)(*[int(outputs)] * n)
        batch = lc.llama_batch(n_tokens=n, embd=rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)))
        batch.pos, batch.n_seq_id, batch.seq_id, batch.logits = positions, counts, ids, wanted
        kept: list[object] = [rows, positions, counts, seq, ids, wanted]
        if tokens is not None:
            array = (lc.llama_token * n)(*tokens)
            batch.token = array
            kept.append(array)
        return batch, kept

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """g of each row, (rows, n_embd)."""
        first = int(lc.llama_memory_seq_pos_max(self.memory, 0)) + 1
        batch, _kept = self._batch(None, features, first, True)
        if lc.llama_encode(self.ctx, batch) != 0:
            raise ModelFileError("llama.cpp cannot encode")
        return np.ctypeslib.as_array(
            ext.llama_get_embeddings_nextn(self.ctx), (len(features), self.n_embd)
        ).copy()

    def decode(
        self, tokens: Sequence[int], g: NDArray[np.float32], first: int, outputs: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
        """Append pairs at positions from `first`. With outputs, logits and hidden row of the last one."""
        batch, _kept = self._batch(tokens, g, first, outputs)
        if lc.llama_decode(self.ctx, batch) != 0:
            raise ModelFileError("llama.cpp cannot decode")
        if not outputs:
            return None
        logits = np.ctypeslib.as_array(lc.llama_get_logits_ith(self.ctx, -1), (self.n_vocab,))
        hidden = ext.llama_get_embeddings_nextn_ith(self.ctx, len(tokens) - 1)
        return logits, np.ctypeslib.as_array(hidden, (self.n_embd,)).copy()

    def truncate(self, n: int) -> None:
        lc.llama_memory_seq_rm(self.memory, 0, n, -1)

    def drafts(
        self, text: shards.Text, used: NDArray[np.int64], n_prompt: int
    ) -> Iterator[tuple[int, list[int]]]:
        """Row P, and what the head drafts after token P + 1, for every row from the end of the prompt on."""
        self.truncate(0)
        g = self.encode(text.features[:, used].astype(np.float32))
        tokens = text.tokens.astype(int).tolist()
        first = max(0, n_prompt - 2)
        if first:
            self.decode(tokens[1 : first + 1], g[:first], 0, False)
        for row in range(first, len(tokens) - 1):
            token, hidden, drafted = tokens[row + 1], g[row], []
            for step in range(N_STEP):
                found = self.decode([token], hidden[None], row + step, True)
                assert found is not None
                token, hidden = int(found[0].argmax()), found[1]
                drafted.append(token)
            self.truncate(row + 1)
            yield row, drafted


def count(text: shards.Text, drafts: Iterator[tuple[int, list[int]]]) -> tuple[NDArray[np.int64], int]:
    """Accepted drafts by step, (N_STEP,), and the rows that were drafted after. Where a sampled text leaves
    what the target finds most probable, the later steps are not accepted.
    """
    accepted, rows = np.zeros(N_STEP, np.int64), 0
    best, n = text.top["id"][:, 0], len(text.tokens)
    for row, drafted in drafts:
        rows += 1
        for step, token in enumerate(drafted):
            at = row + 1 + step
            if at >= n or token != best[at] or (step and text.tokens[at] != best[at - 1]):
                break
            accepted[step] += 1
    return accepted, rows


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--model", type=Path, required=True, metavar="GGUF", help="the target")
    p.add_argument("--head", type=Path, required=True, metavar="GGUF", help="of `train`")
    p.add_argument("--texts", type=Path, required=True, metavar="DIR", help="of `write --held-out`")
    p.add_argument("--threads", type=cli.threads, default=2, metavar="N", help="threads of the head")
    a = p.parse_args()
    start_llama()
    found: dict[str, list[tuple[NDArray[np.int64], int]]] = defaultdict(list)
    with Llm(a.model, n_threads=a.threads) as target:
        head = DraftHead(a.head, target, a.threads)
        n_embd = int(lc.llama_model_n_embd(target.model))
        layers = _target_layers(a.head)
        used = np.concatenate([np.arange(n_embd) + n_embd * LAYERS.index(layer) for layer in layers])
        for name in sorted(path.stem for path in a.texts.glob("*.jsonl")):
            shard = shards.Shard(a.texts, name, len(LAYERS) * n_embd)
            for entry in shard.entries:
                text = shard.text(entry)
                counts = count(text, head.drafts(text, used, entry.n_prompt))
                for kind in (entry.kind, "all"):
                    found[f"{kind}, temperature {entry.temperature:g}"].append(counts)
    for kind, counts_of_kind in sorted(found.items()):
        n = sum(rows for _, rows in counts_of_kind)
        accepted = np.sum([accepted for accepted, _ in counts_of_kind], 0)
        print(f"{kind}: {' '.join(f'{share:.3f}' for share in accepted / max(1, n))} of {n}")


def _target_layers(path: Path) -> list[int]:
    import gguf

    return [int(layer) for layer in gguf.GGUFReader(path).fields["eagle3.target_layers"].contents()]


if __name__ == "__main__":
    cli.run(main, ModelFileError, OSError)
