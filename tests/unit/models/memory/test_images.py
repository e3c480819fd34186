"""The memory of projectors, compared with what libmtmd allocates, and in the plan of a load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import ResourceError
from specllama.gguf.header import Header, read_header
from specllama.gguf.parse import TensorInfo
from specllama.gguf.projector import Projector, read_projector
from specllama.models.memory.cost import image_memory
from specllama.models.memory.plan import DeviceMemory, plan_load, projector_device, with_images
from tests.support import tinygguf

MB = 1 << 20


def projector(kind: str, n_embd: int, n_ff: int, patch: int, max_tokens: int = 0, **vision: int) -> Projector:
    """A header with the shapes of a large one, without a file."""
    keys: dict[str, Any] = {"general.architecture": "clip", "clip.has_vision_encoder": True}
    sizes = {"embedding_length": n_embd, "feed_forward_length": n_ff, "patch_size": patch, "image_size": 896}
    keys |= {f"clip.vision.{key}": value for key, value in (sizes | vision).items()}
    keys |= {"clip.projector_type": kind, "clip.vision.attention.head_count": 16}
    shapes = {"mm.input_projection.weight": (2560, n_embd), "mm.2.bias": (3584,), "v.patch_embd.weight": (1,)}
    shapes["v.position_embd.weight"] = (1,)
    if kind != "gemma3":
        shapes["v.blk.0.ffn_gate.weight"] = (n_embd, n_ff)
    tensors = tuple(TensorInfo(name, shape, "F32", 4, 0) for name, shape in shapes.items())
    return read_projector(Header("mmproj.gguf", keys, tensors, 0), max_tokens)


SIGLIP = projector("gemma3", 1152, 4304, 14)
QWEN_2 = projector("qwen2vl_merger", 1280, 3420, 14, 1600)
QWEN_25 = projector("qwen2.5vl_merger", 1280, 3420, 14, 4096, n_wa_pattern=8)


@pytest.mark.parametrize(
    ("one", "measured"),  # growth of the process by an image of the largest size, without weights
    [(SIGLIP, 187 * MB), (QWEN_2, 489 * MB), (QWEN_25, 2217 * MB)],
)
def test_the_plan_is_near_to_what_an_image_took(one: Projector, measured: int) -> None:
    planned = image_memory(one, "auto", on_device=False).host
    assert planned == pytest.approx(measured, rel=0.1)


def test_without_flash_attention_there_are_scores() -> None:
    compute = image_memory(SIGLIP, "off", on_device=True).compute
    assert compute == pytest.approx(1132 * MB, rel=0.1)  # as libmtmd reserves
    assert image_memory(SIGLIP, "auto", on_device=True).compute == pytest.approx(121.25 * MB, rel=0.1)


@pytest.fixture
def target(tmp_path: Path) -> Header:
    return read_header(tinygguf.llama(tmp_path / "m.gguf"))


SETTINGS = LoadSettings(target=ModelSettings(path="m.gguf", n_ctx=512))


def test_it_is_a_part_of_the_plan_and_on_the_first_device(target: Header) -> None:
    gpus = [DeviceMemory("CUDA0", 8000 * MB), DeviceMemory("CUDA1", 8000 * MB)]
    plain, seeing = (plan_load(SETTINGS, target, None, 8000 * MB, gpus, projector=p) for p in (None, SIGLIP))
    images = image_memory(SIGLIP, "auto", on_device=True)
    assert (seeing.device - plain.device, seeing.host - plain.host) == (images.device, images.host)
    assert plain.device_room - seeing.device_room == images.device
    on_host = replace(SETTINGS, mmproj_offload=False)
    kept_off = plan_load(on_host, target, None, 8000 * MB, gpus, projector=SIGLIP)
    assert kept_off.device == plain.device
    assert kept_off.host - plain.host == image_memory(SIGLIP, "auto", on_device=False).host


def test_where_it_does_not_fit_a_load_without_it_may(target: Header) -> None:
    plain = plan_load(SETTINGS, target, None, 1 << 40, [])
    with pytest.raises(ResourceError, match=r"images 0\.\d\d") as caught:
        plan_load(SETTINGS, target, None, plain.host + 100 * MB, [], projector=SIGLIP)
    assert caught.value.hint == "It would fit with mmproj=none."


def test_as_many_rows_are_computed_at_once_as_an_image_has() -> None:
    few = replace(SETTINGS, target=replace(SETTINGS.target, n_batch=64, n_ubatch=32))
    made = with_images(few, SIGLIP).target
    assert (made.n_batch, made.n_ubatch) == (256, 256)
    assert with_images(SETTINGS, SIGLIP) is SETTINGS
    assert with_images(few, QWEN_2) is few


def test_on_the_target_of_other_machines_it_is_in_memory() -> None:
    gpus = [DeviceMemory("CUDA0", MB), DeviceMemory("CUDA1", MB)]
    second = replace(SETTINGS, target=replace(SETTINGS.target, devices=("CUDA1",)))
    assert projector_device(SETTINGS, gpus) is gpus[0]
    assert projector_device(second, gpus) is gpus[1]
    for one in (replace(SETTINGS, rpc=("host:1",)), replace(SETTINGS, mmproj_offload=False)):
        assert projector_device(one, gpus) is None
    assert (
        projector_device(replace(SETTINGS, target=replace(SETTINGS.target, devices=("none",))), gpus) is None
    )
