"""The tiny models load in llama.cpp, decode, and have the intended kind of memory.

Each is loaded in a child process: on many invalid files llama.cpp aborts instead of raising.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import tinygguf
from tests.support.command import Command
from tests.support.forks import BARE

CHILD = """
import ctypes, json, sys
import llama_cpp as lc
import numpy as np

quiet = lc.llama_log_callback(lambda level, text, data: None)
lc.llama_log_set(quiet, None)
lc.llama_backend_init()
model_params = lc.llama_model_default_params()
model_params.n_gpu_layers = 0
model = lc.llama_model_load_from_file(sys.argv[1].encode(), model_params)
assert model, "not loaded"
params = lc.llama_context_default_params()
params.n_ctx, params.n_threads, params.n_threads_batch, params.n_rs_seq = 64, 1, 1, 3
params.type_k = params.type_v = lc.GGML_TYPE_F32
params.flash_attn_type = lc.LLAMA_FLASH_ATTN_TYPE_DISABLED
ctx = lc.llama_init_from_model(model, params)
assert ctx, "no context"
vocab, memory = lc.llama_model_get_vocab(model), lc.llama_get_memory(ctx)
n_vocab = lc.llama_vocab_n_tokens(vocab)


def tokenize(text):
    ids = (lc.llama_token * 64)()
    n = lc.llama_tokenize(vocab, text.encode(), len(text.encode()), ids, 64, True, True)
    return list(ids[:n])


def decode(tokens, pos):
    batch = lc.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, pos + i, 1, 1
        batch.seq_id[i][0] = 0
    assert lc.llama_decode(ctx, batch) == 0
    rows = np.ctypeslib.as_array(lc.llama_get_logits(ctx), (len(tokens), n_vocab)).copy()
    lc.llama_batch_free(batch)
    return rows


tokens = tokenize("<|im_start|>the h\u00e9")
rows = decode(tokens, 0)
for _ in range(8):
    tokens.append(int(rows[-1].argmax()))
    rows = decode(tokens[-1:], len(tokens) - 1)
last = rows[-1]
lc.llama_memory_clear(memory, True)
at_once = decode(tokens, 0)
cut = lc.llama_memory_seq_rm(memory, 0, len(tokens) - 3, -1)
after_cut = float(np.abs(decode(tokens[-3:], len(tokens) - 3) - at_once[-3:]).max()) if cut else None
print(json.dumps({
    "tokens": tokens,
    "n_vocab": n_vocab,
    "finite": bool(np.isfinite(at_once).all()),
    "std": float(at_once.std()),
    "one_by_one": float(np.abs(last - at_once[-1]).max()),
    "cut": cut,
    "after_cut": after_cut,
    "n_swa": lc.llama_model_n_swa(model),
    "recurrent": lc.llama_model_is_recurrent(model),
    "hybrid": lc.llama_model_is_hybrid(model),
    "eos": lc.llama_vocab_eos(vocab),
}))
"""

KINDS = {  # name -> recurrent, hybrid, n_swa, whether three tokens can be rolled back
    "llama": (False, False, 0, True),
    "gemma3": (False, False, 16, True),
    "mamba": (True, False, 0, False),
    "jamba": (False, True, 0, False),
    "lfm2": (False, True, 0, True),
}


def run(path: Path) -> dict[str, object]:
    """The child's report on the model at `path`."""
    done = Command(path.parent).python("-c", CHILD, path, imports=BARE)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("name", sorted(tinygguf.BUILDERS))
def test_a_model_decodes_and_has_its_kind_of_memory(name: str, tmp_path: Path) -> None:
    path = tinygguf.BUILDERS[name](tmp_path / f"{name}.gguf")
    assert path.stat().st_size < 500_000
    report = run(path)
    recurrent, hybrid, n_swa, cuts = KINDS[name]
    assert report["finite"]
    assert 2 < report["std"] < 8
    assert report["one_by_one"] < 0.05
    assert (report["recurrent"], report["hybrid"], report["n_swa"], report["cut"]) == (
        recurrent,
        hybrid,
        n_swa,
        cuts,
    )
    assert not cuts or report["after_cut"] < 0.05
    tokens = report["tokens"]
    assert tokens[:2] == [tinygguf.ENDOFTEXT, tinygguf.IM_START]
    assert all(t > tinygguf.IM_END for t in tokens[-8:])
    assert len(set(tokens[-8:])) > 2
    assert (report["n_vocab"], report["eos"]) == (tinygguf.N_VOCAB, tinygguf.IM_END)


def test_files_depend_on_seed_and_noise_only(tmp_path: Path) -> None:
    files = [
        tinygguf.llama(tmp_path / f"{i}.gguf", seed=seed, noise=noise).read_bytes()
        for i, (seed, noise) in enumerate([(1, 0.0), (1, 0.0), (2, 0.0), (1, 0.1)])
    ]
    assert files[0] == files[1]
    assert len({*files}) == 3


@pytest.mark.parametrize("n_vocab", [259, 5000])
def test_rejects_impossible_vocabulary_sizes(n_vocab: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be in"):
        tinygguf.llama(tmp_path / "x.gguf", n_vocab=n_vocab)
