"""The requests of a sweep, their order and the figures, the verdict and the page of their answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.bench.report import sweep_report
from specllama.bench.server_client import ServedAnswer, ServedPiece
from specllama.bench.sweep import (
    PLAIN,
    SERVED,
    SPECULATIVE,
    ServingCell,
    ServingMeasurement,
    SweepSettings,
    body,
    cell_figures,
    notes,
    order,
    percentile,
    prompts,
    summarise,
    verdict,
)
from specllama.errors import NetworkError

SETTINGS = SweepSettings(["x", "y"], (1, 2, 4), 3, 16, 0.0)


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.text("xyz"), min_size=1), min_size=1),
       st.integers(1, 16))  # fmt: skip
def test_every_prompt_is_used_and_clients_send_equally_many(works: dict[str, list[str]], most: int) -> None:
    sent = prompts(works, most)
    assert len(sent) % most == 0
    every = Counter(text for texts in works.values() for text in texts)
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
        SweepSettings(["x"], (1,), 1, 2, 0.0, raw=True, ignore_eos=True),
        ServingCell(SERVED, 1, 1),
        0,
        "",
    )
    assert raw["prompt"].endswith(" x")
    assert raw["ignore_eos"] is True
    assert "messages" not in raw


def test_percentiles_are_weighted() -> None:
    assert percentile([], 0.5) is None
    assert percentile([(5.0, 1.0)], 0.99) == 5
    hundred = [(float(i), 1.0) for i in range(100, 0, -1)]
    assert (percentile(hundred, 0.5), percentile(hundred, 0.99)) == (50, 99)
    assert percentile([(1.0, 9.0), (7.0, 1.0)], 0.9) == 1
    assert percentile([(1.0, 9.0), (7.0, 1.0)], 0.95) == 7


def cell(
    series: str, concurrency: int, run: int, seconds: float, *answers: ServedAnswer
) -> ServingMeasurement:
    return ServingMeasurement(ServingCell(series, concurrency, run), list(answers), seconds, True)


def answer(number: int = 0, digest: str = "d", n: int = 10, **more: Any) -> ServedAnswer:
    pieces = [ServedPiece(0.1 + 0.01 * i) for i in range(n)]
    return ServedAnswer(number, pieces, 0.5, n_predict=n, digest=digest, **more)


def test_a_sweep_is_summarised_by_series_and_concurrency() -> None:
    broken = ServedAnswer(1, problem=NetworkError("gone"), refused=2)
    measured = [
        cell(SPECULATIVE, 1, 1, 1.0, answer(n_drafted=8, n_accept=6)),
        cell(PLAIN, 1, 1, 5.0, answer(n_drafted=0, n_accept=0)),
        cell(SPECULATIVE, 1, 2, 0.5, answer(digest="other")),
        cell(PLAIN, 1, 2, 1.25, answer()),
        cell(PLAIN, 4, 1, 1.0, answer(), broken),
    ]
    unfinished = cell(SPECULATIVE, 4, 1, 1.0, answer())
    unfinished.complete = False
    s = summarise([*measured, unfinished, ServingMeasurement(ServingCell(PLAIN, 8, 1))], [SPECULATIVE, PLAIN])
    assert s["speculative_against_plain"] == [
        {"concurrency": 1, "tps": 3.0}
    ]  # 15 over 5, as in the rows; the median of 5 and 2.5 is another figure
    assert (s["texts_compared"], s["texts_different"], s["tokens_counted_by"]) == (3, 1, "server")
    rows = {(row["series"], row["concurrency"]): row for row in s["rows"]}
    assert list(rows) == [(SPECULATIVE, 1), (SPECULATIVE, 4), (PLAIN, 1), (PLAIN, 4)]
    first = rows[SPECULATIVE, 1]
    assert (first["runs"], first["tps"], first["acceptance"], first["answers"]) == (2, 15.0, 0.75, 2)
    times = (first["ttft_ms"]["p50"], first["inter_token_ms"]["p50"], first["seconds"]["p99"])
    assert times == (100, pytest.approx(10), 0.5)
    assert rows[PLAIN, 1]["acceptance"] is None
    assert rows[SPECULATIVE, 4]["tps"] is None
    assert (rows[PLAIN, 4]["failed"], rows[PLAIN, 4]["refused"]) == (1, 2)
    assert cell_figures(unfinished)["tps"] is None
    text = verdict(s, "")
    assert "over without it, by concurrency: 3.00 x at 1. Most tokens per second: 15.0 at" in text
    shown = notes(ABOUT | s)
    assert [note.partition(" ")[0] for note in shown] == ["Interrupted:", "Ended", "1", "2", "The", "Texts:"]
    page = sweep_report(ABOUT | s | {"verdict": "<so>"})
    assert page.count('data-chart="') == 3
    assert "&lt;so&gt;" in page


ABOUT: dict[str, Any] = {
    "version": "1", "date": "today", "answers": 6, "planned": 9, "interrupted": True, "failure": "gone",
    "problems": ["gone"],
    "server": {"url": "http://h/v1", "model": "<m>", "owner": "", "build": "b", "n_slots": 2},
    "settings": {"requests": 2, "n_tokens": 16, "temperature": 0.0, "runs": 2, "ignore_eos": False},
}  # fmt: skip


def test_a_sweep_without_answers_has_no_figures() -> None:
    s = summarise([ServingMeasurement(ServingCell(SERVED, 1, 1))], [SERVED])
    assert (s["rows"], s["speculative_against_plain"]) == ([], [])
    assert verdict(s, "why").startswith("Too little")
    assert sweep_report(ABOUT | s | {"verdict": ""}).count('data-chart="') == 0
