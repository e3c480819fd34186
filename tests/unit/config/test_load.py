"""Load settings: ranges, and their form in JSON."""

from __future__ import annotations

import json

import pytest

from specllama import wire
from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import UsageError

TARGET = ModelSettings(path="t.gguf")
RICH = ModelSettings(
    path="/models/größe.gguf",
    n_ctx=4096,
    n_gpu_layers=-2,
    devices=("CUDA0", "CUDA1"),
    split_mode="row",
    tensor_split=(3.0, 1.0),
    override_tensor=(("ffn_.*", "CPU"), ("x", "y")),
    cache_type_k="q8_0",
    lora=(("a.gguf", 0.5),),
    rope_scaling="yarn",
    rope_freq_base=1e6,
    yarn_orig_ctx=32768,
    use_mmap=False,
)


@pytest.mark.parametrize(
    "settings",
    [
        LoadSettings(target=TARGET),
        LoadSettings(target=RICH, draft=TARGET, rpc=("a:1", "b:50052")),
        LoadSettings(target=TARGET, drafters=("copy",), draft_max=8, draft_min=4, draft_p_min=0.9, n_slots=4),
        LoadSettings(
            target=TARGET, drafters=(), draft_max=0, exact=True, calibrate=False, chat_template="{{ x }}"
        ),
    ],
    ids=["plain", "pair", "fixed", "off"],
)
def test_settings_survive_json(settings):
    again = wire.from_plain(LoadSettings, json.loads(wire.to_json(settings)))
    assert again == settings
    assert hash(again) == hash(settings)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n_ctx", [-1, 1.5, True, "4096", None, 2**31]),
        ("n_batch", [0, -1]),
        ("n_ubatch", [0]),
        ("n_threads", [-1]),
        ("n_threads_batch", [-1]),
        ("n_gpu_layers", [-3]),
        ("main_gpu", [-1]),
        ("tensor_parallel_size", [-1, 1.5, True, "2"]),
        ("n_cpu_moe", [-2]),
        ("split_mode", ["rows", None]),
        ("flash_attn", ["maybe", True]),
        ("cache_type_k", ["q3_0", ""]),
        ("cache_type_v", ["f17"]),
        ("rope_scaling", ["cubic"]),
    ],
)
def test_rejects_model_settings_out_of_range(name, values):
    for value in values:
        with pytest.raises(UsageError, match=name):
            ModelSettings(path="m.gguf", **{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n_slots", [0, -1, 1.0]),
        ("drafters", [("magic",), ("model", "")]),
        ("draft_max", [-1, 513, 1.5]),
        ("draft_min", [-1]),
        ("draft_p_min", [-0.1, 1.1, float("nan")]),
    ],
)
def test_rejects_load_settings_out_of_range(name, values):
    for value in values:
        with pytest.raises(UsageError, match=name):
            LoadSettings(target=TARGET, **{name: value})


def test_rejects_contradictory_settings():
    with pytest.raises(UsageError, match="draft_min 5 is more than draft_max 4"):
        LoadSettings(target=TARGET, draft_max=4, draft_min=5)
    with pytest.raises(UsageError, match="cache_type_v q8_0 needs flash attention"):
        ModelSettings(path="m.gguf", flash_attn="off", cache_type_v="q8_0")
    with pytest.raises(UsageError, match="tensor_parallel_size splits by layers, and split_mode=row does"):
        ModelSettings(path="m.gguf", tensor_parallel_size=2, split_mode="row")
    assert ModelSettings(path="m.gguf", flash_attn="off", cache_type_k="q8_0").cache_type_k == "q8_0"
    assert LoadSettings(target=TARGET, draft_max=0, draft_min=5).draft_max == 0, "drafts off"
