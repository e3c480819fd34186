"""A draft model's cache is kept with the target's, and a head needs none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama.client import protocol as m
from specllama.config.load import ModelSettings
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.drafters.model import ModelDrafter
from specllama.worker import loader
from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.front import KEPT, Front

TEXT = "The machine sorts letters by their stamps, and keeps those without one. " * 12
OTHER = "Something else, which begins in another way and needs the only slot. " * 12


@pytest.fixture
def opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fronts: Callable[..., Front]
) -> Iterator[Callable[..., Front]]:
    """Engines on one pair of model files and one directory of prompts."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    made: list[Front] = []

    def make(target: Path, draft: Path | None, **more: Any) -> Front:
        common: dict[str, Any] = {"n_threads": 1, "n_ctx": 2048, "n_ubatch": 64, "n_batch": 64}
        one, other = (ModelSettings(path=str(p), **common) if p else None for p in (target, draft))
        made.append(fronts(True, target=one, draft=other, **(KEPT | {"draft_max": 3} | more)))
        return made[-1]

    yield make
    for one in made:
        one.end()


def ask(front: Front, text: str, temperature: float = 0.0, **request: Any) -> tuple[m.Done, str]:
    params = {"max_tokens": 30, "seed": 3, "temperature": temperature, "ignore_eos": True}
    text_written = front.text(params=params, prompt=text, **request)
    done = front.messages[-1]
    assert isinstance(done, m.Done)
    return done, text_written


def drafter(front: Front) -> ModelDrafter:
    assert front.core.loaded is not None
    (model_drafter,) = (d for d in front.core.loaded.drafters if isinstance(d, ModelDrafter))
    return model_drafter


def rows(front: Front) -> list[int]:
    """The rows of the draft model's decodes from now on."""
    context, widths = drafter(front).context, []
    decode = context.decode

    def counted(batch: Any, *more: Any) -> Any:
        widths.append(len(batch))
        return decode(batch, *more)

    context.decode = counted  # type: ignore[method-assign]
    return widths


DRAFTS = {"llama": tinygguf.llama, "gemma3": tinygguf.gemma3, "mamba": tinygguf.mamba}


