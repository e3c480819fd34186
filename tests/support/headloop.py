"""Drafts with a head over llama.cpp's own interface, without specllama: shows that a file holds such a head.

    python -m tests.support.headloop KIND TARGET HEAD

KIND is mtp, chained, assistant, eagle3, dflash, dflash2 or dspark. It prints JSON: the number of accepted
tokens and the draft of each round, and whether the text is that of plain decoding. One sequence, greedy,
single precision. HEAD is TARGET itself for a head inside the model. The call sequences are those of
llama.cpp's common/speculative.cpp.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
from collections.abc import Sequence
from typing import Any

import llama_cpp as lc  # noqa: TID251
import numpy as np
from llama_cpp import llama_cpp_ext as ext  # noqa: TID251
from numpy.typing import NDArray

Rows = Sequence[tuple[int | None, int, NDArray[np.float32] | None]]  # token, position, embedding
N_DRAFT, N_ROUNDS, PROMPT = 3, 12, [20 + i * 7 % 230 for i in range(24)]

_lib = lc.llama_cpp._lib
_set_layer_input = _lib._Z30llama_set_embeddings_layer_inpP13llama_contextjb
_set_layer_input.argtypes, _set_layer_input.restype = [c.c_void_p, c.c_uint32, c.c_bool], None
_get_layer_input = _lib._Z30llama_get_embeddings_layer_inpP13llama_contextj
_get_layer_input.argtypes, _get_layer_input.restype = [c.c_void_p, c.c_uint32], c.POINTER(c.c_float)
_target_layers = _lib._Z28llama_model_target_layer_idsPK11llama_model
_target_layers.argtypes, _target_layers.restype = [c.c_void_p], c.POINTER(c.c_int32)
_top_k = _lib._Z33llama_model_dflash_selector_top_kPK11llama_model
_top_k.argtypes, _top_k.restype = [c.c_void_p], c.c_int32
_n_target_layers = _lib._Z30llama_model_target_layer_ids_nPK11llama_model
_n_target_layers.argtypes, _n_target_layers.restype = [c.c_void_p], c.c_uint32


class Context:
    """One sequence of a model in llama.cpp."""

    def __init__(self, model: Any, *, mtp: bool = False, other: Any = None, n_rs_seq: int = 0) -> None:
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 512, 256, 256
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = lc.GGML_TYPE_F32
        params.flash_attn_type, params.swa_full = lc.LLAMA_FLASH_ATTN_TYPE_DISABLED, True
        params.n_rs_seq = n_rs_seq
        if mtp:
            params.ctx_type = lc.LLAMA_CONTEXT_TYPE_MTP
        if other is not None:
            params.ctx_other = other.ptr
        self.ptr = lc.llama_init_from_model(model, params)
        assert self.ptr, "no context"
        self.memory = lc.llama_get_memory(self.ptr)
        self.n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))

    def run(self, rows: Rows, *, encode: bool = False) -> None:
        n = len(rows)
        batch, keep = lc.llama_batch(), []
        batch.n_tokens = n
        if rows[0][0] is not None:
            keep.append((c.c_int32 * n)(*[token for token, _, _ in rows]))
            batch.token = c.cast(keep[-1], c.POINTER(c.c_int32))
        if rows[0][2] is not None:
            keep.append(np.ascontiguousarray(np.stack([x for _, _, x in rows]), dtype=np.float32))
            batch.embd = keep[-1].ctypes.data_as(c.POINTER(c.c_float))
        one = (c.c_int32 * 1)(0)
        keep += [
            (c.c_int32 * n)(*[pos for _, pos, _ in rows]),
            (c.c_int32 * n)(*[1] * n),
            (c.c_int8 * n)(*[1] * n),
        ]
        batch.pos, batch.n_seq_id = (c.cast(x, c.POINTER(c.c_int32)) for x in keep[-3:-1])
        batch.logits = c.cast(keep[-1], c.POINTER(c.c_int8))
        seqs = (c.POINTER(c.c_int32) * n)(*[c.cast(one, c.POINTER(c.c_int32))] * n)
        batch.seq_id = c.cast(seqs, c.POINTER(c.POINTER(c.c_int32)))
        assert (lc.llama_encode if encode else lc.llama_decode)(self.ptr, batch) == 0

    def best(self, i: int) -> int:
        return int(np.ctypeslib.as_array(lc.llama_get_logits_ith(self.ptr, i), (self.n_vocab,)).argmax())

    def nextn(self, n: int, width: int) -> NDArray[np.float32]:
        return np.ctypeslib.as_array(ext.llama_get_embeddings_nextn(self.ptr), (n, width)).copy()

    def cut(self, n: int) -> None:
        assert lc.llama_memory_seq_rm(self.memory, 0, n, -1), "not cut"


class Head:
    """One kind of head: `start` with the prompt but its last token, `draft`, `accept` the target's rows."""

    def __init__(self, kind: str, target: Context, model: Any, target_model: Any) -> None:
        mtp = kind in ("mtp", "chained", "assistant")
        self.kind, self.target = kind, target
        self.ctx = Context(model, mtp=mtp, other=target)
        self.n_embd = lc.llama_model_n_embd(target_model)
        self.n_embd_own = lc.llama_model_n_embd(model)
        self.n_heads = lc.llama_model_n_layer_nextn(model) if kind == "chained" else 1
        self.layers = [] if mtp else [_target_layers(model)[i] for i in range(_n_target_layers(model))]
        for layer in self.layers:
            _set_layer_input(target.ptr, layer, True)
        if mtp:
            ext.llama_set_embeddings_nextn(target.ptr, True, False)
        self.block = kind in ("dflash", "dflash2", "dspark")
        if self.block:
            lc.llama_set_causal_attn(self.ctx.ptr, False)
        ext.llama_set_embeddings_nextn(self.ctx.ptr, True, kind != "dflash2")
        self.top_k = _top_k(model) if kind == "dflash2" else 0
        self.confidence: list[float] = []

    def rows(self, n: int) -> NDArray[np.float32]:
        """What the head reads of the target's last decode, a row a token."""
        if not self.layers:
            return self.target.nextn(n, self.n_embd)
        parts = [
            np.ctypeslib.as_array(_get_layer_input(self.target.ptr, i), (n, self.n_embd)) for i in self.layers
        ]
        return np.concatenate(parts, axis=1)

    def encoded(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        start = lc.llama_memory_seq_pos_max(self.ctx.memory, 0) + 1
        self.ctx.run([(None, start + i, x) for i, x in enumerate(features)], encode=True)
        return self.ctx.nextn(len(features), self.n_embd_own)

    def start(self, prompt: Sequence[int]) -> None:
        n = len(prompt)
        rows = self.rows(n)
        if self.kind in ("mtp", "chained"):
            shifted = np.concatenate([np.zeros((1, self.n_embd), np.float32), rows[:-1]])
            self._on_all_heads([(prompt[i], i, shifted[i]) for i in range(n)])
            self.pending = rows[-1]
        elif self.kind == "assistant":
            self.pending = rows[-1]
        elif self.kind == "eagle3":
            g = self.encoded(rows)
            self.ctx.run([(prompt[i + 1], i, g[i]) for i in range(n - 1)])
            self.pending = g[-1]
        else:
            self.ctx.run([(None, i, rows[i]) for i in range(n)])

    def _on_all_heads(self, rows: Rows) -> None:
        for i in range(self.n_heads):
            if self.kind == "chained":
                self.ctx.cut(rows[0][1])
                ext.llama_set_nextn_layer_offset(self.ctx.ptr, i)
            self.ctx.run(rows)

    def draft(self, last: int, n0: int) -> list[int]:
        found: list[int] = []
        if self.block:
            shift = 0 if self.kind == "dspark" else 1
            block = [last] + [3] * (N_DRAFT - 1 + shift)
            self.ctx.run([(token, n0 + i, None) for i, token in enumerate(block)])
            found = self._walk() if self.top_k else [self.ctx.best(i + shift) for i in range(N_DRAFT)]
            if shift == 0:
                self.confidence = self.ctx.nextn(N_DRAFT, self.n_embd_own)[:, 0].tolist()
            self.ctx.cut(n0)
            return found
        pos = n0 - 1 if self.kind == "eagle3" else n0
        token, h = last, self.pending
        cells: list[tuple[int | None, int, NDArray[np.float32] | None]] = []
        for k in range(N_DRAFT):
            if self.kind == "chained":
                if k >= self.n_heads:
                    break
                self.ctx.cut(n0)
                ext.llama_set_nextn_layer_offset(self.ctx.ptr, k)
                cells.append((token, n0 + k, h))
                self.ctx.run(cells)
            else:
                self.ctx.run([(token, pos + (0 if self.kind == "assistant" else k), h)])
            i = len(cells) - 1 if cells else 0
            token = self.ctx.best(i)
            h = self.ctx.nextn(i + 1, self.n_embd)[i]
            found.append(token)
        if self.kind != "assistant":
            self.ctx.cut(n0 if self.kind in ("eagle3", "chained") else n0 + 1)
        return found

    def _walk(self) -> list[int]:
        """The best candidate of each place, after the best one of the place before."""
        rows, k, at, found = self.ctx.nextn(N_DRAFT + 1, self.n_embd_own), self.top_k, 0, []
        for row in rows[1:]:
            at = int(row[k + at * k : k + (at + 1) * k].argmax())
            found.append(int(row[at]))
        return found

    def accept(self, tokens: Sequence[int], n0: int, last: int) -> None:
        """tokens: the accepted ones and the target's next. last: the token at n0 before them."""
        m = len(tokens) - 1
        rows = self.rows(m + 1)
        if self.kind == "mtp" and m:
            self.ctx.run([(tokens[i], n0 + 1 + i, rows[i]) for i in range(m)])
        elif self.kind == "chained":
            hs = [self.pending, *rows[:m]]
            self._on_all_heads([(t, n0 + i, hs[i]) for i, t in enumerate([last, *tokens[:m]])])
        if self.kind in ("mtp", "chained", "assistant"):
            self.pending = rows[m]
        elif self.kind == "eagle3":
            g = self.encoded(rows)
            if m:
                self.ctx.run([(tokens[i], n0 + i, g[i]) for i in range(m)])
            self.pending = g[m]
        else:
            self.ctx.run([(None, n0 + i, rows[i]) for i in range(m + 1)])


def load(path: str, mtp: bool) -> Any:
    params = lc.llama_model_default_params()
    params.n_gpu_layers, params.load_mtp = 0, mtp
    model = lc.llama_model_load_from_file(path.encode(), params)
    assert model, f"{path} was not loaded"
    return model


def main(kind: str, target_path: str, head_path: str) -> dict[str, object]:
    mtp = kind in ("mtp", "chained", "assistant")
    target_model = load(target_path, mtp and head_path == target_path)
    model = target_model if head_path == target_path else load(head_path, mtp)
    plain, expected = Context(target_model), []
    plain.run([(t, i, None) for i, t in enumerate(PROMPT)])
    expected.append(plain.best(len(PROMPT) - 1))
    for i in range(N_ROUNDS * (N_DRAFT + 1)):
        plain.run([(expected[-1], len(PROMPT) + i, None)])
        expected.append(plain.best(0))
    target = Context(target_model, n_rs_seq=N_DRAFT + 1)
    head = Head(kind, target, model, target_model)
    target.run([(t, i, None) for i, t in enumerate(PROMPT[:-1])])
    head.start(PROMPT[:-1])
    history, accepted, drafts = list(PROMPT), [], []
    for _ in range(N_ROUNDS):
        n0, last = len(history) - 1, history[-1]
        drafted = head.draft(last, n0)
        drafts.append(drafted)
        target.run([(t, n0 + i, None) for i, t in enumerate([last, *drafted])])
        best = [target.best(i) for i in range(len(drafted) + 1)]
        m = 0
        while m < len(drafted) and best[m] == drafted[m]:
            m += 1
        head.accept(best[: m + 1], n0, last)
        if m < len(drafted):
            target.cut(n0 + m + 1)
        history += best[: m + 1]
        accepted.append(m)
    text = history[len(PROMPT) :]
    return {
        "accepted": accepted,
        "equal": text == expected[: len(text)],
        "n_different": len(set(text)),
        "confidence": head.confidence,
        "drafts": drafts,
    }


if __name__ == "__main__":
    quiet = lc.llama_log_callback(lambda *_: None)
    lc.llama_log_set(quiet, None)
    lc.llama_backend_init()
    sys.stdout.write(json.dumps(main(*sys.argv[1:4])))
