"""Tuning with trained heads and the real llama.cpp: in files of their own and inside the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from specllama.client import protocol as m
from specllama.client.tune_messages import MeasuredDraft, Tune, Tuned, TuneMeasurement, Tuning
from specllama.config.load import ModelSettings
from specllama.core.policy.config import DEFAULT
from specllama.drafters import HEAD, MODEL
from specllama.worker.draft import LoadedHead
from specllama.worker.profile import ModelProfile
from specllama.worker.tuning import tuner
from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.front import Front
from tests.support.stored_steps import steps_read

PROMPTS = [("a", "the quick brown fox jumps"), ("b", "once upon a time there was")]
LAST = (0.0, 1.0)  # only the last block adds something: a head that is a copy of it is perfect


def settings(path: Path, n_ctx: int = 512) -> ModelSettings:
    return ModelSettings(path=str(path), n_threads=1, n_ctx=n_ctx)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few rounds as possible, and all progress."""
    for module, name in ((tuner, "CURVE_SECONDS"), (tuner, "THREAD_SECONDS"), (tuner, "_PROGRESS_SECONDS")):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(tuner, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(tuner, "_MIN_COMPARE_SECONDS", 0.1)


@pytest.fixture
def front(fronts: Callable[..., Front]) -> Callable[..., Front]:
    """Loads a target, and the head inside it without opening it; or with `run`, a pair."""

    def make(target: Path, inside: bool = False, run: Path | None = None) -> Front:
        draft = target if inside else run
        models = {"target": settings(target), "draft": settings(draft) if draft else None}
        return fronts(open_draft=run is not None, memory=False, **models)

    return make


def tuned(front: Front, *drafts: Path, stop_at: str = "", n_tokens: int = 32) -> Sequence[MeasuredDraft]:
    """What was found of each draft, copying alone first. stop_at: label of the stage at which to cancel."""
    front.messages.clear()
    front.core.handle(
        Tune(7, PROMPTS, [settings(path) for path in drafts], n_tokens, raw=True, ignore_load=True)
    )
    while front.core.busy:
        front.core.step()
        last = front.messages[-1] if front.messages else None
        if isinstance(last, Tuning) and last.label == stop_at and last.share > 0.9:
            front.core.handle(m.Cancel(7))
    assert isinstance(front.messages[-1], Tuned), front.messages[-1]
    reports = [one.part for one in front.messages if isinstance(one, TuneMeasurement)]
    return [part for part in reports if isinstance(part, MeasuredDraft)]


def assert_shape_is_that_of_tune(profile: ModelProfile, name: str) -> None:
    """The planner's steps take what `tune` has measured, in proportion: each load measures one again, and
    those of 2, 4 and 8 ids, which may have other times then.
    """
    assert profile.planner is not None
    read, used = steps_read(profile, name), profile.planner.learnt.models[name].steps.curve
    for n in {n for n, _ in read.times} - {2, 4, 8}:
        assert used.count(n) >= DEFAULT.min_samples
        assert used.predict(n) / used.predict(1) == pytest.approx(read.predict(n) / read.predict(1))


def write(kind: str, folder: Path) -> tuple[Path, Path]:
    """A target and a perfect head for it in a file of its own; the block drafter's is random."""
    target, head = folder / f"{kind}.gguf", folder / f"{kind}-head.gguf"
    if kind == "mimo2":
        tinymtp.mimo2(target, adds=LAST, part="trunk")
        return target, tinymtp.mimo2(head, adds=LAST, copied=True, part="head")
    if kind == "gemma4":
        tinyheads.gemma4(target, adds=(0.0, 0.0))
        return target, tinyheads.gemma4_assistant(head, copy_of=target)
    tinygguf.llama(target, adds=LAST)
    if kind == "eagle3":
        return target, tinyheads.eagle3(head, copy_of=target)
    return target, tinyheads.dflash(head)


@pytest.mark.alone  # stored times that a busy machine made odd are not believed
@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ("mimo2", "MTP, 1 layer"),
        ("gemma4", "Gemma 4 assistant, 2 layers"),
        ("eagle3", "EAGLE-3"),
        ("dflash", "DFlash, blocks of 4"),
    ],
)
def test_a_head_in_a_file_of_its_own_is_tried(
    front: Callable[..., Front], tmp_path: Path, kind: str, label: str
) -> None:
    target, head = write(kind, tmp_path)
    one = front(target)
    copied, own = tuned(one, head)
    assert (own.problem, own.head, copied.head) == ("", label, "")
    assert own.step is not None
    assert own.step > 0
    widths = [point.rows for point in own.points]
    assert widths == [1] if kind == "gemma4" else widths[:3] == [1, 2, 3]
    assert own.forecast is not None
    assert own.forecast.acceptance is not None
    if kind == "dflash":
        assert own.forecast.acceptance < 0.2
    else:
        assert own.forecast.acceptance > 0.9
    assert one.core.loaded is not None
    assert one.core.loaded.draft is one.core.loaded.head is None
    assert one.core.loaded.context.features is None
    run = front(target, run=head).core.loaded
    assert run is not None
    assert isinstance(run.head, LoadedHead)
    assert run.profile.planner is not None
    assert steps_read(run.profile, HEAD.name).predict(1) == pytest.approx(own.step)
    learnt = run.profile.planner.learnt
    assert_shape_is_that_of_tune(run.profile, HEAD.name)
    assert learnt.tables[HEAD.name].n_seen == 0


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["mimo2", "qwen35"])
def test_the_head_inside_the_model_is_ranked_with_others(
    front: Callable[..., Front], tmp_path: Path, kind: str
) -> None:
    adds = LAST if kind == "mimo2" else (0.0, 0.0, *LAST)
    make = getattr(tinymtp, kind)
    model = make(tmp_path / "model.gguf", adds=adds, copied=True)
    nothing = make(tmp_path / "mtp-random.gguf", seed=5, part="head")
    draft = tinygguf.llama(tmp_path / "draft.gguf")
    one = front(model, inside=True)
    before = one.ids(prompt="zip", params={"max_tokens": 20, "temperature": 0, "ignore_eos": True})
    _, inside, other, small = tuned(one, model, nothing, draft)
    assert [report.problem for report in (inside, other, small)] == ["", "", ""]
    assert [report.head for report in (inside, other, small)] == ["MTP, 1 layer", "MTP, 1 layer", ""]
    share = [report.forecast.acceptance if report.forecast else None for report in (inside, other, small)]
    assert share[0] == pytest.approx(1.0, abs=0.1)
    assert share[1] is not None
    assert share[1] < 0.2
    after = one.ids(prompt="zip", params={"max_tokens": 20, "temperature": 0, "ignore_eos": True})
    assert after == before
    run = front(model, run=model).core.loaded
    assert run is not None
    assert run.profile.planner is not None
    assert steps_read(run.profile, HEAD.name).predict(1) == pytest.approx(inside.step)
    assert_shape_is_that_of_tune(run.profile, HEAD.name)
    both = front(model, run=draft).core.loaded
    assert both is not None
    assert both.head is not None
    assert both.profile.planner is not None
    assert steps_read(both.profile, MODEL.name).predict(1) == pytest.approx(small.step)
    assert_shape_is_that_of_tune(both.profile, MODEL.name)


