"""A model is loaded with its projector; one that cannot be used is an error where somebody named it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama.client import protocol as m
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.errors import GGUFError, IntegrityError, ResourceError, UsageError
from specllama.gguf.header import read_header
from specllama.models.memory.plan import plan_load
from specllama.worker import loader
from specllama.worker.load_info import _settings_notes
from specllama.worker.loader import Loaded
from tests.support import tiny_mmproj, tinygguf

Load = Callable[..., Loaded]


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def load(tmp_path: Path, notices: list[str]) -> Iterator[Load]:
    """Loads a tiny model; n_ubatch: of it; more: fields of LoadSettings."""
    made: list[Loaded] = []

    def load_it(kind: str = "gemma3", n_ubatch: int = 512, **more: Any) -> Loaded:
        path = getattr(tiny_mmproj if kind == "qwen2vl_text" else tinygguf, kind)(tmp_path / "m.gguf")
        target = ModelSettings(path=str(path), n_ctx=512, n_threads=1, n_ubatch=n_ubatch)
        settings = LoadSettings(target=target, **({"memory": False, "calibrate": False} | more))

        def send(message: m.Message) -> None:
            notices.extend([message.text] if isinstance(message, m.Notice) else [])

        made.append(Loaded(settings, send, Store(tmp_path / "store")))
        return made[-1]

    yield load_it
    for one in made:
        if one.vision is not None:
            one.vision.close()  # type: ignore[attr-defined]
        one.context.close()
        one.model.close()


@pytest.mark.usefixtures("vision")
def test_it_is_opened_and_as_many_rows_are_computed_at_once_as_it_needs(
    load: Load, notices: list[str], tmp_path: Path
) -> None:
    projector = tiny_mmproj.gemma3(tmp_path / "mmproj-m.gguf")
    loaded = load(n_ubatch=8, mmproj=str(projector))
    assert loaded.vision is not None
    assert loaded.vision.pieces(640, 480)[1] == 16
    assert loaded.settings.target.n_ubatch == 16
    assert notices == ["\ue000n_ubatch\ue001 is 16: as many rows has an image"]
    assert "reads images (mmproj-m.gguf)" in [note.message for note in _settings_notes(loaded)]


@pytest.mark.usefixtures("vision")
def test_there_are_no_branches_where_images_have_positions_of_their_own(load: Load, tmp_path: Path) -> None:
    projector = tiny_mmproj.qwen2vl(tmp_path / "mmproj-m.gguf")
    loaded = load("qwen2vl_text", mmproj=str(projector), draft_tree=2)
    assert loaded.vision is not None
    assert loaded.context.n_branches == 0
    assert any("the positions of images" in note.message for note in _settings_notes(loaded))


@pytest.mark.usefixtures("vision")
def test_one_that_libmtmd_refuses(load: Load, notices: list[str], tmp_path: Path) -> None:
    projector = tiny_mmproj.gemma3(tmp_path / "mmproj-m.gguf")
    data = projector.read_bytes()
    projector.write_bytes(
        data.replace(b"v.post_ln.weight", b"v.post_ln.weighs").replace(b"gemma3", b"gemmaX")
    )
    with pytest.raises(IntegrityError, match=r"^mmproj: "):
        load(mmproj=str(projector))
    assert load(mmproj=str(projector), mmproj_found=True).vision is None
    assert len(notices) == 1
    assert notices[0].startswith("images are not read: ")


def test_one_of_another_model(load: Load, notices: list[str], tmp_path: Path) -> None:
    other = tiny_mmproj.gemma3(tmp_path / "mmproj-m.gguf", n_embd=64)
    with pytest.raises(UsageError, match=r"^mmproj: .* is the projector of another model"):
        load(mmproj=str(other))
    loaded = load(mmproj=str(other), mmproj_found=True)
    assert (loaded.vision, loaded.settings.projector) == (None, "")
    assert len(notices) == 1
    other.write_bytes(b"GGUF")
    with pytest.raises(GGUFError, match=r"^mmproj: "):
        load(mmproj=str(other))


def test_one_without_room(
    load: Load, notices: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projector = str(tiny_mmproj.gemma3(tmp_path / "mmproj-m.gguf"))
    header = read_header(tinygguf.gemma3(tmp_path / "m.gguf"))
    settings = LoadSettings(target=ModelSettings(path=header.path, n_ctx=512, n_threads=1))
    needed = plan_load(settings, header, None, 1 << 40, []).host
    monkeypatch.setattr(loader, "available_memory", lambda: needed + (1 << 20))
    with pytest.raises(ResourceError, match="images 0"):
        load(mmproj=projector)
    assert load(mmproj=projector, mmproj_found=True).vision is None
    assert notices[0].startswith("images are not read: not enough memory")
