"""The requests of a sweep and their order."""

from __future__ import annotations

from collections import Counter

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

WANTED = SweepSettings([("a", "x"), ("b", "y")], (1, 2, 4), 3, 16, 0.0)


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.text("xyz"), min_size=1), min_size=1),
       st.integers(1, 16))  # fmt: skip
def test_every_prompt_is_asked_and_every_client_has_as_many(works: dict[str, list[str]], most: int) -> None:
    found = prompts(works, most)
    assert len(found) % most == 0
    every = Counter((name, text) for name, texts in works.items() for text in texts)
    assert not every - Counter(found)
    assert len(prompts(works, most, 7)) == 7


def test_the_order() -> None:
    cells = list(order([SPECULATIVE, PLAIN], WANTED))
    assert Counter(cells) == Counter(
        ServingCell(s, c, r) for s in (SPECULATIVE, PLAIN) for c in (1, 2, 4) for r in (1, 2, 3)
    )
    pairs = list(zip(cells[::2], cells[1::2], strict=True))
    assert all((a.concurrency, a.run) == (b.concurrency, b.run) for a, b in pairs)
    assert {a.series for a, _ in pairs} == {SPECULATIVE, PLAIN}  # each is first now and then
    assert [c.run for c in order([SERVED], SweepSettings([], (1,), 1, 2, 0.0, first=5))] == [5]


def test_bodies() -> None:
    cells = list(order([SPECULATIVE, PLAIN], WANTED))
    texts = {c: body(WANTED, c, 0, "m")["messages"][0]["content"] for c in cells}
    assert len(set(texts.values())) == len(cells) / 2  # the series write the same texts
    assert len({len(text) for text in texts.values()}) == 1
    plain, other = (
        body(WANTED, ServingCell(PLAIN, 1, 1), 1, ""),
        body(WANTED, ServingCell(SERVED, 1, 1), 1, "m"),
    )
    assert plain["speculation"] == {"enabled": False, "memory": False}
    assert body(WANTED, ServingCell(SPECULATIVE, 1, 1), 1, "")["speculation"] == {
        "enabled": True,
        "memory": False,
    }
    assert "model" not in plain
    assert not {"speculation", "ignore_eos"} & other.keys()
    assert plain["seed"] == other["seed"] == 1001
    raw = body(
        SweepSettings([("a", "x")], (1,), 1, 2, 0.0, raw=True, ignore_eos=True),
        ServingCell(SERVED, 1, 1),
        0,
        "",
    )
    assert raw["prompt"].endswith(" x")
    assert raw["ignore_eos"] is True
    assert "messages" not in raw
