"""Which loaded models are evicted for a new one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import ResourceError
from specllama.gguf.header import Header
from specllama.gguf.parse import TensorInfo
from specllama.heads.kind import HeadInfo
from specllama.models.memory.available import DeviceMemory
from specllama.server.eviction import PendingLoad, prepare_load, select_evictions
from specllama.server.memory import FreeMemory, LoadedModel
from tests.support import tiny_mmproj, tinygguf, tinymtp

GB = 10**9


def header(n_layer: int = 16, n_embd: int = 2048) -> Header:
    """Of a model of 2 GB, without a file."""
    meta = {
        "general.architecture": "llama",
        "general.name": "new",
        "llama.context_length": 131072,
        "llama.embedding_length": n_embd,
        "llama.block_count": n_layer,
        "llama.feed_forward_length": 8192,
        "llama.attention.head_count": 16,
        "llama.attention.head_count_kv": 16,
        "llama.vocab_size": 32000,
    }
    shapes = {"token_embd.weight": (n_embd, 32000)}
    shapes |= {f"blk.{i}.all.weight": (n_embd, 30000) for i in range(n_layer)}
    tensors = tuple(TensorInfo(name, shape, "F16", 2 * math.prod(shape), 0) for name, shape in shapes.items())
    return Header("m.gguf", meta, tensors, sum(t.n_bytes for t in tensors))


@pytest.fixture(scope="module")
def pending() -> PendingLoad:
    settings = LoadSettings(target=ModelSettings(path="m.gguf"), n_slots=4)
    load = PendingLoad(settings, header(), None)
    assert 2 * GB < load.plan(FreeMemory(100 * GB)).host < 5 * GB
    return load


def loaded(id_: str, used_at: float, gigabytes: float = 6.0, busy: bool = False) -> LoadedModel:
    return LoadedModel(id_, busy, used_at, int(gigabytes * GB))


def evicted(pending: PendingLoad, there: list[LoadedModel], free: float, most: int = 0) -> list[str]:
    return [one.id for one in select_evictions(pending, there, FreeMemory(int(free * GB)), most)]


def test_no_model_is_evicted_if_there_is_room(pending: PendingLoad) -> None:
    assert evicted(pending, [], 4) == []
    assert evicted(pending, [loaded("a", 1), loaded("b", 2)], 10) == []


def test_the_least_recently_used_is_evicted(pending: PendingLoad) -> None:
    assert evicted(pending, [loaded("a", 2), loaded("b", 1), loaded("c", 3)], 0.1) == ["b"]


def test_idle_models_are_evicted_before_busy_ones(pending: PendingLoad) -> None:
    there = [loaded("old", 1, busy=True), loaded("new", 9)]
    assert evicted(pending, there, 0.1) == ["new"]
    assert evicted(pending, [loaded("old", 1, busy=True)], 0.1) == ["old"]


def test_no_more_models_are_evicted_than_needed(pending: PendingLoad) -> None:
    there = [loaded("small", 1, 0.01), loaded("large", 2), loaded("other", 3)]
    assert evicted(pending, there, 0.1) == ["large"]


def test_the_limit_of_loaded_models(pending: PendingLoad) -> None:
    there = [loaded("a", 2), loaded("b", 1)]
    assert evicted(pending, there, 100, most=3) == []
    assert evicted(pending, there, 100, most=2) == ["b"]
    assert set(evicted(pending, there, 100, most=1)) == {"a", "b"}


def test_a_model_that_never_fits_evicts_nothing(pending: PendingLoad) -> None:
    with pytest.raises(ResourceError, match=r"not enough memory .* GB of memory needed"):
        evicted(pending, [loaded("a", 1, 0.01)], 0.05)


def test_models_are_evicted_rather_than_load_with_a_smaller_context(pending: PendingLoad) -> None:
    """Next to the other model it would fit with half of its context."""
    alone = pending.plan(FreeMemory(100 * GB))
    free = alone.host * 0.95
    assert pending.plan(FreeMemory(int(free))).n_ctx < alone.n_ctx
    assert evicted(pending, [loaded("a", 1)], free / GB) == ["a"]


def test_gpus_are_kept_free_for_the_whole_model(pending: PendingLoad) -> None:
    """Without its layers on the GPU it would fit, and be slow."""
    full = FreeMemory(100 * GB, (DeviceMemory("CUDA0", GB // 20),))
    there = [LoadedModel("a", False, 1.0, GB, 8 * GB)]
    assert [one.id for one in select_evictions(pending, there, full)] == ["a"]
    roomy = FreeMemory(100 * GB, (DeviceMemory("CUDA0", 8 * GB),))
    assert select_evictions(pending, there, roomy) == []


def test_freed_memory_is_split_over_the_gpus() -> None:
    free = FreeMemory(1, (DeviceMemory("a", 300), DeviceMemory("b", 100)))
    freed = free.after_evicting([LoadedModel("x", False, 0.0, 10, 400)])
    assert (freed.host, [gpu.free for gpu in freed.gpus]) == (11, [600, 200])
    empty = FreeMemory(1, (DeviceMemory("a", 0), DeviceMemory("b", 0)))
    assert [gpu.free for gpu in empty.after_evicting([LoadedModel("x", False, 0.0, 0, 400)]).gpus] == [
        200,
        200,
    ]


def test_a_head_inside_the_target_is_left_out_if_it_does_not_fit(tmp_path: Path) -> None:
    path = str(tinymtp.qwen35(tmp_path / "m.gguf"))
    settings = LoadSettings(target=ModelSettings(path=path, n_ctx=4096), draft=ModelSettings(path=path))
    load = prepare_load(settings, None)
    assert isinstance(load.draft, HeadInfo)
    both = load.plan(FreeMemory(GB))
    assert both.draft is not None
    assert both.target.weights + both.draft.weights == load.target.weight_bytes
    alone = load.plan(FreeMemory(both.host - 1000))
    assert alone.draft is None
    with pytest.raises(ResourceError):
        load.plan(FreeMemory(alone.host - 1000))


def test_a_head_next_to_a_draft_model_is_left_out_first(tmp_path: Path) -> None:
    path, small = tinymtp.mimo2(tmp_path / "m.gguf"), tinygguf.llama(tmp_path / "d.gguf")
    settings = LoadSettings(
        target=ModelSettings(path=str(path), n_ctx=4096), draft=ModelSettings(path=str(small))
    )
    load = prepare_load(settings, None)
    assert isinstance(load.draft, Header)
    assert load.head is not None
    all_three = load.plan(FreeMemory(GB))
    assert all_three.head is not None
    less = load.plan(FreeMemory(all_three.host - 1))
    assert (less.head, less.draft) == (None, all_three.draft)
    with pytest.raises(ResourceError):
        load.plan(FreeMemory(less.host - 1))
    there = [LoadedModel("a", False, 1.0, GB)]
    assert select_evictions(load, there, FreeMemory(all_three.host)) == []
    assert select_evictions(load, there, FreeMemory(all_three.host - 1)) == there


def test_a_head_in_a_file_of_its_own_replaces_the_one_inside(tmp_path: Path) -> None:
    path = tinymtp.mimo2(tmp_path / "m.gguf")
    head = tinymtp.mimo2(tmp_path / "mtp-m.gguf", part="head")
    settings = LoadSettings(target=ModelSettings(path=str(path)), draft=ModelSettings(path=str(head)))
    assert prepare_load(settings, None).head is None


def test_a_projector_that_nobody_named_is_left_out_if_it_does_not_fit(tmp_path: Path) -> None:
    path, mmproj = tinygguf.gemma3(tmp_path / "m.gguf"), tiny_mmproj.gemma3(tmp_path / "mmproj-m.gguf")
    target = ModelSettings(path=str(path), n_ctx=512)
    settings = LoadSettings(target=target, mmproj=str(mmproj), mmproj_found=True)
    load = prepare_load(settings, None)
    seeing = load.plan(FreeMemory(GB))
    assert load.projector is not None
    assert seeing.images.weights == load.projector.header.weight_bytes
    assert load.plan(FreeMemory(seeing.host - 1000)).images.weights == 0
    named = prepare_load(replace(settings, mmproj_found=False), None)
    with pytest.raises(ResourceError):
        named.plan(FreeMemory(seeing.host - 1000))
    there = [loaded("a", 1, gigabytes=1)]
    assert [one.id for one in select_evictions(load, there, FreeMemory(seeing.host - 1000))] == ["a"]
