"""Tuning with the real llama.cpp: the embedded pair, a draft with scrambled weights, every kind of memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from specllama.client import protocol as m
from specllama.client.tune_messages import (
    MeasuredDraft,
    RowsComparison,
    ThreadsComparison,
    TimedCurve,
    Tune,
    TuneAgenda,
    Tuned,
    TuneMeasurement,
    Tuning,
    WrittenTexts,
)
from specllama.config.load import ModelSettings
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.posterior import StepCosts
from specllama.core.replay.forecast import Forecast
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.drafters.copy import CopyDrafter
from specllama.worker import profile
from specllama.worker.calibrate import can_roll_back
from specllama.worker.tuning import tuner
from specllama.worker.tuning.target import WIDTHS
from specllama.worker.tuning.tuner import Tuner
from tests.support import tinygguf
from tests.support.front import Front
from tests.support.generations import generate
from tests.support.machines import MACHINES
from tests.support.scrambled import scramble
from tests.support.stored_steps import costs_read, is_kept, steps_read

TARGET = ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_ctx=512)
DRAFT = ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1, n_ctx=512)
PROMPTS = [
    ("explain", "Explain os.walk."),
    ("edit", "Rename `a` to `b`:\n```python\na = 1\nprint(a)\n```"),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few rounds as possible."""
    for module, names in (
        (tuner, ("CURVE_SECONDS", "THREAD_SECONDS")),
        (tuner, ("STEP_SECONDS",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(tuner, "_MIN_COMPARE_SECONDS", 0.1)


@pytest.fixture
def front(fronts: Callable[..., Front]) -> Callable[..., Front]:
    """Loads a target without a draft."""
    return lambda **settings: fronts(**{"target": TARGET, **settings})


def tuned(
    front: Front, *drafts: ModelSettings, stop: Callable[[m.Message], bool] | None = None, **order: Any
) -> Tuner:
    """Tune to the end, or cancel when `stop` is true for a message. The messages are in front.messages."""
    front.messages.clear()
    front.core.handle(
        Tune(
            **{
                "id": 7,
                "prompts": PROMPTS,
                "drafts": list(drafts),
                "n_tokens": 24,
                "ignore_load": True,
                **order,
            }
        )
    )
    active, n_checked = front.core.loaded_engine.tuner, 0
    assert active is not None, front.messages
    while front.core.busy:
        front.core.step()
        while n_checked < len(front.messages):
            if stop is not None and stop(front.messages[n_checked]):
                front.core.handle(m.Cancel(7))
            n_checked += 1
    return active


PARTS = {
    "plan": TuneAgenda, "curve": TimedCurve, "threads": ThreadsComparison, "epsilon": RowsComparison,
    "texts": WrittenTexts, "draft": MeasuredDraft,
}  # fmt: skip


def parts(front: Front, name: str) -> list[dict[str, Any]]:
    """The measurements of this kind as plain data."""
    reports = [one.part for one in front.messages if isinstance(one, TuneMeasurement)]
    return [asdict(part) for part in reports if isinstance(part, PARTS[name])]


def ended(front: Front) -> Tuned:
    last = front.messages[-1]
    assert isinstance(last, Tuned), last
    return last


def test_everything_is_measured_and_the_better_draft_has_the_higher_acceptance(
    front: Callable[..., Front], tmp_path: Path
) -> None:
    nothing = ModelSettings(path=str(scramble(EMBEDDED_DRAFT, tmp_path / "nothing.gguf")), n_threads=1)
    one = front()
    trials = tuned(one, nothing, DRAFT).trials
    assert not ended(one).cancelled
    (plan,), (curve,), (threads,) = (parts(one, name) for name in ("plan", "curve", "threads"))
    assert (plan["n_tokens"], plan["too_long"], plan["replays"]) == (24, {}, False)
    assert curve["complete"]
    assert [p["rows"] for p in curve["points"]] == [1, *WIDTHS]
    assert all(p["seconds"] > 0 and p["count"] >= DEFAULT.min_samples for p in curve["points"])
    assert threads["used"] == 1
    assert 1 in [p["threads"] for p in threads["points"]]
    (epsilon,), (texts,) = parts(one, "epsilon"), parts(one, "texts")
    assert epsilon["n_rows"] > 0
    assert epsilon["value"] >= 0
    assert {name: one_part["texts"] for name, one_part in texts["workloads"].items()} == {
        "explain": 1,
        "edit": 1,
    }
    copied, bad, good = parts(one, "draft")
    assert [one_part["index"] for one_part in (copied, bad, good)] == [-1, 0, 1]
    assert [b["k"] for b in good["break_even"]] == [1, 2, 3, 5, 7, 11, 15]
    assert copied["forecast"]["acceptance"] is None
    assert bad["forecast"]["acceptance"] < 0.2 < 0.5 < good["forecast"]["acceptance"]
    assert good["step"] > 0
    # On costs that do not come from this machine's clock, the good one is the best.
    costs = CostCurve.from_dict(
        {"widths": [[n, x / 50, DEFAULT.min_samples] for n, x in MACHINES["A f16"].items()]}
    )
    steps = StepCosts()
    steps.curve = CostCurve.from_dict(
        {"widths": [[1, 0.001, DEFAULT.min_samples], [32, 0.01, DEFAULT.min_samples]]}
    )
    predicted = []
    for trial in trials:
        forecast = Forecast(costs, steps if trial is not trials[0] else None, CopyDrafter)
        for workload, trace in trial.traces:
            forecast.add(workload, trace)
        predicted.append(forecast.speedup)
    assert predicted[2] > 1.2 > predicted[1]
    assert predicted[2] > predicted[0]


@pytest.mark.alone
def test_the_next_run_starts_with_the_measurements(front: Callable[..., Front]) -> None:
    one = front()
    tuned(one, DRAFT)
    (curve,), (_, drafted) = parts(one, "curve"), parts(one, "draft")
    run = front(draft=DRAFT)
    assert run.core.loaded is not None
    stored = run.core.loaded.profile
    assert stored.planner is not None
    one_row, costs = curve["points"][0]["seconds"], costs_read(stored)
    for point in curve["points"]:  # a busy machine makes some impossible
        if costs.count(point["rows"]):
            assert costs.predict(point["rows"]) / costs.predict(1) == pytest.approx(
                max(point["seconds"], one_row) / one_row
            )
    tried_again = {1, 2, 4, 8, 16, 32}
    assert ({n for n, _ in stored.planner.costs.times} & {n for n, _ in costs.times}) - tried_again
    wider = [1]  # batches that tune had no time to compare here
    assert stored.unmeasured(run.core.loaded.context, 100) in ([], wider)
    assert stored.t1 is not None
    assert is_kept(stored.t1, one_row)
    assert stored.epsilon == parts(one, "epsilon")[0]["value"]
    learnt = stored.planner.learnt
    assert steps_read(stored, "model").predict(1) == pytest.approx(drafted["step"])
    assert learnt.models["model"].steps.curve.count(1) >= DEFAULT.min_samples
    assert learnt.tables["model"].n_seen == 0, "the acceptance of a few texts is not stored"


def test_learnt_acceptance_of_a_pair_is_kept(front: Callable[..., Front], tmp_path: Path) -> None:
    run = front(draft=DRAFT)
    run.ids(messages=[{"role": "user", "content": "zip"}], params={"max_tokens": 60, "ignore_eos": True})
    run.core.shut_down()
    (file,) = (tmp_path / "store").iterdir()
    before = json.loads(file.read_text())
    tuned(front(), DRAFT)
    after = json.loads(file.read_text())
    kept = [p for p in after["pairs"] if p["pair"] == before["pairs"][0]["pair"]]
    assert [p["learnt"]["tables"] for p in kept] == [before["pairs"][0]["learnt"]["tables"]]
    steps = [p["learnt"]["priced"]["model"]["steps"] for p in (kept[0], before["pairs"][0])]
    assert steps[0] != steps[1]


def test_without_calibration_nothing_is_stored(front: Callable[..., Front], tmp_path: Path) -> None:
    one = front(calibrate=False)
    tuned(one, DRAFT)
    assert parts(one, "curve")[0]["complete"]
    assert not (tmp_path / "store").exists()


def test_answers_are_the_same_afterwards(front: Callable[..., Front]) -> None:
    one, zip_ = front(), [{"role": "user", "content": "zip"}]
    params = {"max_tokens": 30, "temperature": 0}
    before = one.ids(messages=zip_, params=params)
    threads = one.core.loaded.context.n_threads, one.core.loaded.context.n_threads_batch  # type: ignore[union-attr]
    tuned(one, DRAFT)
    assert (one.core.loaded.context.n_threads, one.core.loaded.context.n_threads_batch) == threads  # type: ignore[union-attr]
    assert one.ids(messages=zip_, params=params) == before


@pytest.mark.parametrize("part", ["plan", "curve", "threads", "texts", "draft"])
def test_cancelling_keeps_the_completed_measurements(
    front: Callable[..., Front], tmp_path: Path, part: str
) -> None:
    one = front()
    tuned(
        one,
        DRAFT,
        stop=lambda message: isinstance(message, TuneMeasurement) and isinstance(message.part, PARTS[part]),
    )
    assert ended(one).cancelled
    assert not one.core.busy
    (curve,) = parts(one, "curve") or [{"complete": False}]
    assert curve["complete"] == (part != "plan")
    stored = [json.loads(file.read_text()) for file in (tmp_path / "store").glob("*.json")]
    assert any("t1" in one for one in stored) == (part != "plan")
    predicted = [report["index"] for report in parts(one, "draft") if report["forecast"]]
    assert predicted == ([-1] if part == "draft" else [])
    assert one.ids(messages=[{"role": "user", "content": "zip"}], params={"max_tokens": 4})


@pytest.mark.parametrize("label", ["t(n)", "threads", "writing texts", "draft pydoc-draft.gguf"])
def test_cancelling_in_the_middle_of_a_stage(
    front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    monkeypatch.setattr(tuner, "_PROGRESS_SECONDS", 0.0)
    one = front()
    assert one.core.loaded is not None
    tuned(
        one,
        DRAFT,
        stop=lambda message: isinstance(message, Tuning) and message.label == label and message.share > 0,
    )
    assert ended(one).cancelled
    assert one.core.loaded.context.n_threads == 1
    assert one.ids(messages=[{"role": "user", "content": "zip"}], params={"max_tokens": 4})
    tuned(one, DRAFT)
    assert not ended(one).cancelled


def test_progress_is_reported_by_stage(front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "_PROGRESS_SECONDS", 0.0)
    one = front()
    tuned(one, DRAFT)
    message = [stage for stage in one.messages if isinstance(stage, Tuning)]
    assert list(dict.fromkeys(stage.label for stage in message)) == [
        "t(n)", "threads", "writing texts", "copying", "draft pydoc-draft.gguf"
    ]  # fmt: skip
    shares = [stage.share for stage in message]
    assert all(0 <= a <= b + 0.02 <= 1.03 for a, b in pairwise(shares))


def test_a_curve_is_measured_in_a_longer_context_too(
    front: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "BUCKETS", (0, 200, 4096))
    one = front()
    tuned(one)
    near, far = parts(one, "curve")
    assert near["n_ids"] < 200 < far["n_ids"]
    assert far["complete"]
    assert one.core.loaded is not None
    stored = one.core.loaded.profile.curves.to_dict()
    assert list(stored) == ["0", "200"]
    assert one.core.loaded.profile.t1 == near["points"][0]["seconds"]


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba", "jamba", "lfm2"])
def test_every_kind_of_memory_can_be_tuned(front: Callable[..., Front], tmp_path: Path, kind: str) -> None:
    path = tinygguf.BUILDERS[kind](tmp_path / f"{kind}.gguf")
    draft = tinygguf.BUILDERS["mamba" if kind == "llama" else kind](tmp_path / "draft.gguf", noise=0.1)
    one = front(target=ModelSettings(path=str(path), n_threads=1, n_ctx=512))
    tuned(one, ModelSettings(path=str(draft), n_threads=1, n_ctx=512), raw=True)
    assert not ended(one).cancelled
    assert parts(one, "curve")[0]["complete"]
    assert one.core.loaded is not None
    (epsilon,) = parts(one, "epsilon")
    assert (epsilon["value"] is None) == (not can_roll_back(one.core.loaded.context))
    assert bool(epsilon["reason"]) == (epsilon["value"] is None)
    assert parts(one, "plan")[0]["replays"] == (kind in ("mamba", "jamba"))
    _, drafted = parts(one, "draft")
    assert drafted["problem"] == ""
    if kind != "llama":
        assert drafted["forecast"]["acceptance"] > 0.2


def test_a_draft_that_cannot_be_loaded_does_not_affect_the_others(
    front: Callable[..., Front],
) -> None:
    huge = ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1, n_ctx=2**30)
    one = front()
    tuned(one, huge, DRAFT)
    _, failed, good = parts(one, "draft")
    assert failed["index"] == 0
    assert "memory" in failed["problem"]
    assert failed["forecast"] is None
    assert good["forecast"]["acceptance"] > 0.5


def test_prompts_and_texts_that_exceed_a_context(front: Callable[..., Front]) -> None:
    """A prompt that is too long is left out; a text too long for the draft counts as not drafted."""
    one = front()  # 512 tokens
    long, too_long = "y " * 300, "y " * 600
    small = ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1, n_ctx=256)
    tuned(one, small, prompts=[PROMPTS[0], ("long", long), ("x", too_long)])
    assert list(parts(one, "plan")[0]["too_long"]) == ["x 1"]
    workloads = parts(one, "draft")[1]["forecast"]["workloads"]
    assert workloads["long"]["acceptance"] == 0
    assert workloads["explain"]["acceptance"] > 0.5
    one.messages.clear()
    one.core.handle(Tune(8, [("x", too_long)]))
    while one.core.busy:
        one.core.step()
    (failed,) = one.messages
    assert isinstance(failed, m.Failed)
    assert failed.id == 8
    assert "no prompt fits the context" in failed.error["message"]


def test_tuning_needs_an_idle_engine_without_a_draft(front: Callable[..., Front]) -> None:
    one = front()
    one.core.handle(Tune(1, PROMPTS))
    for request in (Tune(2, PROMPTS), generate(2, prompt="x")):
        one.messages.clear()
        one.core.handle(request)
        (refused,) = one.messages
        assert isinstance(refused, m.Failed)
        assert refused.id == 2
    one.core.handle(m.Cancel(5))
    one.core.step()
    assert one.core.busy
    one.core.handle(m.Cancel(1))
    one.core.step()
    assert not one.core.busy
    pair = front(draft=DRAFT)
    pair.core.handle(Tune(1, PROMPTS))
    assert isinstance(pair.messages[-1], m.Failed)
    assert "without a draft" in pair.messages[-1].error["message"]
