"""The writer of llama-server's native /completion, over generated events."""

from __future__ import annotations

import json
import math
import time
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.client.protocol import CandidateLogprob, PositionLogprobs
from specllama.core.gain import PlainRate
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats
from specllama.errors import EngineError
from specllama.server.dialects.llama_server.completion import NativeOptions, NativeWriter
from specllama.server.dialects.shared.writer import AnswerOptions
from specllama.server.events import End, Prefill, RoundEvent, RunTotals, Start, TextEvent
from tests.support.event_scripts import Script, scripts
from tests.support.examples import examples

OWN_TIME_SECONDS = 0.2e-3  # for each streamed token
EVENTS = scripts(most_choices=3, calls=False, reasoning=False, logprobs=True)


def chunks(data: bytes) -> list[dict[str, Any]]:
    assert data.endswith(b"\n\n") or not data
    lines = data.decode().split("\n\n")[:-1]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def native_writer(**options: Any) -> NativeWriter:
    """Of options of this API and of all."""
    own = {f.name for f in fields_of(NativeOptions)}
    of_all = {name: value for name, value in options.items() if name not in own}
    return NativeWriter(
        AnswerOptions("m", **of_all), NativeOptions(**{n: v for n, v in options.items() if n in own})
    )


def streamed(script: Script, **options: Any) -> list[dict[str, Any]]:
    writer = native_writer(**options)
    return chunks(b"".join(writer.stream(batch, script.n) for batch in script.batches) + writer.end())


def whole(script: Script, **options: Any) -> list[dict[str, Any]]:
    writer = native_writer(several=script.n > 1, **options)
    writer.fold.add(script.events)
    answer = json.loads(json.dumps(writer.answer()))
    assert isinstance(answer, list) == (script.n > 1)
    return answer if script.n > 1 else [answer]


@given(EVENTS, st.booleans())
@settings(max_examples=examples(200))
def test_the_whole_is_the_fold_of_the_stream(script: Script, final_probs: bool) -> None:
    options = {"final_probs": final_probs, "return_tokens": True}
    parts = streamed(script, **options)
    for answer in whole(script, **options):
        own = [part for part in parts if part["index"] == answer["index"]]
        *pieces, last = own
        assert [part["stop"] for part in own] == [False] * len(pieces) + [True]
        assert "".join(piece["content"] for piece in pieces) == answer.pop("content")
        assert [i for piece in pieces for i in piece["tokens"]] == answer.pop("tokens")
        probabilities = [p for piece in pieces for p in piece.get("completion_probabilities", [])]
        assert probabilities == answer.pop("completion_probabilities", [])
        assert (last.pop("content"), last.pop("tokens")) == ("", [])
        assert last == answer


def test_with_probabilities_each_token_has_its_own_chunk() -> None:
    pieces = [("a", 1), ("bc", 2), ("d", 3)]
    probs = [PositionLogprobs(CandidateLogprob(i, t, list(t.encode()), -1.0), [], len(t)) for t, i in pieces]
    event = TextEvent(0, "abcd", logprobs=probs, ids=[1, 2, 3])
    script = Script([[Start(0, 0, 7, 1), event, ended()]], 1)
    *pieces_sent, _ = streamed(script)
    assert [(c["content"], c["tokens"], len(c["completion_probabilities"])) for c in pieces_sent] == [
        ("a", [1], 1), ("bc", [2], 1), ("d", [3], 1)
    ]  # fmt: skip


def test_tokens_that_share_a_character_share_a_chunk() -> None:
    probs = [PositionLogprobs(CandidateLogprob(i, "\ufffd", [1], -1.0), [], i - 1) for i in (1, 2)]
    event = TextEvent(0, "é", logprobs=probs, ids=[1, 2])
    *pieces_sent, _ = streamed(Script([[Start(0, 0, 7, 1), event, ended()]], 1))
    assert [(c["content"], c["tokens"], len(c["completion_probabilities"])) for c in pieces_sent] == [
        ("é", [1, 2], 2)
    ]


def test_probabilities_after_sampling_have_their_own_names() -> None:
    chosen = CandidateLogprob(5, "a", [97], math.log(0.25))
    impossible = CandidateLogprob(6, "b", [98], None)
    event = TextEvent(0, "a", logprobs=[PositionLogprobs(chosen, [chosen, impossible])], ids=[5])
    script = Script([[Start(0, 0, 7, 1), event, ended()]], 1)
    (entry,) = whole(script, final_probs=True)[0]["completion_probabilities"]
    assert entry["prob"] == pytest.approx(0.25)
    assert "logprob" not in entry
    assert [top["prob"] for top in entry["top_probs"]] == pytest.approx([0.25, 0.0])
    (entry,) = whole(script)[0]["completion_probabilities"]
    assert entry["logprob"] == pytest.approx(math.log(0.25))
    assert entry["top_logprobs"][1]["logprob"] == -9999.0


