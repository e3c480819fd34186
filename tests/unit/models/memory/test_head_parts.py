"""The memory of heads: their weights, caches and buffers are counted once, and only if they are used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specllama.errors import ResourceError
from specllama.gguf.header import Header, read_header
from specllama.heads import read_head
from specllama.heads.kind import HeadInfo
from specllama.models.memory.plan import DeviceMemory, plan_memory, row_buffers, without_head
from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.memory import plan_settings

MUCH = 1 << 40


def with_head(path: Path) -> tuple[Header, HeadInfo]:
    header = read_header(path)
    head = read_head(header)
    assert head is not None
    return header, head


@pytest.mark.parametrize("build", [tinymtp.qwen35, tinymtp.mimo2, tinymtp.step35])
def test_a_model_and_its_own_head_share_the_weights(build, tmp_path: Path) -> None:
    header, head = with_head(build(tmp_path / "t.gguf"))
    settings = plan_settings(MUCH, n_ctx=1024, n_rs_seq=4)
    plan, alone = plan_memory(header, head, settings), plan_memory(header, None, settings)
    assert plan.draft is not None
    assert plan.target == alone.target
    assert plan.target.weights + plan.draft.weights == header.weight_bytes
    assert plan.draft.weights == head.weight_bytes
    assert plan.draft.kv > 0
    assert plan.host == alone.host + plan.draft.host
    trunk = read_header(build(tmp_path / "trunk.gguf", part="trunk"))
    assert alone.target == plan_memory(trunk, None, settings).target
    assert without_head(trunk) is trunk


def test_a_head_in_a_file_of_its_own_is_planned_from_its_header(tmp_path: Path) -> None:
    target = read_header(tinygguf.llama(tmp_path / "t.gguf"))
    for build in (tinyheads.eagle3, tinyheads.dflash):
        header, head = with_head(build(tmp_path / "h.gguf"))
        settings = plan_settings(MUCH, n_ctx=1024, n_batch=512)
        plan = plan_memory(target, header, settings)
        assert plan == plan_memory(target, head, settings)
        assert plan.draft is not None
        assert plan.draft.weights == header.weight_bytes
        narrow = plan_memory(target, head, plan_settings(MUCH, n_ctx=1024, n_batch=256)).draft
        assert narrow is not None
        assert plan.draft.outputs - narrow.outputs == row_buffers(head, 256)
    assert row_buffers(head, 1) == 4 * (2 * 48 + 48)


def test_layers_on_devices_are_counted_as_llama_cpp_does(tmp_path: Path) -> None:
    """llama.cpp counts the layers of the head among the model's, and moves the last ones first."""
    header, head = with_head(tinymtp.step35(tmp_path / "t.gguf"))
    device = (DeviceMemory("gpu", MUCH),)
    everything = header.n_layer + 1
    plan = plan_memory(header, head, plan_settings(MUCH, n_ctx=512, devices=device))
    assert plan.draft is not None
    assert plan.target.n_gpu_layers == everything == 6
    assert plan.draft.device > plan.draft.weights
    for n_gpu_layers, n_trunk in ((0, 0), (3, 0), (4, 1), (5, 2), (6, 3), (-1, 3), (99, 3)):
        settings = plan_settings(MUCH, n_ctx=512, devices=device, n_gpu_layers=n_gpu_layers)
        usage = plan_memory(header, head, settings).target
        trunk = read_header(tinymtp.step35(tmp_path / "x.gguf", part="trunk"))
        same = plan_memory(trunk, None, plan_settings(MUCH, n_ctx=512, devices=device, n_gpu_layers=n_trunk))
        assert usage.device == same.target.device
        assert usage.n_gpu_layers == (everything if n_gpu_layers in (-1, 99) else n_gpu_layers)
    off = plan_memory(header, head, plan_settings(MUCH, n_ctx=512, devices=device, n_gpu_layers=0))
    assert off.device == 0


