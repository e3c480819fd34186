"""Images as rows for a model, by tiny projectors."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.config.load import ModelSettings
from specllama.core.interfaces import BatchRow
from specllama.errors import EngineError, GGUFError, IntegrityError, UsageError
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from specllama.llama.vision import VisionEncoder
from tests.support import tiny_mmproj, tinygguf
from tests.support.tinyheads import read_tensors

pytestmark = pytest.mark.usefixtures("vision")
OF_TEXT = {"gemma3": tinygguf.gemma3, "qwen2vl": tiny_mmproj.qwen2vl_text}
Open = Callable[..., VisionEncoder]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LlamaModel]]:
    """The text model of a kind of projectors."""
    folder, opened = tmp_path_factory.mktemp("models"), dict[str, LlamaModel]()

    def model(kind: str) -> LlamaModel:
        name = kind if kind in OF_TEXT else "llama"
        if name not in opened:
            path = OF_TEXT.get(name, tinygguf.llama)(folder / f"{name}.gguf")
            opened[name] = LlamaModel(ModelSettings(path=str(path), n_threads=1))
        return opened[name]

    yield model
    for one in opened.values():
        one.close()


@pytest.fixture
def encoder(models: Callable[[str], LlamaModel], tmp_path: Path) -> Iterator[Open]:
    """Opens a projector by its kind, or a file for the model of a kind."""
    opened: list[VisionEncoder] = []

    def open_it(kind: str, path: Path | None = None, **settings: int) -> VisionEncoder:
        model = models(kind)
        if path is None:
            path = tmp_path / f"mmproj-{kind}.gguf"
            if kind == "text":
                tiny_mmproj.text(path, model.settings.path)
            else:
                getattr(tiny_mmproj, kind)(path)
        opened.append(VisionEncoder(str(path), model, n_threads=1, use_gpu=False, **settings))
        return opened[-1]

    yield open_it
    for one in opened:
        one.close()


def test_an_image_that_is_a_text_has_its_embeddings(
    encoder: Open, models: Callable[[str], LlamaModel]
) -> None:
    opened = encoder("text")
    ids = list(range(3, 19))
    (part,) = opened.encode(*tiny_mmproj.text_image(ids))
    assert np.array_equal(part.rows, read_tensors(models("text").settings.path)["token_embd.weight"][ids])
    assert (part.causal, part.positions, part.n_positions) == (True, None, 16)
    assert (opened.mrope, opened.n_most) == (False, 0)
    assert opened.pieces(40, 40) == [16]


def test_logits_after_it_are_those_after_the_text(
    encoder: Open, models: Callable[[str], LlamaModel], context: Callable[..., LlamaContext]
) -> None:
    opened, ctx = encoder("text"), context(models("text"), n_seq_max=2)
    ids = list(range(3, 19))
    (part,) = opened.encode(*tiny_mmproj.text_image(ids))
    ctx.decode([BatchRow(token, i, 0, False) for i, token in enumerate(ids)])
    ctx.decode_image(1, 0, part, output=False)
    of_text, of_image = (ctx.decode([BatchRow(40, 16, seq_id, True)])[0].copy() for seq_id in (0, 1))
    assert np.array_equal(of_text, of_image)


def test_rows_that_see_each_other(encoder: Open, models: Callable[[str], LlamaModel]) -> None:
    opened, model = encoder("gemma3"), models("gemma3")
    begin, n, end = opened.pieces(200, 100)
    assert (n, opened.n_most) == (16, 16)
    assert begin == model.tokenize("<start_of_image>", add_special=False, parse_special=True)
    assert end == model.tokenize("<end_of_image>", add_special=False, parse_special=True)
    (part,) = opened.encode(tiny_mmproj.noise_image(200, 100), 200, 100)
    assert (part.rows.shape, part.causal, part.n_positions) == ((16, 48), False, 16)


def test_an_image_of_several_parts(encoder: Open) -> None:
    opened = encoder("internvl")
    pieces = opened.pieces(64, 32)
    assert [piece for piece in pieces if isinstance(piece, int)] == [4, 4, 4]  # two tiles and an overview
    parts = opened.encode(tiny_mmproj.noise_image(64, 32), 64, 32)
    assert [part.rows.shape for part in parts] == [(4, 48)] * 3
    assert all(part.causal for part in parts)


def test_positions_of_time_height_and_width(encoder: Open) -> None:
    opened = encoder("qwen2vl")
    assert opened.mrope
    assert opened.pieces(48, 32)[1] == 24
    (part,) = opened.encode(tiny_mmproj.noise_image(48, 32), 48, 32)
    assert part.positions is not None
    rows, columns = np.divmod(np.arange(24), 6)
    expected = [[100] * 24, 100 + rows, 100 + columns, [0] * 24]
    assert np.array_equal(part.positions(100), np.array(expected))
    assert part.n_positions == 6


def test_limits_of_rows(encoder: Open) -> None:
    fewest, most = encoder("qwen2vl", min_tokens=100), encoder("qwen2vl", max_tokens=20)
    assert fewest.pieces(48, 32)[1] >= 100  # type: ignore[operator]
    assert most.pieces(4000, 4000)[1] <= 20  # type: ignore[operator]
    assert fewest.key != most.key


def test_the_same_bytes_have_the_same_rows(encoder: Open) -> None:
    first, second = encoder("gemma3"), encoder("gemma3")
    image, other = tiny_mmproj.noise_image(30, 50), tiny_mmproj.noise_image(30, 50, 1)
    (one,), (two,), (three,) = (
        e.encode(x, 30, 50) for e, x in ((first, image), (second, image), (first, other))
    )
    assert np.array_equal(one.rows, two.rows)
    assert not np.array_equal(one.rows, three.rows)
    assert first.key == second.key


@pytest.mark.parametrize("size", [(0, 5), (46001, 1), (2**31, 1)])
def test_a_size_that_cannot_be(size: tuple[int, int], encoder: Open) -> None:
    with pytest.raises(UsageError, match=r"an image of .* cannot be used with"):
        encoder("qwen2vl").pieces(*size)


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 2)])
@pytest.mark.parametrize("kind", ["gemma3", "internvl", "qwen2vl"])
def test_an_unusual_shape(size: tuple[int, int], kind: str, encoder: Open) -> None:
    opened = encoder(kind, max_tokens=20)
    parts = opened.encode(tiny_mmproj.noise_image(*size), *size)
    assert [len(part.rows) for part in parts] == [n for n in opened.pieces(*size) if isinstance(n, int)]


def test_a_text_model_is_no_projector(encoder: Open, models: Callable[[str], LlamaModel]) -> None:
    with pytest.raises(UsageError, match=r"is not a projector \(mmproj\): its architecture is 'llama'"):
        encoder("text", Path(models("text").settings.path))


def test_the_projector_of_another_model(encoder: Open, tmp_path: Path) -> None:
    path = tiny_mmproj.gemma3(tmp_path / "other.gguf", n_embd=64)
    with pytest.raises(UsageError, match=r"of another model: its rows have 64 values, those of .* 48"):
        encoder("gemma3", path)


def test_a_model_without_the_tokens_around_images(encoder: Open) -> None:
    with pytest.raises(UsageError, match="has no tokens for what it puts around images"):
        encoder("idefics3")


def test_an_unfinished_download(encoder: Open, tmp_path: Path) -> None:
    path = tiny_mmproj.gemma3(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:30_000])
    with pytest.raises(GGUFError, match="an unfinished download"):
        encoder("gemma3", path)


def test_what_a_file_has_for_sound_is_not_read(
    encoder: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a damaged encoder of Gemma 4, of which most is missing."""

    def with_sound(p: tiny_mmproj.Projector) -> Path:
        p.writer.add_bool("clip.has_audio_encoder", True)
        p.writer.add_string("clip.audio.projector_type", "gemma4a")
        p.put("a.blk.0.attn_q.weight", np.ones((3, 5)))
        return write(p)

    write, plain = tiny_mmproj.Projector.write, encoder("gemma3")
    monkeypatch.setattr(tiny_mmproj.Projector, "write", with_sound)
    sounds = encoder("gemma3", tiny_mmproj.gemma3(tmp_path / "sound.gguf"))
    rgb = tiny_mmproj.noise_image(32, 32)
    (rows,), (expected,) = (one.encode(rgb, 32, 32) for one in (sounds, plain))
    assert np.array_equal(rows.rows, expected.rows)


