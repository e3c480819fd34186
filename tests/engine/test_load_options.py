"""Every field of the settings classes does what it promises: it changes the memory plan or what llama.cpp is
given to load, or it is named here with the place that reads it. Nothing is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from specllama.config.load import ALL_LAYERS, LOAD_SETTINGS, MODEL_SETTINGS, LoadSettings, ModelSettings
from specllama.gguf.header import Header
from specllama.gguf.parse import TensorInfo
from specllama.llama.model import ModelParams, context_params
from specllama.models.memory.cost import keeps_all_cells
from specllama.models.memory.plan import (
    DeviceMemory,
    on_gpus,
    plan_load,
    rollback,
    rows_of_logits,
    spare_cells,
)
from tests.support.paths import ROOT

GB = 10**9
GPUS = (DeviceMemory("CUDA0", GB), DeviceMemory("CUDA1", GB))
N_LAYER, N_EMBD, N_FF, N_VOCAB = 16, 2048, 8192, 32_000


def mixture_of_experts(name: str) -> Header:
    """A header whose layers have experts and, all but some, sliding windows."""
    meta: dict[str, Any] = {"general.architecture": "gemma3", "general.name": name}
    own = {
        "context_length": 32_768,
        "embedding_length": N_EMBD,
        "block_count": N_LAYER,
        "feed_forward_length": N_FF,
        "attention.head_count": 16,
        "attention.head_count_kv": 8,
        "attention.sliding_window": 512,
        "vocab_size": N_VOCAB,
    }
    meta |= {f"gemma3.{key}": value for key, value in own.items()}
    shapes = {"token_embd.weight": (N_EMBD, N_VOCAB), "output.weight": (N_EMBD, N_VOCAB)}
    for i in range(N_LAYER):
        shapes[f"blk.{i}.attn_q.weight"] = (N_EMBD, N_EMBD)
        shapes[f"blk.{i}.ffn_up_exps.weight"] = (N_EMBD, 3 * N_FF)
    tensors = tuple(TensorInfo(k, s, "F16", s[0] * s[1] * 2, 0) for k, s in shapes.items())
    return Header(name, meta, tensors, sum(t.n_bytes for t in tensors))


TARGET, DRAFT = mixture_of_experts("target"), mixture_of_experts("draft")
BASE = LoadSettings(target=ModelSettings(path="t.gguf"), draft=ModelSettings(path="d.gguf"))


def plain(params: Any) -> dict[str, Any]:
    """The fields of a structure of llama.cpp; of a pointer, whether it is set."""
    fields = {}
    for name, kind in params._fields_:
        value = getattr(params, name)
        simple = isinstance(value, (int, float)) and kind is not ctypes.c_void_p
        fields[name] = value if simple else bool(value)
    return fields


def effect(settings: LoadSettings) -> dict[str, Any]:
    """What loading these settings plans and gives to llama.cpp, for the target and the draft."""
    settings = on_gpus(settings, [gpu.name for gpu in GPUS])
    plan = plan_load(settings, TARGET, DRAFT if settings.draft else None, 100 * GB, GPUS)
    effects: dict[str, Any] = {"plan": plan, "devices": [settings.target.devices]}
    target = replace(settings.target, swa_full=keeps_all_cells(settings))
    for name, s, usage in (("target", target, plan.target), ("draft", settings.draft, plan.draft)):
        if s is None or usage is None:
            continue
        named = replace(s, devices=() if any(gpu.name in s.devices for gpu in GPUS) else s.devices)
        effects[f"{name} model"] = plain(ModelParams(named).params)
        n_ctx = usage.n_ctx + (spare_cells(settings) if name == "target" else 0)
        n_outputs, n_states = rows_of_logits(settings), rollback(settings)
        params = context_params(s, n_ctx, settings.n_slots, n_outputs, n_states)
        effects[f"{name} context"] = plain(params)
    return effects


CHANGED: Mapping[str, Any] = {
    "n_ctx": 1024,
    "rope_scaling": "yarn",
    "rope_scale": 2.0,
    "rope_freq_base": 1e6,
    "rope_freq_scale": 0.5,
    "yarn_orig_ctx": 4096,
    "yarn_ext_factor": 0.5,
    "yarn_attn_factor": 0.5,
    "yarn_beta_slow": 2.0,
    "yarn_beta_fast": 16.0,
    "n_threads": 3,
    "n_threads_batch": 7,
    "n_batch": 96,
    "n_ubatch": 64,
    "n_gpu_layers": 3,
    "devices": ("none",),
    "tensor_split": (3.0, 1.0),
    "split_mode": "row",
    "tensor_parallel_size": 1,
    "main_gpu": 1,
    "override_tensor": (("exps", "CPU"),),
    "n_cpu_moe": -1,
    "cache_type_k": "q8_0",
    "cache_type_v": "q8_0",
    "flash_attn": "off",
    "swa_full": True,
    "use_mmap": False,
    "use_mlock": True,
}
READ_LATER: Mapping[str, str] = {
    "lora": "llama/model.py",  # adapters are loaded after the model
}
LOAD_CHANGED: Mapping[str, Any] = {
    "n_slots": 3,
    "draft_max": 100,
    "exact": True,
    "exact_width": 8,
    "drafters": (),
}
# Fields that show at run time, and the file that reads them.
AT_RUN_TIME: Mapping[str, str] = {
    "draft_vocab": "worker/draft.py",
    "draft_tree": "worker/engine_core.py",
    "draft_min": "worker/loader.py",
    "draft_p_min": "worker/loader.py",
    "calibrate": "worker/idle.py",
    "memory": "worker/loader.py",
    "memory_from": "worker/engine_core.py",
    "chat_template": "worker/prompts.py",
    "tool_format": "worker/prompts.py",
    "rpc": "worker/rpc.py",
    "schema_open": "worker/intake.py",
    "cache_disk": "worker/engine_core.py",
    "kept_seconds": "worker/engine_core.py",
    "cache_ram": "worker/engine_core.py",
    "ctx_checkpoints": "worker/engine_core.py",
    "pooling": "worker/embedding.py",
    "mmproj": "config/load.py",
    "mmproj_offload": "models/memory/plan.py",
    "image_min_tokens": "worker/images.py",
    "image_max_tokens": "worker/images.py",
}


def test_every_field_is_here_once() -> None:
    assert {*CHANGED, *READ_LATER} == set(MODEL_SETTINGS)
    assert not CHANGED.keys() & READ_LATER.keys()
    assert {*LOAD_CHANGED, *AT_RUN_TIME} == set(LOAD_SETTINGS)
    assert not LOAD_CHANGED.keys() & AT_RUN_TIME.keys()


@pytest.mark.parametrize("name", CHANGED)
def test_a_field_of_a_model_changes_the_plan_or_what_llama_cpp_is_given(name: str) -> None:
    changed = replace(BASE, target=replace(BASE.target, **{name: CHANGED[name]}))
    assert effect(changed) != effect(BASE)


OF_THE_DRAFT = [name for name, entry in MODEL_SETTINGS.items() if entry.draft or entry.inherited]


@pytest.mark.parametrize("name", OF_THE_DRAFT)
def test_and_so_does_that_of_the_draft(name: str) -> None:
    assert BASE.draft is not None
    base = replace(BASE, target=replace(BASE.target, n_gpu_layers=0))  # the devices are free for the draft
    changed = replace(base, draft=replace(BASE.draft, **{name: CHANGED[name]}))
    assert effect(changed) != effect(base)


@pytest.mark.parametrize("name", LOAD_CHANGED)
def test_a_field_of_a_load_changes_the_plan_or_what_llama_cpp_is_given(name: str) -> None:
    assert effect(replace(BASE, **{name: LOAD_CHANGED[name]})) != effect(BASE)


@pytest.mark.parametrize(("name", "file"), [*READ_LATER.items(), *AT_RUN_TIME.items()])
def test_a_field_with_an_effect_later_is_read_where_this_table_says(name: str, file: str) -> None:
    assert f".{name}" in (ROOT / "specllama" / file).read_text("utf-8")


# Fields whose effect is, or includes, one on memory.
MEMORY = {
    "n_ctx", "n_batch", "n_ubatch", "n_gpu_layers", "devices", "override_tensor", "n_cpu_moe",
    "cache_type_k", "cache_type_v", "flash_attn", "swa_full", "tensor_parallel_size",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MEMORY))
def test_a_field_that_memory_depends_on_changes_the_plan(name: str) -> None:
    changed = replace(BASE, target=replace(BASE.target, **{name: CHANGED[name]}))
    assert effect(changed)["plan"] != effect(BASE)["plan"]


def test_windows_and_experts_save_what_they_promise() -> None:
    def planned(**more: Any) -> Any:
        target = replace(BASE.target, n_ctx=8192, **more)
        return effect(replace(BASE, target=target, draft=None))["plan"].target

    assert planned().kv < 0.5 * planned(swa_full=True).kv
    assert planned(n_cpu_moe=-1).n_gpu_layers == N_LAYER + 1 > planned().n_gpu_layers
    everywhere = planned(n_cpu_moe=-1, n_gpu_layers=ALL_LAYERS)
    experts = sum(t.n_bytes for t in TARGET.tensors if "exps" in t.name)
    assert everywhere.host > experts > everywhere.device
    assert planned(override_tensor=((r"\.ffn_.*_exps", "CPU"),)) == planned(n_cpu_moe=-1)
    assert planned(split_mode="none").device < planned().device
    assert planned(split_mode="none", main_gpu=1) == planned(split_mode="none")
