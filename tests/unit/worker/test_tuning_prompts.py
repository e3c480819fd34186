"""Which texts there is time for."""

from __future__ import annotations

from specllama.worker.tuning.prompts import LEAST_TOKENS, TuningText, choose


def texts(**prompts: int) -> list[TuningText]:
    return [TuningText(name, i, [1] * 10) for name, n in prompts.items() for i in range(1, n + 1)]


def names(found) -> list[str]:
    return [t.name for t in found.texts]


def test_all_of_them_where_there_is_time():
    found = choose(texts(a=2, b=3), 64, True, 0.001, 0.0001, 60)
    assert names(found) == ["a 1", "b 1", "a 2", "b 2", "b 3"]
    assert (found.n_tokens, found.left_out) == (64, 0)
    assert abs(found.seconds - 5 * 0.065) < 1e-9


def test_fewer_of_each_workload_first():
    found = choose(texts(a=4, b=4), 64, True, 0.2, 0.01, 60)
    assert names(found) == ["a 1", "b 1", "a 2", "b 2"]
    assert (found.n_tokens, found.left_out) == (64, 4)
    assert found.seconds <= 60


def test_then_fewer_tokens_of_each():
    found = choose(texts(a=2, b=2, c=2), 64, True, 0.5, 0.01, 60)
    assert names(found) == ["a 1", "b 1", "c 1"]
    assert LEAST_TOKENS < found.n_tokens < 64
    assert found.seconds <= 60
    slow = choose(texts(a=2, b=2, c=2), 64, True, 5, 0.01, 60)
    assert names(slow) == ["a 1", "b 1", "c 1"]
    assert slow.n_tokens == LEAST_TOKENS


def test_tokens_that_were_asked_for_are_kept():
    found = choose(texts(a=2, b=2), 100, False, 5, 0.01, 60)
    assert names(found) == ["a 1", "b 1"]
    assert found.n_tokens == 100


def test_nothing_to_choose_from():
    assert choose([], 64, True, 0.1, 0.1, 60).texts == []
