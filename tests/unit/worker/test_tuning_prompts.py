"""Selection of the prompts that fit the time limit."""

from __future__ import annotations

from specllama.worker.tuning.prompts import MIN_TOKENS, TuningText, select_prompts


def texts(**prompts: int) -> list[TuningText]:
    return [TuningText(name, i, [1] * 10) for name, n in prompts.items() for i in range(1, n + 1)]


def names(selection) -> list[str]:
    return [t.name for t in selection.texts]


def test_all_prompts_are_selected_if_there_is_time():
    selection = select_prompts(texts(a=2, b=3), 64, True, 0.001, 0.0001, 60)
    assert names(selection) == ["a 1", "b 1", "a 2", "b 2", "b 3"]
    assert (selection.n_tokens, selection.left_out) == (64, 0)


def test_a_lack_of_time_first_reduces_the_prompts_per_workload():
    selection = select_prompts(texts(a=4, b=4), 64, True, 0.2, 0.01, 60)
    assert names(selection) == ["a 1", "b 1", "a 2", "b 2"]
    assert (selection.n_tokens, selection.left_out) == (64, 4)


def test_then_it_reduces_the_tokens_per_text():
    selection = select_prompts(texts(a=2, b=2, c=2), 64, True, 0.5, 0.01, 60)
    assert names(selection) == ["a 1", "b 1", "c 1"]
    assert MIN_TOKENS < selection.n_tokens < 64
    slow = select_prompts(texts(a=2, b=2, c=2), 64, True, 5, 0.01, 60)
    assert names(slow) == ["a 1", "b 1", "c 1"]
    assert slow.n_tokens == MIN_TOKENS


def test_a_requested_number_of_tokens_is_kept():
    selection = select_prompts(texts(a=2, b=2), 100, False, 5, 0.01, 60)
    assert names(selection) == ["a 1", "b 1"]
    assert selection.n_tokens == 100


def test_without_prompts_nothing_is_selected():
    assert select_prompts([], 64, True, 0.1, 0.1, 60).texts == []
