"""The requests of a sweep and their order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from specllama.bench.serving.sweep import (
    PLAIN,
    SERVED,
    SPECULATIVE,
    ServingCell,
    SweepSettings,
    body,
    order,
    prompts,
)

SETTINGS = SweepSettings([("a", "x"), ("b", "y")], (1, 2, 4), 3, 16, 0.0)


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.text("xyz"), min_size=1), min_size=1),
       st.integers(1, 16))  # fmt: skip
def test_every_prompt_is_used_and_clients_send_equally_many(works: dict[str, list[str]], most: int) -> None:
    sent = prompts(works, most)
    assert len(sent) % most == 0
    every = Counter((name, text) for name, texts in works.items() for text in texts)
    assert not every - Counter(sent)
    assert len(prompts(works, most, 7)) == 7


def test_each_run_measures_both_series_in_changing_order() -> None:
    cells = list(order([SPECULATIVE, PLAIN], SETTINGS))
    assert Counter(cells) == Counter(
        ServingCell(s, c, r) for s in (SPECULATIVE, PLAIN) for c in (1, 2, 4) for r in (1, 2, 3)
    )
    pairs = list(zip(cells[::2], cells[1::2], strict=True))
    assert all((a.concurrency, a.run) == (b.concurrency, b.run) for a, b in pairs)
    assert {a.series for a, _ in pairs} == {SPECULATIVE, PLAIN}  # each is first at times
    assert [c.run for c in order([SERVED], SweepSettings([], (1,), 1, 2, 0.0, first=5))] == [5]


def test_both_series_send_the_same_prompts_and_only_known_fields() -> None:
    cells = list(order([SPECULATIVE, PLAIN], SETTINGS))
    texts = {c: body(SETTINGS, c, 0, "m")["messages"][0]["content"] for c in cells}
    assert len(set(texts.values())) == len(cells) / 2  # both series send the same texts
    assert len({len(text) for text in texts.values()}) == 1
    plain, other = (
        body(SETTINGS, ServingCell(PLAIN, 1, 1), 1, ""),
        body(SETTINGS, ServingCell(SERVED, 1, 1), 1, "m"),
    )
    assert plain["speculation"] == {"enabled": False, "memory": False}
    assert body(SETTINGS, ServingCell(SPECULATIVE, 1, 1), 1, "")["speculation"] == {
        "enabled": True,
        "memory": False,
    }
    assert "model" not in plain
    assert plain["cache"] == {"reuse": False}, "the second series evaluates all of its prompts too"
    assert not {"speculation", "ignore_eos", "cache"} & other.keys()
    assert plain["seed"] == other["seed"] == 1001
    later = body(replace(SETTINGS, number=5), ServingCell(SERVED, 1, 1), 1, "m")
    assert later["messages"] != other["messages"], "another measurement does not find them in the cache"
    assert body(replace(SETTINGS, number=5), ServingCell(PLAIN, 1, 1), 1, "") == plain
    raw = body(
        SweepSettings([("a", "x")], (1,), 1, 2, 0.0, raw=True, ignore_eos=True),
        ServingCell(SERVED, 1, 1),
        0,
        "",
    )
    assert raw["prompt"].endswith(" x")
    assert raw["ignore_eos"] is True
    assert "messages" not in raw