@pytest.mark.parametrize(
    ("reason", "stop_string", "stop_type", "truncated"),
    [
        ("stop", None, "eos", False),
        ("stop", "###", "word", False),
        ("length", None, "limit", False),
        ("context", None, "limit", True),
    ],
)
def test_stop_types(reason: str, stop_string: str | None, stop_type: str, truncated: bool) -> None:
    script = Script([[Start(0, 0, 7, 1), ended(reason, stop_string)]], 1)
    (whole_answer,) = whole(script)
    assert (whole_answer["stop_type"], whole_answer["truncated"]) == (stop_type, truncated)
    assert whole_answer["stopping_word"] == (stop_string or "")
    assert (whole_answer["id_slot"], whole_answer["tokens_cached"]) == (3, 10)


def test_response_fields_selects_fields() -> None:
    script = Script([[Start(0, 0, 7, 1, SamplingParams(top_k=9)), TextEvent(0, "a"), ended()]], 1)
    fields = ["content", "generation_settings/top_k", "timings/predicted_n", "nothing", "content/x", "a/b/c"]
    assert whole(script, fields=fields) == [
        {"content": "a", "generation_settings/top_k": 9, "timings/predicted_n": 4}
    ]
    assert "content" not in whole(script, fields=["tokens_cached"])[0]


def test_response_fields_may_name_the_trace_of_the_last_chunk() -> None:
    last = replace(ended(), round=RoundEvent(2, 1, 0.1))
    script = Script([[Start(0, 0, 7, 1, SamplingParams()), TextEvent(0, "a"), last]], 1)
    shown = {"drafted": 2, "accepted": 1, "ms": 100.0, "n_predict": 0}
    assert streamed(script, trace=True, fields=["speculation"])[-1]["speculation"]["round"] == shown
    assert streamed(script, trace=True, fields=["speculation/round"])[-1] == {"speculation/round": shown}
    assert streamed(script, fields=["speculation/round"])[-1] == {}


def test_generation_settings_show_banned_tokens() -> None:
    params = SamplingParams(ignore_eos=True, logit_bias={7: 1.5, 8: -math.inf})
    (whole_answer,) = whole(Script([[Start(0, 0, 7, 1, params), ended()]], 1), model_facts=lambda: ((2,), ()))
    assert whole_answer["generation_settings"]["logit_bias"] == [
        {"token": 7, "bias": 1.5}, {"token": 8, "bias": None}, {"token": 2, "bias": None}
    ]  # fmt: skip


def test_progress_and_timings_as_it_goes() -> None:
    filled = [Prefill(0, 3, 9, 3, 0.0), Prefill(0, 9, 9, 3, 0.5)]
    text = TextEvent(0, "a", round=RoundEvent(2, 1, 0.1, RunTotals(3, 2, 1, 0.2)), ids=[1, 2, 3])
    script = Script([[Start(0, 0, 9, 1), *filled, text, ended()]], 1)
    first, second, piece, _ = streamed(script, progress=True, timings=True)
    assert first["prompt_progress"] == {"total": 9, "cache": 3, "processed": 3, "time_ms": 0}
    assert second["prompt_progress"] == {"total": 9, "cache": 3, "processed": 9, "time_ms": 500}
    assert (first["timings"]["prompt_n"], first["timings"]["prompt_ms"]) == (0, 0.0)
    timings = piece["timings"]
    assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"], timings["draft_n"]) == (
        6,
        3,
        3,
        2,
    )
    assert timings["predicted_per_second"] == pytest.approx(10.0)
    only_pieces = streamed(script)
    assert len(only_pieces) == 2
    assert "timings" not in only_pieces[0]


def test_an_error_in_a_stream() -> None:
    (chunk,) = chunks(NativeWriter(AnswerOptions("m")).error_event(EngineError("it broke")))
    assert chunk["error"]["message"] == "it broke"
    assert chunk["error"]["type"] == "server_error"


def test_time_per_chunk_is_bounded() -> None:
    """At four times its bound, for a busy machine; the least of three runs."""
    texts = [TextEvent(0, "some text ", [(10, "model")], ids=[5]) for _ in range(2000)]
    best = min(measured([[Start(0, 0, 7, 1)], *([text] for text in texts), [ended()]]) for _ in range(3))
    assert best / len(texts) < 4 * OWN_TIME_SECONDS


def measured(batches: list[Any]) -> float:
    writer, began = NativeWriter(AnswerOptions("m")), time.perf_counter()
    for batch in batches:
        writer.stream(batch, 1)
    return time.perf_counter() - began


def ended(reason: str = "stop", stop_string: str | None = None) -> End:
    stats = RunStats(n_prompt=7, n_evaluated=7, n_predict=4)
    return End(0, reason, stop_string, stats, PlainRate(None, "none", 0), slot=3)
