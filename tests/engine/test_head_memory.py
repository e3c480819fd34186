"""The memory plan of targets with heads compared with what llama.cpp allocates in a child process."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.gguf.header import Header, read_header
from specllama.heads import read_head
from specllama.models.memory.plan import MemoryPlan, plan_memory
from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.command import Command
from tests.support.forks import BARE
from tests.support.memory import plan_settings

N_CTX, N_SLOTS, N_RS_SEQ = 32768, 16, 3
CHILD = """
import sys
import llama_cpp as lc

log = lc.llama_log_callback(lambda level, text, data: sys.stdout.write(text.decode()))
lc.llama_log_set(log, None)
target_path, head_path, mtp, n_ctx, n_slots, n_rs_seq, n_contexts = *sys.argv[1:3], *map(int, sys.argv[3:])


def load(path):
    params = lc.llama_model_default_params()
    params.n_gpu_layers, params.load_mtp = 0, bool(mtp)
    return lc.llama_model_load_from_file(path.encode(), params)


def open_context(model, other=None):
    params = lc.llama_context_default_params()
    params.n_ctx, params.n_seq_max, params.n_threads = n_ctx, n_slots, 1
    params.kv_unified, params.swa_full = True, True
    if other is None:
        params.n_rs_seq = n_rs_seq
    else:
        params.ctx_other = other
        if mtp:
            params.ctx_type = lc.LLAMA_CONTEXT_TYPE_MTP
    print("context", flush=True)
    assert (ctx := lc.llama_init_from_model(model, params))
    return ctx


target = load(target_path)
head = target if head_path == target_path else load(head_path)
context = open_context(target)
for _ in range(n_contexts):
    open_context(head, context)
"""


def allocated(target: Path, head: Path, mtp: bool, n_contexts: int) -> list[dict[str, float]]:
    """MiB of KV cache ("KV") and recurrent states ("RS") of the target's context and of all of the head's."""
    numbers = int(mtp), N_CTX, N_SLOTS, N_RS_SEQ, n_contexts
    done = Command(head.parent).python("-c", CHILD, target, head, *numbers, imports=BARE, timeout=120)
    assert done.returncode == 0, done.stderr
    usages = []
    for part in done.stdout.split("\ncontext\n")[1:]:
        sums = dict.fromkeys(("KV", "RS"), 0.0)
        for kind, size in re.findall(r"(KV|RS) buffer size = +([\d.]+) MiB", part):
            sums[kind] += float(size)
        usages.append(sums)
    assert len(usages) == 1 + n_contexts
    return [usages[0], {kind: sum(one[kind] for one in usages[1:]) for kind in usages[0]}]


def planned(target: Header, head: Header) -> MemoryPlan:
    settings = plan_settings(1 << 40, n_ctx=N_CTX, n_slots=N_SLOTS, n_rs_seq=N_RS_SEQ)
    info = read_head(head)
    assert info is not None
    return plan_memory(target, info, settings)


CASES: dict[str, tuple[bool, Callable[[Path], tuple[Path, Path]]]] = {
    "qwen35": (True, lambda d: (path := tinymtp.qwen35(d / "t.gguf"), path)),
    "mimo2": (True, lambda d: (path := tinymtp.mimo2(d / "t.gguf"), path)),
    "step35": (True, lambda d: (path := tinymtp.step35(d / "t.gguf"), path)),
    "sidecar": (
        True,
        lambda d: (tinymtp.qwen35(d / "t.gguf", part="trunk"), tinymtp.qwen35(d / "h.gguf", part="head")),
    ),
    "gemma4": (True, lambda d: (tinyheads.gemma4(d / "t.gguf"), tinyheads.gemma4_assistant(d / "h.gguf"))),
    "eagle3": (False, lambda d: (tinygguf.llama(d / "t.gguf"), tinyheads.eagle3(d / "h.gguf"))),
    "dflash": (False, lambda d: (tinygguf.llama(d / "t.gguf"), tinyheads.dflash(d / "h.gguf"))),
}


@pytest.mark.parametrize("name", CASES)
def test_caches_and_states_are_planned_as_llama_cpp_allocates_them(name: str, tmp_path: Path) -> None:
    mtp, build = CASES[name]
    target, head = build(tmp_path)
    plan, n_contexts = planned(read_header(target), read_header(head)), 3 if name == "step35" else 1
    assert plan.draft is not None
    usages = allocated(target, head, mtp, n_contexts)
    for usage, there in zip((plan.target, plan.draft), usages, strict=True):
        assert usage.kv / 2**20 == pytest.approx(there["KV"], abs=0.011)
        assert usage.state / 2**20 == pytest.approx(there["RS"], abs=0.011)
    assert plan.target.kv > 2**20
    assert (plan.target.state > 2**20) == (name in ("qwen35", "sidecar"))
    assert plan.draft.state == 0
    assert (plan.draft.kv == 0) == (name == "gemma4")
