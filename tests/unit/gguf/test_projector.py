"""What the header of a projector says, and which files and pairs are refused by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.cli.app import run_app
from specllama.errors import GGUFError, UsageError
from specllama.gguf.header import read_header, read_source
from specllama.gguf.projector import Projector, check_fits, read_projector
from specllama.heads.check import check_model
from tests.support import tiny_mmproj, tinygguf
from tests.support.ggufbytes import GGUF, BytesSource, Tensor

NEEDED = tuple(
    Tensor(f"v.{name}.weight", (1, 1), 1)
    for name in ("position_embd", "blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v")
)


def projector(kind: str, tensors: tuple[Tensor, ...] = (), max_tokens: int = 0, **vision: int) -> Projector:
    sizes = {"patch_size": 14, "image_size": 896, "embedding_length": 1152, "block_count": 1} | vision
    keys = {"general.architecture": "clip", "clip.has_vision_encoder": True, "clip.projector_type": kind}
    keys |= {f"clip.vision.{key}": value for key, value in sizes.items()}
    source = BytesSource(GGUF(keys, (*tensors, *NEEDED)).build(), "mmproj.gguf")
    return read_projector(read_source(source), max_tokens)


def test_an_image_of_gemma_3_is_computed_at_once() -> None:
    one = projector("gemma3", (Tensor("mm.input_projection.weight", (2560, 1152), 1),))
    assert (one.width, one.n_patches, one.n_rows, one.n_ubatch) == (2560, 64**2, 256, 256)


@pytest.mark.parametrize(
    ("kind", "width", "rows", "at_once"),
    [("gemma4v", 1536, 1120, 0), ("gemma4v", 5376, 1120, 1120), ("gemma4uv", 5376, 1120, 1120)],
)
def test_the_small_models_of_gemma_4_see_causally(kind: str, width: int, rows: int, at_once: int) -> None:
    one = projector(kind, (Tensor("mm.input_projection.weight", (768, width), 1),), patch_size=16)
    assert (one.width, one.n_rows, one.n_ubatch) == (width, rows, at_once)
    assert one.n_patches == rows * (9 if kind == "gemma4v" else 1)


def test_where_the_size_of_an_image_decides_there_is_a_limit() -> None:
    vision = {"image_size": 560, "spatial_merge_size": 2}
    assert projector("qwen3vl_merger", **vision).n_rows == 4096
    limited = projector("qwen3vl_merger", max_tokens=1000, **vision)
    assert (limited.n_rows, limited.n_patches, limited.n_ubatch) == (1000, 4000, 0)
    by_pixels = projector("dots_ocr", **{"image_max_pixels": 28**2 * 100, "projector.scale_factor": 2})
    assert by_pixels.n_rows == 100
    assert projector("gemma3", max_tokens=1000).n_rows == 256  # one size for all images


def test_of_an_unknown_kind_the_width_is_not_known() -> None:
    assert projector("no_such").width == 0


@pytest.mark.parametrize(
    "vision",
    [
        {"patch_size": 0}, {"image_size": 100_000}, {"patch_size": 10_000}, {"attention.head_count": 300},
        {"preproc_image_size": 1 << 20}, {"image_max_pixels": 1 << 30}, {"preproc_max_tiles": 1 << 20},
    ],
)  # fmt: skip
def test_sizes_that_are_not_possible_are_refused(vision: dict[str, int]) -> None:
    with pytest.raises(GGUFError, match=f"clip.vision.{next(iter(vision))} at byte"):
        projector("gemma3", **vision)


def test_a_model_is_no_projector_and_a_projector_no_model(tmp_path: Path) -> None:
    model = read_header(tinygguf.gemma3(tmp_path / "model.gguf"))
    with pytest.raises(UsageError, match=r"is not a projector \(mmproj\): its architecture is 'gemma3'"):
        read_projector(model)
    header = read_header(tiny_mmproj.gemma3(tmp_path / "mmproj.gguf"))
    with pytest.raises(
        GGUFError, match=r"mmproj\.gguf is a multimodal projector \(mmproj\) of tiny-gemma3, not a"
    ) as refused:
        check_model(header)
    assert refused.value.hint == "model names a model, and mmproj this file: run, chat and serve take both."
    check_fits(read_projector(header), model)


def test_commands_say_what_a_projector_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tiny_mmproj.gemma3(tmp_path / "mmproj.gguf"))
    assert run_app(["models", "show", path]) == 0
    labels = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert labels == ["name", "file", "model", "images"]
    for command in (["pair-check", path], ["trim", path, str(tmp_path / "out.gguf")]):
        assert run_app(command) == GGUFError.exit_code
        err = capsys.readouterr().err.splitlines()[-2:]
        what = f"error: {path} is a multimodal projector (mmproj) of tiny-gemma3, not a language model"
        assert err == [what, "-m names a model, and -mm this file: run, chat and serve take both."]


def test_the_projector_of_another_model_is_refused_by_its_width(tmp_path: Path) -> None:
    model = read_header(tinygguf.llama(tmp_path / "model.gguf"))
    other = read_projector(read_header(tiny_mmproj.gemma3(tmp_path / "mmproj.gguf", n_embd=64)))
    with pytest.raises(UsageError, match=r"rows of 64 numbers, and .* reads rows of 48"):
        check_fits(other, model)


@pytest.mark.parametrize(
    ("kind", "architecture", "fits"),
    [
        ("gemma3", "llama", False),
        ("qwen2.5vl_merger", "llama", False),
        ("qwen2vl_merger", "llama", True),  # Sarashina 2.2 Vision
        ("qwen2vl_merger", "qwen3vl", False),
        ("internvl", "qwen2vl", False),
        ("internvl", "qwen35", True),
        ("pixtral", "gemma3", True),  # nothing says that it is not
    ],
)
def test_the_projector_of_another_family_is_refused_where_that_is_certain(
    kind: str, architecture: str, fits: bool
) -> None:
    target = read_source(
        BytesSource(GGUF({"general.architecture": architecture, "general.name": "m"}).build())
    )
    if fits:
        check_fits(projector(kind), target)
        return
    with pytest.raises(UsageError, match=f"of type {kind}, which is not for {architecture} models such as m"):
        check_fits(projector(kind), target)


def test_a_patch_with_which_an_image_would_not_fit_into_memory() -> None:
    with pytest.raises(GGUFError, match=r"patch_size at byte .*: 127 makes images of 264257536 pixels"):
        projector("qwen2vl_merger", patch_size=127)


def test_a_number_with_which_ggml_would_end_the_process() -> None:
    keys = {"general.architecture": "clip", "clip.has_vision_encoder": True}
    epsilon = {"clip.vision.attention.layer_norm_epsilon": -1e-6}
    with pytest.raises(GGUFError, match=r"layer_norm_epsilon at byte .*: -.* is not in 0 to 1"):
        read_projector(read_source(BytesSource(GGUF(keys | epsilon).build())))


def test_a_tensor_without_which_libmtmd_would_crash() -> None:
    with pytest.raises(GGUFError, match=r"4 tensors: mm\.2\.weight or mm\.3\.bias is not among them"):
        projector("mlp")
    with pytest.raises(GGUFError, match=r"v\.blk\.1\.attn_q\.weight is not among them"):
        projector("gemma4v", block_count=2)


def test_sound_is_no_image() -> None:
    with pytest.raises(UsageError, match="has no encoder of images"):
        read_projector(read_source(BytesSource(GGUF({"general.architecture": "clip"}).build())))
