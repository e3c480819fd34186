"""Heads next to models on disk: which names go together, which files are used, what is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specllama.errors import NotFoundError
from specllama.gguf.header import read_header
from specllama.heads import read_head
from specllama.models import manifest
from specllama.models.foreign_drafts import head_beside, heads_named_for
from specllama.models.memory.plan import PlanSettings, plan_memory
from specllama.models.prepare import _note_memory, pair_on_disk
from specllama.models.quants import (
    candidates,
    choose,
    find_heads,
    find_models,
    is_head_name,
    is_sidecar,
    size,
)
from specllama.models.resolve import Library
from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.demo import Notes

HEADS = [
    "mtp-Qwen3.6-27B-Q4_K_M.gguf", "MTP/gemma-4-12B-it-MTP-F16.gguf", "Qwen3-8B-eagle3.gguf", "eagle3.gguf",
    "dflash-kquant.gguf", "Qwen3-4B-DFlash.gguf", "Qwen3-4B-DSpark-bf16.gguf",
    "gemma-4-E2B-it-assistant-F16.gguf", "Qwen3.6-27B-PRISM-EAGLE3-Q8_0.gguf",
]  # fmt: skip
MODELS = [
    "Qwen3.6-27B-MTP-UD-Q4_K_XL.gguf", "gemma-4-26B-A4B-it.gguf", "code-assistant-7b.Q4_K_M.gguf",
    "GLM-4.7-Flash-MTP-default-Q8_0.gguf", "openassistant-llama2-13b.Q4_0.gguf",
]  # fmt: skip


def test_names_of_heads_and_of_models() -> None:
    assert [is_head_name(name) for name in HEADS] == [True] * len(HEADS)
    assert [is_sidecar(name) for name in MODELS] == [False] * len(MODELS)
    both = [*HEADS, *MODELS, "mmproj-F16.gguf", "MTP/mmproj-F16.gguf"]
    assert [m.first for m in find_models(both)] == sorted(MODELS)
    assert [m.first for m in find_heads(both)] == sorted(HEADS)


def test_what_a_tag_selects_among_models_and_heads() -> None:
    files = ["gemma-4-31B-it-UD-Q4_K_XL.gguf", "mtp-gemma-4-31B-it.gguf", "mmproj-F16.gguf"]

    def chosen(tag: str, preferred: str = "", there: list[str] = files) -> str:
        return choose(candidates(there, tag or preferred), tag, "user/repo", preferred).first

    assert chosen("") == chosen("UD-Q4_K_XL") == files[0]
    assert chosen("mtp-gemma-4-31B-it.gguf") == chosen("", "mtp-gemma-4-31B-it.gguf") == files[1]
    assert chosen("", "", ["eagle3-x-Q8_0.gguf", "eagle3-x-Q4_K_M.gguf"]) == "eagle3-x-Q4_K_M.gguf"
    assert chosen("Q8_0", "", ["eagle3-x-Q8_0.gguf", "eagle3-x-Q4_K_M.gguf"]) == "eagle3-x-Q8_0.gguf"
    with pytest.raises(NotFoundError):
        chosen("Q8_0")
    with pytest.raises(NotFoundError):
        chosen("", "", ["mmproj-F16.gguf"])


@pytest.mark.parametrize(
    ("model", "head", "goes"),
    [
        ("gemma-4-31B-it-UD-Q4_K_XL.gguf", "mtp-gemma-4-31B-it.gguf", True),
        ("gemma-4-12B-it-qat-UD-Q4_K_XL.gguf", "mtp-gemma-4-12B-it-Q8_0.gguf", True),
        ("gemma-4-12B-it-qat-UD-Q4_K_XL.gguf", "MTP/gemma-4-12B-it-MTP-F16.gguf", True),
        ("Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-eagle3.gguf", True),
        ("Qwen3.6-27B-Q4_K_M-00001-of-00002.gguf", "mtp-Qwen3.6-27B-Q8_0.gguf", True),
        ("Qwen3-8B-Q4_K_M.gguf", "eagle3.gguf", True),
        ("Qwen3.8-27B-Q4_K_M.gguf", "mtp-Qwen3.6-27B-Q8_0.gguf", False),
        ("Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q8_0.gguf", False),
        ("Qwen3-8B-Q4_K_M.gguf", "sub/mtp-Qwen3-8B.gguf", False),
    ],
)
def test_names_that_go_together(model: str, head: str, goes: bool, tmp_path: Path) -> None:
    for name in (model, head):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(heads_named_for(str(tmp_path / model))) == [str(tmp_path / head)] * goes


def test_a_head_next_to_the_model_is_its_draft(tmp_path: Path) -> None:
    target = tinymtp.qwen35(tmp_path / "tiny-Q4_0.gguf", part="trunk")
    (tmp_path / "MTP").mkdir()
    head = tinymtp.qwen35(tmp_path / "MTP" / "tiny-F16.gguf", part="head")
    (tmp_path / "mtp-tiny-damaged.gguf").write_bytes(head.read_bytes()[:5000])
    assert head_beside(str(target), read_header(target)) == (str(head), "")
    listener = Notes()
    pair = pair_on_disk(Library(listener, {"HF_HUB_CACHE": str(tmp_path / "hub")}), str(target), "auto")
    assert pair == [str(target), str(head)]
    assert listener.notes[-1] == f"the head {head} is used, as it is next to the model"


def test_a_head_of_another_model_is_passed_over(tmp_path: Path) -> None:
    target = tinygguf.llama(tmp_path / "tiny.gguf")
    wrong = tinyheads.eagle3(tmp_path / "eagle3-tiny.gguf", target_layers=(0, 1, 9))
    assert head_beside(str(target), read_header(target)) == (
        "",
        "eagle3-tiny.gguf: the head reads layer 9, the target has 2",
    )
    listener = Notes()
    library = Library(listener, {"HF_HUB_CACHE": str(tmp_path / "hub")})
    pair = pair_on_disk(library, str(target), "auto")
    assert pair == [str(target)]
    assert any("does not fit: eagle3-tiny.gguf: the head reads layer 9" in note for note in listener.notes)
    tinyheads.eagle3(tmp_path / "tiny-eagle3-Q8_0.gguf")
    assert head_beside(str(target), read_header(target))[0].endswith("tiny-eagle3-Q8_0.gguf")
    wrong.unlink()
    shutil.rmtree(tmp_path / "hub", ignore_errors=True)


def test_the_models_own_head_comes_first(tmp_path: Path) -> None:
    target = tinymtp.mimo2(tmp_path / "tiny.gguf")
    tinymtp.mimo2(tmp_path / "mtp-tiny.gguf", part="head")
    pair = pair_on_disk(Library(environ={"HF_HUB_CACHE": str(tmp_path / "hub")}), str(target), "auto")
    assert pair == [str(target), str(target)]


def test_heads_in_the_catalogue_are_drafts_of_models_in_it() -> None:
    known = manifest.load({"SPECLLAMA_MODELS": ""}, Path("/"))
    for target, head in (("gemma-4-31b", "gemma-4-31b-assistant"), ("gemma-4-e4b", "gemma-4-e4b-assistant")):
        entry = known.find(target)
        assert entry is not None
        assert known.of_repo(entry.where.repo) is entry
        (draft,) = known.drafts_for(entry)
        assert draft.name == head
        assert is_head_name(draft.default)


def test_the_memory_note_counts_the_head_inside_the_model(tmp_path: Path) -> None:
    header = read_header(tinymtp.mimo2(tmp_path / "m.gguf"))
    draft = read_header(tinygguf.llama(tmp_path / "d.gguf"))
    sidecar = read_header(tinymtp.mimo2(tmp_path / "mtp-m.gguf", part="head"))
    head = read_head(header)
    settings = PlanSettings(available=1 << 40)
    plans = [
        plan_memory(header, head, settings),
        plan_memory(header, draft, settings, head),
        plan_memory(header, sidecar, settings),
    ]
    said = []
    for headers in ([header], [header, draft], [header, sidecar]):
        listener = Notes()
        _note_memory(Library(listener, {}), headers)
        said += listener.notes
    assert [note.split(" of memory")[0] for note in said] == [
        f"it will take about {size(plan.host)}" for plan in plans
    ]
    assert len({size(plan.host) for plan in plans}) == 3
