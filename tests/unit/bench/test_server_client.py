"""Streamed answers of different servers, streams that break off, addresses, waits after a 429."""

from __future__ import annotations

import contextlib
import email.utils
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.bench.server_client import (
    BrokenStreamError,
    ServedAnswer,
    StreamReader,
    error_text,
    parse_address,
    retry_seconds,
)
from specllama.errors import UsageError


def read(*chunks: Any) -> ServedAnswer:
    answer = ServedAnswer(0)
    reader = StreamReader(answer)
    for i, chunk in enumerate(chunks):
        reader.read(chunk if isinstance(chunk, str) else json.dumps(chunk), i / 10)
    reader.end()
    return answer


def piece(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": None}], **more}


END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


USAGE: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 4}


@pytest.mark.parametrize(
    "figures",
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
def test_figures_are_read_in_the_dialects_of_all_servers(figures: dict[str, Any]) -> None:
    answer = read(piece("a"), piece("b"), END, {"choices": [], **figures}, "[DONE]")
    assert (answer.n_tokens, answer.n_prompt, answer.n_drafted, answer.n_accept) == (4, 9, 6, 3)
    assert [p.at for p in answer.pieces] == [0.0, 0.1]
    assert answer.gaps() == [(pytest.approx(0.05), 2.0)]  # two tokens in each of two chunks


def test_only_text_and_tool_calls_count_as_output() -> None:
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
def test_any_json_is_read_or_raises_a_broken_stream(chunk: Any) -> None:
    answer = ServedAnswer(0)
    with contextlib.suppress(BrokenStreamError):
        StreamReader(answer).read(json.dumps(chunk), 0.0)
    assert answer.n_tokens >= 0


@pytest.mark.parametrize("chunk", ["[1]", "{", {"error": {"message": "no\nmore"}}, {"error": "gone"}])
def test_an_error_or_an_early_end_is_a_broken_stream(chunk: Any) -> None:
    with pytest.raises(BrokenStreamError):
        read(piece("a"), chunk)
    with pytest.raises(BrokenStreamError, match="in the middle"):
        read(piece("a"))
    assert error_text({"error": {"message": "no\n\x1b[2Jmore"}}) == "no ?[2Jmore"


def test_chunks_that_arrive_together_are_one_piece() -> None:
    answer = ServedAnswer(0)
    reader = StreamReader(answer)
    for at in (0.1, 0.2, 0.2002, 0.2008, 0.2011, 0.4):
        reader.read(json.dumps(piece("a")), at)
    assert [(p.at, p.n) for p in answer.pieces] == [(0.1, 1), (0.2, 3), (0.2011, 1), (0.4, 1)]
    assert answer.gaps()[0] == (pytest.approx(0.1 / 3), 3)


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
def test_an_address_gives_the_urls_to_try(text: str, bases: list[str], loopback: bool) -> None:
    address = parse_address(text)
    assert (list(address.bases), address.loopback) == (bases, loopback)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert all(base.startswith(("http://", "https://")) for base in parse_address(text).bases)


@pytest.mark.parametrize(
    ("after", "low", "high"),
    [("", 1, 1), ("0", 0.1, 0.1), ("3", 3, 3), ("99999999999", 10, 10), ("soon", 1, 1), ("-5", 1, 1)],
)
def test_retry_after_is_obeyed_within_limits(after: str, low: float, high: float) -> None:
    assert low <= retry_seconds({"Retry-After": after} if after else {}) <= high


def test_retry_after_may_be_a_date() -> None:
    assert 1 < retry_seconds({"Retry-After": email.utils.formatdate(time.time() + 5)}) <= 5
    assert retry_seconds({"Retry-After": email.utils.formatdate(0)}) == 0.1