@pytest.fixture
def pair(tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    def make(kind: str) -> tuple[Path, Path]:
        target = tinygguf.llama(tmp_path / "target.gguf")
        return target, DRAFTS[kind](tmp_path / f"{kind}.gguf", noise=0.1 if kind == "llama" else 0.0)

    return make


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", DRAFTS)
def test_a_restart_leaves_the_draft_model_little_to_read(opened, pair, kind, temperature):
    files = pair(kind)
    first = opened(*files, drafters=("model",))
    _, text = ask(first, TEXT, temperature)
    first.end()
    prompt = TEXT + text + " And then?"
    undisturbed = opened(*files, drafters=("model",), cache_disk=0)
    ask(undisturbed, TEXT, temperature)
    usual = rows(undisturbed)
    expected, said = ask(undisturbed, prompt, temperature)
    second = opened(*files, drafters=("model",))
    counted = rows(second)
    got, again = ask(second, prompt, temperature)
    assert again == said
    assert got.stats.n_reused > 500
    if kind == "llama":  # others can only go on where their state ends
        assert sum(counted) <= sum(usual) + 64, "the draft model reads what it reads without a restart"
    assert got.stats.n_drafted == expected.stats.n_drafted
    assert got.stats.n_accept == expected.stats.n_accept


def test_a_text_that_gives_way_takes_the_draft_models_cache_with_it(opened, pair):
    front = opened(*pair("llama"), drafters=("model",), cache_disk=0)
    _, text = ask(front, TEXT)
    ask(front, OTHER)
    counted = rows(front)
    done, again = ask(front, TEXT)
    assert again == text
    assert done.stats.n_reused > 500
    assert sum(counted) < 300
    (stored,) = front.core.engine.scheduler.store.state_cache.texts
    assert stored.draft is not None
    assert stored.n_bytes > len(stored.draft)


def test_a_saved_slot_has_the_draft_models_cache(opened, pair, tmp_path):
    files = pair("llama")
    first = opened(*files, drafters=("model",), cache_disk=0)
    _, text = ask(first, TEXT)
    path = str(tmp_path / "slots" / "a.bin")
    first.core.handle(m.SlotAction(9, 0, "save", path))
    second = opened(*files, drafters=("model",), cache_disk=0)
    second.core.handle(m.SlotAction(9, 0, "restore", path))
    counted = rows(second)
    done, again = ask(second, TEXT)
    assert again == text
    assert done.stats.n_reused > 500
    assert sum(counted) < 300


def test_the_cache_of_another_draft_model_is_not_read(opened, pair, tmp_path):
    target, draft = pair("llama")
    first = opened(target, draft, drafters=("model",))
    _, text = ask(first, TEXT)
    first.end()
    other = tinygguf.llama(tmp_path / "other.gguf", noise=0.2, n_layer=1)
    second = opened(target, other, drafters=("model",))
    counted = rows(second)
    done, again = ask(second, TEXT)
    assert again == text
    assert done.stats.n_reused > 500
    assert sum(counted) > 500


def test_a_draft_that_reads_faster_than_the_copy_reads(opened, pair):
    front = opened(*pair("llama"), drafters=("model",), cache_disk=0)
    ask(front, TEXT)
    slot = front.core.engine.slots[0]
    assert drafter(front).save_cache(slot.seq_id, slot.ids, slot.scope, 1.0) is None
    assert drafter(front).save_cache(slot.seq_id, slot.ids, slot.scope, 1e12) is not None
    assert drafter(front).save_cache(slot.seq_id, slot.ids, "another", 1e12) is None
    assert drafter(front).save_cache(slot.seq_id, [9] * 600, slot.scope, 1e12) is None


def qwen35(folder: Path) -> tuple[Path, Path]:
    path = tinymtp.qwen35(folder / "mtp.gguf", adds=(0.0, 0.0, 0.0, 1.0), copied=True, head_noise=0.2)
    return path, path


def eagle3(folder: Path) -> tuple[Path, Path]:
    target = tinygguf.llama(folder / "target.gguf", adds=(0.0, 1.0))
    return target, tinyheads.eagle3(folder / "head.gguf", copy_of=target, head_noise=0.2)


@pytest.mark.parametrize("build", [qwen35, eagle3])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_head_drafts_from_where_a_restored_text_goes_on(opened, tmp_path, build, temperature):
    files = build(tmp_path)
    first = opened(*files)
    _, text = ask(first, TEXT, temperature)
    prompt = TEXT + text + " And then?"
    _, said = ask(first, prompt, temperature)
    plain, alone = ask(first, prompt, temperature, speculate=False)
    first.end()
    second = opened(*files)
    done, again = ask(second, prompt, temperature)
    assert again == said == alone
    assert plain.stats.n_accept == 0
    assert done.stats.n_reused > 500
    assert done.stats.n_accept >= 1, "fewer than with the features of the whole text, but not none"


def test_a_draft_that_is_replaced_while_it_is_loaded_keeps_nothing(
    opened: Callable[..., Front], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    draft, new = tmp_path / "draft.gguf", tmp_path / "new.gguf"
    for path in (draft, new):
        shutil.copy2(EMBEDDED_DRAFT, path)
    load_model = loader.open_model

    def replaced(*arguments: Any) -> Any:
        model = load_model(*arguments)
        new.replace(draft)
        return model

    monkeypatch.setattr(loader, "open_model", replaced)
    loaded = opened(EMBEDDED_TARGET, draft).core.loaded
    assert loaded is not None
    assert loaded.draft is not None
    assert loaded.prefix_key
    assert loaded.draft_prefix_key == ""