def test_a_refusal_names_the_head_and_a_plan_without_it(tmp_path: Path) -> None:
    header, head = with_head(tinymtp.qwen35(tmp_path / "t.gguf"))
    needed = plan_memory(header, head, plan_settings(MUCH, n_ctx=2048)).host
    alone = plan_memory(header, None, plan_settings(MUCH, n_ctx=2048)).host
    with pytest.raises(ResourceError) as caught:
        plan_memory(header, head, plan_settings((needed + alone) // 2, n_ctx=2048))
    assert "tiny-qwen35 and the head of tiny-qwen35" in caught.value.message
    assert "draft_model=none" in caught.value.hint


def test_a_head_inside_has_the_cache_types_of_the_target(tmp_path: Path) -> None:
    header, head = with_head(tinymtp.mimo2(tmp_path / "t.gguf"))
    draft = read_header(tinygguf.llama(tmp_path / "d.gguf"))
    of_target = {"cache_type_k": "f32", "cache_type_v": "f32"}
    of_draft = {"cache_type_k_draft": "f32", "cache_type_v_draft": "f32"}
    kv: list[int] = []
    for more in ({}, of_draft, of_target):
        settings = plan_settings(MUCH, n_ctx=1024, **more)
        alone, plan = plan_memory(header, head, settings), plan_memory(header, draft, settings, head)
        assert alone.draft is not None
        assert alone.draft == plan.head
        kv.append(alone.draft.kv)
    assert kv[2] == 2 * kv[1] == 2 * kv[0]


@pytest.mark.parametrize("build", [tinymtp.qwen35, tinymtp.mimo2])
def test_a_head_and_a_draft_model_are_both_counted(build, tmp_path: Path) -> None:
    header, head = with_head(build(tmp_path / "t.gguf"))
    draft = read_header(tinygguf.llama(tmp_path / "d.gguf"))
    settings = plan_settings(MUCH, n_ctx=1024, n_rs_seq=4)
    plan = plan_memory(header, draft, settings, head)
    with_model, with_own = plan_memory(header, draft, settings), plan_memory(header, head, settings)
    assert (plan.target, plan.draft, plan.head) == (with_model.target, with_model.draft, with_own.draft)
    assert with_model.head is with_own.head is None
    assert plan.head is not None
    assert plan.host == with_model.host + plan.head.host > with_model.host
    short = plan_memory(header, draft, plan_settings(MUCH, n_ctx=1024, n_ctx_draft=256, n_rs_seq=4), head)
    assert short.head is not None
    assert (short.n_ctx_draft, short.head.n_ctx) == (256, 256)
    automatic = plan_memory(header, draft, plan_settings(plan.host, n_rs_seq=4), head)
    assert automatic.n_ctx < plan_memory(header, draft, plan_settings(plan.host, n_rs_seq=4)).n_ctx


def test_a_refusal_names_all_three(tmp_path: Path) -> None:
    header, head = with_head(tinymtp.mimo2(tmp_path / "t.gguf"))
    draft = read_header(tinygguf.llama(tmp_path / "d.gguf"))
    plan = plan_memory(header, draft, plan_settings(MUCH, n_ctx=2048), head)
    assert plan_memory(header, draft, plan_settings(plan.host, n_ctx=2048), head).fits
    with pytest.raises(ResourceError) as caught:
        plan_memory(header, draft, plan_settings(plan.host - 1, n_ctx=2048), head)
    models = "for tiny-mimo2, tiny-llama and the head of tiny-mimo2 with n_ctx 2048"
    assert models in caught.value.message
    assert "draft_model=none" in caught.value.hint
    assert plan_memory(header, draft, plan_settings(plan.host - 1, n_ctx=2048)).fits


def test_the_head_goes_where_the_target_is_and_the_draft_to_its_own_devices(tmp_path: Path) -> None:
    header, head = with_head(tinymtp.mimo2(tmp_path / "t.gguf"))
    draft = read_header(tinygguf.llama(tmp_path / "d.gguf"))
    a, b = DeviceMemory("a", MUCH), DeviceMemory("b", MUCH)
    plan = plan_memory(header, draft, plan_settings(MUCH, n_ctx=512, devices=(a,), devices_draft=(b,)), head)
    assert plan.draft is not None
    assert plan.head is not None
    assert plan.head.device > plan.head.weights > 0
    assert plan.device == plan.on_device + plan.draft.device
    assert plan.draft_room == plan.device_room
    one = plan_memory(header, draft, plan_settings(MUCH, n_ctx=512, devices=(a,)), head)
    assert one.draft_room == one.device_room - one.on_device
    off = plan_memory(header, draft, plan_settings(MUCH, n_ctx=512, devices=(a,), n_gpu_layers=0), head)
    assert off.head is not None
    assert off.head.device == 0
    full = DeviceMemory("a", plan.on_device + (256 << 20))
    fits = plan_settings(MUCH, n_ctx=512, devices=(full,), devices_draft=(b,), n_gpu_layers=-1)
    assert plan_memory(header, draft, fits, head).fits
    fuller = DeviceMemory("a", full.free - 1)
    with pytest.raises(ResourceError, match="on the devices needed"):
        plan_memory(header, draft, replace(fits, target=replace(fits.target, devices=(fuller,))), head)


def test_states_grow_with_the_longest_draft(tmp_path: Path) -> None:
    header, head = with_head(tinymtp.qwen35(tmp_path / "t.gguf"))
    states = [
        plan_memory(header, head, plan_settings(MUCH, n_ctx=512, n_rs_seq=n)).target.state for n in (0, 3)
    ]
    assert states[1] == 4 * states[0] > 0
