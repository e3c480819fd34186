"""Measuring servers, the parts that ask nobody: addresses, requests, streams, figures, words."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.bench.serving import figures, refusals
from specllama.bench.serving.address import address
from specllama.bench.serving.answers import BrokenStreamError, Reading, ServedAnswer, ServedPiece, said
from specllama.bench.serving.asks import (
    PLAIN,
    SERVED,
    SPECULATIVE,
    Cell,
    ServingRequest,
    body,
    order,
    prompts,
)
from specllama.bench.serving.figures import percentile, summarise
from specllama.bench.serving.report import report
from specllama.bench.serving.sweep import ServingMeasurement
from specllama.bench.serving.words import notes, verdict
from specllama.errors import NetworkError, UsageError

WANTED = ServingRequest([("a", "x"), ("b", "y")], (1, 2, 4), 3, 16, 0.0)


@pytest.mark.parametrize(
    ("text", "bases", "loopback"),
    [
        ("http://127.0.0.1:8080", ["http://127.0.0.1:8080/v1"], True),
        ("localhost:8080/v1/", ["http://localhost:8080/v1"], True),
        ("https://h/v1/chat/completions", ["https://h/v1"], False),
        ("h:1/v1/completions", ["http://h:1/v1"], False),
        ("https://h/api/v1", ["https://h/api/v1"], False),
        ("https://h/openai", ["https://h/openai/v1", "https://h/openai"], False),
        ("http://[::1]:80", ["http://[::1]:80/v1"], True),
    ],
)
def test_forms_of_addresses(text: str, bases: list[str], loopback: bool) -> None:
    found = address(text)
    assert (list(found.bases), found.loopback) == (bases, loopback)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert all(base.startswith(("http://", "https://")) for base in address(text).bases)


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
        Cell(s, c, r) for s in (SPECULATIVE, PLAIN) for c in (1, 2, 4) for r in (1, 2, 3)
    )
    pairs = list(zip(cells[::2], cells[1::2], strict=True))
    assert all((a.concurrency, a.run) == (b.concurrency, b.run) for a, b in pairs)
    assert {a.series for a, _ in pairs} == {SPECULATIVE, PLAIN}  # each is first now and then
    assert [c.run for c in order([SERVED], ServingRequest([], (1,), 1, 2, 0.0, first=5))] == [5]


def test_bodies() -> None:
    cells = list(order([SPECULATIVE, PLAIN], WANTED))
    texts = {c: body(WANTED, c, 0, "m")["messages"][0]["content"] for c in cells}
    assert len(set(texts.values())) == len(cells) / 2  # the series write the same texts
    assert len({len(text) for text in texts.values()}) == 1
    plain, other = body(WANTED, Cell(PLAIN, 1, 1), 1, ""), body(WANTED, Cell(SERVED, 1, 1), 1, "m")
    assert plain["speculation"] == {"enabled": False, "memory": False}
    assert body(WANTED, Cell(SPECULATIVE, 1, 1), 1, "")["speculation"] == {"enabled": True, "memory": False}
    assert "model" not in plain
    assert not {"speculation", "ignore_eos"} & other.keys()
    assert plain["seed"] == other["seed"] == 1001
    raw = body(
        ServingRequest([("a", "x")], (1,), 1, 2, 0.0, raw=True, ignore_eos=True), Cell(SERVED, 1, 1), 0, ""
    )
    assert raw["prompt"].endswith(" x")
    assert raw["ignore_eos"] is True
    assert "messages" not in raw


def read(*chunks: Any) -> ServedAnswer:
    answer = ServedAnswer(0)
    reading = Reading(answer)
    for i, chunk in enumerate(chunks):
        reading.take(chunk if isinstance(chunk, str) else json.dumps(chunk), i / 10)
    reading.end()
    return answer


def piece(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": None}], **more}


END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
USAGE: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 4}


@pytest.mark.parametrize(
    "figures_of",
    [
        {"usage": USAGE, "timings": {"draft_n": 6, "draft_n_accepted": 3}},
        {
            "usage": USAGE,
            "metrics": {"speculative_decoding": {"num_draft_tokens": 6, "num_accepted_draft_tokens": 3}},
        },
        {
            "usage": USAGE
            | {
                "completion_tokens_details": {
                    "accepted_prediction_tokens": 3,
                    "rejected_prediction_tokens": 3,
                }
            }
        },
    ],
)
def test_the_dialects_of_figures(figures_of: dict[str, Any]) -> None:
    answer = read(piece("a"), piece("b"), END, {"choices": [], **figures_of}, "[DONE]")
    assert (answer.n_tokens, answer.n_prompt, answer.n_drafted, answer.n_accept) == (4, 9, 6, 3)
    assert [p.at for p in answer.pieces] == [0.0, 0.1]
    assert answer.gaps() == [(pytest.approx(0.05), 2.0)]  # two tokens in each of two chunks


def test_what_counts_as_text() -> None:
    def choice(**of: Any) -> dict[str, Any]:
        return {"choices": [of]}

    chunks = [
        choice(delta={"role": "assistant", "content": ""}),
        choice(delta={"reasoning_content": "hm"}),
        choice(delta={"content": None, "tool_calls": [{"index": 0}]}),
        choice(text="raw"),
        choice(delta=5),
        {"choices": [7]},
        {"choices": None, "usage": None, "timings": 3, "metrics": {"speculative_decoding": []}},
        {"usage": {"completion_tokens": True, "prompt_tokens": -1}},
        END,
    ]
    answer = read(*chunks)
    assert (answer.n_chunks, answer.n_predict, answer.n_prompt, answer.n_drafted) == (3, None, None, None)


NAMES = st.sampled_from(("choices", "delta", "content", "usage", "completion_tokens", "timings", "draft_n",
                         "draft_n_accepted", "metrics", "speculative_decoding", "error", "text"))  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
SMALL = st.dictionaries(NAMES, SCALARS | st.dictionaries(NAMES, SCALARS, max_size=3), max_size=3)


@given(SCALARS | st.dictionaries(NAMES, SCALARS | SMALL | st.lists(SCALARS | SMALL, max_size=2), max_size=4))
def test_any_json_is_read_or_breaks_the_stream(found: Any) -> None:
    answer = ServedAnswer(0)
    with contextlib.suppress(BrokenStreamError):
        Reading(answer).take(json.dumps(found), 0.0)
    assert answer.n_tokens >= 0


@pytest.mark.parametrize("chunk", ["[1]", "{", {"error": {"message": "no\nmore"}}, {"error": "gone"}])
def test_streams_that_break(chunk: Any) -> None:
    with pytest.raises(BrokenStreamError):
        read(piece("a"), chunk)
    with pytest.raises(BrokenStreamError, match="in the middle"):
        read(piece("a"))
    assert said({"error": {"message": "no\n\x1b[2Jmore"}}) == "no ?[2Jmore"


def test_what_arrives_together_is_one_piece() -> None:
    answer = ServedAnswer(0)
    reading = Reading(answer)
    for at in (0.1, 0.2, 0.2002, 0.2008, 0.2011, 0.4):
        reading.take(json.dumps(piece("a")), at)
    assert [(p.at, p.n) for p in answer.pieces] == [(0.1, 1), (0.2, 3), (0.2011, 1), (0.4, 1)]
    assert answer.gaps()[0] == (pytest.approx(0.1 / 3), 3)


@pytest.mark.parametrize(
    ("after", "low", "high"),
    [("", 1, 1), ("0", 0.1, 0.1), ("3", 3, 3), ("99999999999", 10, 10), ("soon", 1, 1), ("-5", 1, 1)],
)
def test_retry_after(after: str, low: float, high: float) -> None:
    assert low <= refusals.wait({"Retry-After": after} if after else {}) <= high


def test_retry_after_a_date() -> None:
    import email.utils

    assert 1 < refusals.wait({"Retry-After": email.utils.formatdate(time.time() + 5)}) <= 5
    assert refusals.wait({"Retry-After": email.utils.formatdate(0)}) == 0.1


def test_percentiles() -> None:
    assert percentile([], 0.5) is None
    assert percentile([(5.0, 1.0)], 0.99) == 5
    hundred = [(float(i), 1.0) for i in range(100, 0, -1)]
    assert (percentile(hundred, 0.5), percentile(hundred, 0.99)) == (50, 99)
    assert percentile([(1.0, 9.0), (7.0, 1.0)], 0.9) == 1
    assert percentile([(1.0, 9.0), (7.0, 1.0)], 0.95) == 7


def cell(
    series: str, concurrency: int, run: int, seconds: float, *answers: ServedAnswer
) -> ServingMeasurement:
    return ServingMeasurement(Cell(series, concurrency, run), list(answers), seconds, True)


def answer(number: int = 0, digest: str = "d", n: int = 10, **more: Any) -> ServedAnswer:
    pieces = [ServedPiece(0.1 + 0.01 * i) for i in range(n)]
    return ServedAnswer(number, pieces, 0.5, n_predict=n, digest=digest, **more)


def test_figures_of_a_sweep() -> None:
    broken = ServedAnswer(1, problem=NetworkError("gone"), refused=2)
    measured = [
        cell(SPECULATIVE, 1, 1, 1.0, answer(n_drafted=8, n_accept=6)),
        cell(PLAIN, 1, 1, 2.0, answer(n_drafted=0, n_accept=0)),
        cell(SPECULATIVE, 1, 2, 0.5, answer(digest="other")),
        cell(PLAIN, 1, 2, 2.0, answer()),
        cell(PLAIN, 4, 1, 1.0, answer(), broken),
    ]
    unfinished = cell(SPECULATIVE, 4, 1, 1.0, answer())
    unfinished.complete = False
    s = summarise([*measured, unfinished, ServingMeasurement(Cell(PLAIN, 8, 1))], [SPECULATIVE, PLAIN])
    assert s.ratios == {1: 3.0}  # of 2 and 4
    assert (s.compared, s.different, s.counted) == (3, 1, True)
    rows = {(row.series, row.concurrency): row for row in s.rows}
    assert list(rows) == [(SPECULATIVE, 1), (SPECULATIVE, 4), (PLAIN, 1), (PLAIN, 4)]
    first = rows[SPECULATIVE, 1]
    assert (first.runs, first.tps, first.acceptance, first.answers) == (2, 15.0, 0.75, 2)
    assert first.ttft is not None
    assert first.gap is not None
    assert first.whole is not None
    assert (first.ttft.p50, first.gap.p50, first.whole.p99) == (0.1, pytest.approx(0.01), 0.5)
    assert rows[PLAIN, 1].acceptance is None
    assert rows[SPECULATIVE, 4].tps is None
    assert (rows[PLAIN, 4].failed, rows[PLAIN, 4].refused) == (1, 2)
    assert figures.tps(unfinished) is None
    text = verdict(s, "")
    assert "over without, by concurrency: 3.00 x at 1. Most tokens per second: 15.0 at" in text
    found = notes(s, ABOUT)
    assert [note.partition(" ")[0] for note in found] == ["Interrupted:", "Ended", "1", "2", "The", "Texts:"]
    page = report(s, ABOUT, "<so>")
    assert page.count("<svg") == 3
    assert "&lt;so&gt;" in page


ABOUT: dict[str, Any] = {
    "version": "1", "date": "today", "answers": 6, "planned": 9, "interrupted": True, "failure": "gone",
    "problems": ["gone"],
    "server": {"url": "http://h/v1", "model": "<m>", "owner": "", "build": "b", "n_slots": 2},
    "settings": {"requests": 2, "n_tokens": 16, "temperature": 0.0, "runs": 2, "ignore_eos": False},
}  # fmt: skip


def test_a_sweep_without_answers() -> None:
    s = summarise([ServingMeasurement(Cell(SERVED, 1, 1))], [SERVED])
    assert (list(s.rows), s.ratios) == ([], {})
    assert verdict(s, "why").startswith("Too little")
    assert report(s, ABOUT, "").count("<svg") == 0
