"""The text of `tune` for made-up results: tables, ranking, verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specllama.cli.tune.command import make_plan
from specllama.cli.tune.results import TuneResults, lines, threads_verdict, verdict
from specllama.client.tune_messages import (
    DraftPrediction,
    MeasuredDraft,
    RowsComparison,
    TextCount,
    ThreadsComparison,
    TimedCurve,
    TimedThreads,
    TimedWidth,
    TuneAgenda,
    WorkloadPrediction,
    WrittenTexts,
)
from specllama.config.load import ModelSettings
from specllama.config.sources import Values
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.replay.break_even import break_evens
from specllama.data import EMBEDDED_TARGET
from tests.support.loads import TARGET, load_info

T1 = 0.02
COSTS = {1: 1.0, 2: 1.4, 3: 1.7, 4: 2.0, 6: 2.6, 8: 3.0, 12: 4.0, 16: 5.0}
EXPENSIVE = {1: 1.0, 2: 2.1, 3: 3.2, 4: 4.3, 6: 6.4, 8: 8.5, 12: 12.8, 16: 17.0}
LENGTHS = (1, 2, 3, 5, 7, 11, 15)
ROWS = RowsComparison(value=None, n_rows=90, reach=300, equal_up_to=63, unequal_from=None, reason="")
TEXTS = WrittenTexts({"explain": TextCount(4, 200), "edit": TextCount(4, 180)})
GOOD, BAD, FOREIGN = "models/good-draft.gguf", "models/bad-draft.gguf", "models/foreign.gguf"


def forecast(
    speedup: float, acceptance: float | None, drafted: int = 100, accepted: int = 60
) -> DraftPrediction:
    part = WorkloadPrediction(speedup, acceptance, 190, drafted // 2, accepted // 2)
    return DraftPrediction(speedup, acceptance, 380, drafted, accepted, {"explain": part, "edit": part})


def draft(
    index: int, step: float, costs: dict[int, float], predicted: DraftPrediction | None
) -> MeasuredDraft:
    curve = CostCurve.from_dict({"widths": [[n, T1 * x, DEFAULT.min_samples] for n, x in costs.items()]})
    needed = break_evens(curve, step * T1, LENGTHS)
    return MeasuredDraft(index, step=step * T1 if step else None, break_even=needed, forecast=predicted)


def results(
    costs: dict[int, float] = COSTS,
    good: float = 1.62,
    bad: float = 1.21,
    copied: float = 1.3,
    t1: float = T1,
) -> TuneResults:
    made = TuneResults(
        [ModelSettings(path=BAD), ModelSettings(path=GOOD)], {FOREIGN: "the vocabularies differ at id 7"}
    )
    made.info = load_info()
    made.seconds = 12.3
    made.add(TuneAgenda(64, n_left_out=0, too_long={}, replays=False))
    points = [TimedWidth(n, t1 * x, 9) for n, x in costs.items()]
    made.add(TimedCurve(128, points, left_out=[], complete=True, spread=1.02))
    threads = [TimedThreads(n, t1 * 4 / n, 3 * t1 * 4 / n) for n in (1, 2, 3, 4)]
    made.add(ThreadsComparison(4, 4, 8, threads, fastest=4, gain=1.0, clear=False))
    made.add(replace(ROWS, value=0.0, n_rows=1200))
    made.add(TEXTS)
    made.add(draft(-1, 0.0, costs, forecast(copied, None)))
    made.add(draft(0, 0.2, costs, forecast(bad, 0.31)))
    made.add(draft(1, 0.1, costs, forecast(good, 0.72)))
    return made


def agenda(one: TuneResults) -> TuneAgenda:
    assert one.agenda is not None
    return one.agenda


def text(one: TuneResults, width: int = 80, stored: bool = True) -> str:
    return "\n".join(lines(one, stored, width))


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_too_long(width):
    assert max(map(len, text(results(), width).splitlines())) <= width


def test_a_draft_of_another_vocabulary_that_auto_leaves_out():
    one = results(good=1.24, copied=1.2)
    one.add(replace(draft(1, 0.1, COSTS, forecast(1.24, 0.5)), translated=True))
    shown = verdict(one)
    assert f"Best: -md {GOOD}, predicted 1.24 x plain decoding. That is 1.03 x copying alone" in shown
    assert "from 1.05 x and leaves this one out" in shown
    assert "leaves this one out" not in verdict(results(good=1.24, copied=1.2)), "one of its own vocabulary"
    one.add(replace(draft(1, 0.1, COSTS, forecast(1.27, 0.5)), translated=True))
    assert "leaves this one out" not in verdict(one)


def test_the_verdict_names_the_best_draft_as_predicted_not_measured():
    shown = verdict(results())
    assert shown.startswith(f"Best: -md {GOOD}, predicted 1.62 x plain decoding.")
    assert "Predicted, not measured: `specllama bench` measures." in shown
    assert "leaves out" not in shown
    shown = verdict(results(good=1.25, bad=1.2))
    assert shown.startswith("Best: copying alone (-md none), predicted 1.30 x plain decoding.")
    assert verdict(results(good=1.3, bad=1.3)).startswith("Best: copying alone")


def test_the_verdict_is_plain_decoding_and_says_why_if_nothing_pays():
    shown = verdict(results(EXPENSIVE, 0.99, 0.98, 0.99))
    assert shown.startswith("Best: plain decoding. The best draft, copying alone (-md none), is predicted")
    assert "a decode of 2 rows takes 2.10 x one row's time, so that no draft can pay." in shown
    shown = verdict(results(good=1.005, bad=0.9, copied=0.98))
    assert "a decode of 2 rows takes 1.40 x one row's time and a token of the draft 0.10 x" in shown
    assert "so that a draft pays from an acceptance of 50 % at best; 72 % of the tokens were right." in shown
    one = results(good=0.9, bad=0.9, copied=1.0)
    assert "60 % of the copied tokens were right." in verdict(one)
    one.add(draft(-1, 0.0, COSTS, forecast(1.0, None, 0, 0)))
    assert "there was hardly anything to copy." in verdict(one)


def test_the_verdict_says_what_the_prediction_leaves_out():
    assert "which matters where t(1) is 0.3 ms: less is gained." in verdict(results(t1=0.0003))
    one = results()
    one.add(replace(agenda(one), replays=True))
    assert "It leaves out replays" in verdict(one)
    one.add(WrittenTexts({"edit": TextCount(1, 30)}))
    assert "It rests on only 30 tokens" in verdict(one)


def test_signs_of_other_load_are_mentioned():
    assert "kept the machine busy" not in text(results())
    one = results()
    one.curves[0] = replace(one.curves[0], disturbed=True)
    assert "kept the machine busy" in text(one)


@pytest.mark.parametrize("part", ["curve", "threads"])
def test_figures_that_are_off_give_no_advice_and_are_not_called_stored(part: str):
    one = results()
    assert one.threads is not None
    one.threads = replace(one.threads, disturbed=True, fastest=1, gain=20.0, clear=True)
    if part == "curve":
        one.curves[0] = replace(one.curves[0], disturbed=True)
        assert "nothing was stored" in text(one)
        assert not one.storable
    assert "give -t" not in text(one)
    assert "Best:" not in text(one)
    assert one.to_dict()["disturbed"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "-t 4 is used; no other number is clearly faster."),
        ({"used_batch": 2}, "-t 4 -tb 2 is used; no other number is clearly faster."),
        (
            {"points": [TimedThreads(4, 1, 1)]},
            "-t 4 is used; no other number of threads was timed.",
        ),
        (
            {"fastest": 2, "gain": 1.31, "clear": True},
            "-t 2 is 1.31 x as fast as -t 4, which is used: give -t 2, and tune again.",
        ),
    ],
)
def test_the_verdict_on_threads(change, expected):
    threads = results().threads
    assert threads is not None
    assert threads_verdict(replace(threads, **change)) == expected


def test_the_text_says_what_was_not_measured():
    one = results()
    one.add(replace(ROWS, reach=0, reason="the model's memory cannot be rolled back"))
    one.curves[0] = replace(one.curves[0], left_out=[48, 64])
    too_long = {f"long {i}": "the prompt has 9 tokens" for i in range(5)}
    one.add(replace(agenda(one), n_left_out=3, too_long=too_long))
    shown = " ".join(text(one).split())
    assert "Exactness: not measured, the model's memory cannot be rolled back." in shown
    assert "Not timed, for lack of time or room: 48, 64 rows." in shown
    assert "Left out, for lack of time: 3 prompts; texts have up to 64 tokens." in shown
    assert "Left out: prompt long 0: the prompt has 9 tokens. " in shown
    assert "Left out: 2 more prompts." in shown
    one.add(replace(ROWS, value=0.02, n_rows=90, equal_up_to=0, unequal_from=2))
    shown = " ".join(text(one).split())
    assert "differ by up to 0.02 after texts of up to 300 tokens; near-ties are counted" in shown


def test_an_interrupted_tune_says_what_is_missing():
    one = TuneResults([ModelSettings(path=GOOD)], {})
    one.info = load_info(n_threads=1)
    one.interrupted = True
    one.add(TimedCurve(128, [TimedWidth(1, T1, 2)], left_out=[], complete=False, spread=1.0))
    shown = text(one, 100)
    assert shown.startswith("target big Q4_0, 1 thread; interrupted, nothing was stored")
    assert "good-draft was not measured to the end." in shown
    assert "No draft was ranked: it was interrupted before." in shown
    one.curves[0] = replace(one.curves[0], complete=True)
    assert "interrupted, what was complete is stored for the next run" in text(one, 100)
    assert "interrupted, nothing was stored" in text(one, stored=False)


def test_a_draft_that_failed_is_not_ranked():
    one = results()
    one.add(MeasuredDraft(1, "not enough memory"))
    assert "good-draft cannot be used: not enough memory." in text(one)
    assert verdict(one).startswith("Best: copying alone")


def test_without_drafts_and_copying_nothing_is_ranked():
    one = TuneResults([], {}, copies=False)
    assert one.ranking == one.others == []
    assert verdict(one) == "No draft was ranked: nothing drafts here."


def test_drafts_with_equal_names_are_shown_with_their_folders():
    one = TuneResults(
        [ModelSettings(path="a/draft.gguf"), ModelSettings(path="b/draft.gguf")], {"c/x.gguf": "no"}
    )
    assert [one.drafts[0].name, one.drafts[1].name, one.unusable[0].name] == [
        "a/draft.gguf",
        "b/draft.gguf",
        "x",
    ]


def test_control_characters_in_names_are_escaped():
    one = TuneResults([ModelSettings(path="a\x1b[31m.gguf")], {"b\x1b]0;x\x07.gguf": "\x1b[2J"})
    one.info = load_info(target=replace(TARGET, name="\x1b[2J"), n_threads=1)
    one.add(TEXTS)
    one.add(draft(0, 0.1, COSTS, forecast(1.5, 0.7)))
    assert "\x1b" not in text(one)


def test_the_head_inside_the_model_is_named_as_what_it_is():
    target = TARGET.path
    results = TuneResults([ModelSettings(path=target), ModelSettings(path=GOOD)], {}, target=target)
    results.info = load_info()
    results.add(draft(0, 0.1, COSTS, forecast(1.7, 0.8)))
    results.add(draft(1, 0.1, COSTS, forecast(1.5, 0.7)))
    results.add(replace(draft(0, 0.1, COSTS, forecast(1.7, 0.8)), head="MTP, 1 layer"))
    assert [e.name for e in results.ranking] == ["head of the model", "good-draft"]
    assert verdict(results).startswith("Best: the head of the model (-md auto), predicted 1.70 x")
    first, second = results.to_dict()["ranking"]
    assert (first["path"], first["head"], second["head"]) == (target, "MTP, 1 layer", "")
    left_out = TuneResults([], {target: "it lacks a tensor"}, target=target)
    left_out.info = load_info()
    assert "head of the model cannot be used: it lacks a tensor." in text(left_out)


def test_the_model_may_be_a_name_in_a_folder_of_models(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").symlink_to(EMBEDDED_TARGET)
    given = {"model": "mine", "models_dir": str(tmp_path)}
    settings, order, unusable = make_plan(given, Values(given))
    assert Path(settings.target.path).resolve() == Path(EMBEDDED_TARGET).resolve()
    assert unusable == {}
    assert order.n_tokens is None
