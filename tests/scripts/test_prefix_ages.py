"""The replay of sessions through the prefix store."""

from __future__ import annotations

import json
import random

import pytest

from scripts.bench.prefix_ages import made_up, mixed, recorded, replay


@pytest.mark.parametrize("memory", ["full", "rollback"])
@pytest.mark.parametrize("by_age", [True, False])
def test_a_larger_budget_evaluates_less(memory, by_age):
    """Also where a state goes while the text that it belongs to is restored, as with seed 3."""
    rng = random.Random(3)
    turns = mixed(rng, made_up(rng))
    n_all = sum(len(prompt) for prompt, _ in turns)
    evaluated = [replay(turns, memory, budget, by_age)[0] for budget in (0, 3000, 10_000)]
    assert n_all >= evaluated[0] > evaluated[1] > evaluated[2] > 0


def test_a_recorded_session_is_read(tmp_path):
    messages = [{"role": "system", "content": "s" * 400}, {"role": "user", "content": "u" * 40}]
    more = [*messages, {"role": "assistant", "content": "a"}, {"role": "user", "content": "v" * 40}]
    path = tmp_path / "session.json"
    path.write_text(json.dumps([{"messages": messages}, {"messages": more}]), "utf-8")
    (first, places), (second, more_places) = recorded(path)
    assert second[: len(first) - 1] == first[:-1]
    assert len(places) == 1
    assert len(more_places) == 2