@pytest.mark.parametrize("name", ["v.patch_embd.weight", "v.blk.0.attn_k.weight", "v.post_ln.weight"])
def test_tensors_that_do_not_fit_end_no_process(
    name: str, encoder: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ggml itself would end it."""
    put = tiny_mmproj.Projector.put
    monkeypatch.setattr(tiny_mmproj.Projector, "put", lambda p, n, x: put(p, n, x[:3] if n == name else x))
    with pytest.raises(IntegrityError, match=r"llama\.cpp cannot load the projector"):
        encoder("gemma3", tiny_mmproj.gemma3(tmp_path / "odd.gguf"))


@pytest.mark.parametrize("name", ["v.patch_embd.weight", "v.blk.0.attn_q.weight"])
def test_tensors_that_are_not_there_end_no_process(
    name: str, encoder: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = tiny_mmproj.Projector.put
    monkeypatch.setattr(tiny_mmproj.Projector, "put", lambda p, n, x: None if n == name else put(p, n, x))
    with pytest.raises(IntegrityError, match=r"llama\.cpp cannot load the projector .*: it lacks a tensor"):
        encoder("gemma3", tiny_mmproj.gemma3(tmp_path / "odd.gguf"))


def test_what_would_end_the_process_in_a_thread_of_ggml_is_noticed_before(
    encoder: Open, models: Callable[[str], LlamaModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(p: tiny_mmproj.Projector, name: str, x: Any) -> None:
        if name == "v.blk.0.attn_q.bias":
            p.writer.add_tensor(name, x.astype(np.float16))
        else:
            put(p, name, x[:8] if name == "v.position_embd.weight" else x)

    put = tiny_mmproj.Projector.put
    monkeypatch.setattr(tiny_mmproj.Projector, "put", half)
    with pytest.raises(IntegrityError, match=r"of the wrong type \(.*, v\.blk\.0\.attn_q\.bias: f16\)"):
        encoder("qwen2vl", tiny_mmproj.qwen2vl(tmp_path / "odd.gguf"))
    short = encoder("text", tiny_mmproj.text(tmp_path / "short.gguf", models("text").settings.path))
    for _ in range(2):
        with pytest.raises(EngineError, match=r"v\.position_embd\.weight has 8 rows, none for place 8"):
            short.encode(*tiny_mmproj.text_image(range(16)))


def test_encoding_beside_decoding_changes_neither(
    encoder: Open, target: LlamaModel, context: Callable[..., LlamaContext]
) -> None:
    """Both in the same kernels, with two threads each."""
    opened, ctx = encoder("qwen2vl"), context(target)
    ctx.set_threads(2, 2)
    image = tiny_mmproj.noise_image(320, 320)

    def decoded() -> bytes:
        ctx.truncate(0, 0)
        prompt = ctx.decode([BatchRow(100 + i, i, 0, i == 15) for i in range(16)]).tobytes()
        return prompt + ctx.decode([BatchRow(7, 16, 0, True)]).tobytes()

    alone, encoded_alone = decoded(), opened.encode(image, 320, 320)[0].rows
    done, encoded = threading.Event(), list[bool]()

    def encode() -> None:
        try:
            for _ in range(3):
                encoded.append(np.array_equal(opened.encode(image, 320, 320)[0].rows, encoded_alone))
        finally:
            done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    equal = [decoded() == alone for _ in itertools.takewhile(lambda _: not done.is_set(), itertools.count())]
    thread.join()
    assert encoded == [True] * 3
    assert equal
    assert all(equal)