def test_a_cancelled_trial_leaves_nothing_open(front: Callable[..., Front], tmp_path: Path) -> None:
    target, head = write("eagle3", tmp_path)
    one = front(target)
    tuned(one, head, stop_at="draft eagle3-head.gguf")
    ended = one.messages[-1]
    assert isinstance(ended, Tuned)
    assert ended.cancelled
    assert one.core.loaded is not None
    assert one.core.loaded.context.features is None
    assert one.ids(prompt="zip", params={"max_tokens": 4, "ignore_eos": True})
    assert tuned(one, head)[1].forecast is not None


def test_heads_that_cannot_be_used_do_not_affect_the_others(
    front: Callable[..., Front], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, head = write("eagle3", tmp_path)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(head.read_bytes()[:-40])
    one = front(target)
    _, broken, without, good = tuned(one, damaged, target, head)
    assert "damaged.gguf" in broken.problem
    assert "no head" in without.problem
    assert good.forecast is not None
    monkeypatch.setattr("specllama.worker.tuning.tuner.available_memory", lambda: 1 << 20)
    _, full = tuned(one, head)
    assert "not enough memory" in full.problem
    assert full.forecast is None


def test_a_model_loaded_without_its_head_says_so(front: Callable[..., Front], tmp_path: Path) -> None:
    model = tinymtp.mimo2(tmp_path / "model.gguf", adds=LAST, copied=True)
    assert tuned(front(model), model)[1].problem == "the model was loaded without its head"
