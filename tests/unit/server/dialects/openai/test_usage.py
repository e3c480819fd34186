"""The figures of an answer, from the stream of events."""

from __future__ import annotations

from specllama.core.gain import PlainRate
from specllama.core.stats import RunStats
from specllama.server.dialects.shared.figures import figures, usage
from specllama.server.events import Accumulator, End, Start, TextEvent


def end(index: int, **counters: object) -> End:
    return End(index, "stop", None, RunStats(**counters), PlainRate(None, "none", 0))  # type: ignore[arg-type]


class TestFigures:
    def test_two_prompts_with_two_choices_each_are_added_up(self) -> None:
        fold = Accumulator()
        for i in range(4):
            fold.add([Start(i, i // 2, 10 + i // 2, 1), TextEvent(i, "x")])
        stats = {"n_prompt": 10, "n_predict": 5, "n_drafted": 6, "n_accept": 3, "reached": [3, 2, 1]}
        fold.add(end(i, **stats, accepted_at=[2, 1, 0], n_reused=i) for i in range(4))
        counts = usage(fold)
        assert (counts["prompt_tokens"], counts["completion_tokens"]) == (21, 20)
        assert counts["prompt_tokens_details"]["cached_tokens"] == 0 + 2
        vllm = figures(fold, True)["metrics"]["speculative_decoding"]
        assert vllm["acceptance_histogram"] == [4, 4, 4, 0]
        assert vllm["num_spec_steps"] == 12

    def test_an_empty_answer_has_figures_without_divisions_by_zero(self) -> None:
        fold = Accumulator()
        fold.add([Start(0, 0, 1, 1), end(0)])
        shown = figures(fold, False)
        assert shown["timings"]["predicted_per_second"] == 0
        assert shown["metrics"]["speculative_decoding"]["acceptance_histogram"] == [0]
        assert shown["speculation"]["acceptance_rate"] is None
        assert (shown["speculation"]["speedup"], shown["speculation"]["verdict"]) == (None, "unknown")

    def test_the_verdict_is_that_of_the_speed_up(self) -> None:
        fold = Accumulator()
        stats = RunStats(n_predict=41, rounds=20, plain_rounds=10, decode_seconds=0.2)
        fold.add([Start(0, 0, 1, 1), End(0, "stop", None, stats, PlainRate(150, "run", 10))])
        shown = figures(fold, True)["speculation"]
        assert (round(shown["speedup"], 3), shown["verdict"]) == (1.333, "faster")
