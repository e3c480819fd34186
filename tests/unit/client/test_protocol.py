"""The lines between a front and its engine process."""

from __future__ import annotations

import dataclasses
import json
from typing import get_args

import pytest

from specllama.client import protocol as m
from specllama.client.protocol import decode, encode
from specllama.core.stats import RunStats

EXAMPLES = [
    m.Load({"target": {"path": "a b\n.gguf"}, "draft": None}, verbose=True),
    m.Generate(3, prompt="line\nline \u2028 \x00 😀", params={"temperature": 0.5, "seed": 2**64 - 1}),
    m.Generate(4, messages=[{"role": "user", "content": "\n"}], speculate=False, variables={"tools": []}),
    m.Generate(5, ids=[1, 2, 3], forced=[4, 5]),
    m.Cancel(3),
    m.Calibrate(0.25),
    m.Loading("draft", 0.5),
    m.Ready({"n_ctx": 4096}),
    m.Started(3, 17, {"seed": 9}),
    m.Prefilled(3, 16, 17),
    m.Tokens(
        [
            m.SequenceDelta(3, "é", [5, 6], [(1, "copy")], 4, 1),
            m.SequenceDelta(4, "", [7], [], 0, 0, [{"logprob": -0.5}]),
        ]
    ),
    m.Done(3, "text", "stop", RunStats(n_predict=3, round_seconds={2: (1, 0.5)}), [(4, "target")]),
    m.Failed({"kind": "UsageError", "message": "no", "hint": ""}, 3),
    m.Failed({"kind": "GGUFError", "message": "no", "hint": ""}),
    m.Notice("slow"),
    m.Calibrated({"t1": 0.1, "epsilon": None}),
    m.Configure(7, 2, 0.5),
    m.Configured(),
    m.Tune(6, [["edit", "a\nb"]], [{"path": "d.gguf"}], 32, True, {"enable_thinking": False}),
    m.Tuning(6, "t(n)", 0.25, 7.5),
    m.TuneMeasurement(6, "epsilon", {"value": None, "n_rows": 0, "reason": "why"}),
    m.Tuned(6, 12.5, True),
    m.Inspect(),
    m.Inspected({"version": "1"}),
    m.Serve("127.0.0.1:50052", ["CPU"], 2, 10**10, "/cache", verbose=True),
    m.Serving({"endpoint": "127.0.0.1:50052"}),
    m.Tokenize(5, "a b", add_special=True),
    m.Detokenize(6, [1, 2]),
    m.Render(7, [{"role": "user", "content": "x"}], {"enable_thinking": False}),
    m.GetSlots(8),
    m.QueryResult(8, {"slots": []}),
    m.Heartbeat(0.5, 30.0),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message):
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


def test_every_kind_has_an_example():
    assert {type(e) for e in EXAMPLES} == set(get_args(m.Message))


def test_every_kind_is_plain_data():
    for kind in get_args(m.Message):
        assert dataclasses.is_dataclass(kind)
        assert kind.__dataclass_params__.frozen
        assert kind.__doc__.startswith(("To the engine", "From the engine"))


@pytest.mark.parametrize("text", ["hi \ud800 there", "\udfff"])
def test_lone_surrogates_cross_the_pipe(text):
    """A terminal can deliver them; the other end decides what to do."""
    assert decode(encode(m.Notice(text))).text == text


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"hello\n",
        b"{}\n",
        b"[]\n",
        b'["Cancel"]\n',
        b'["Explode",{}]\n',
        b'["Message",{}]\n',
        b'["Cancel",{"id":1,"more":2}]\n',
        b'["Cancel",{"id":"1"}]\n',
        b'["Cancel",{"id":true}]\n',
        b'["Loading",{"model":"draft","share":null}]\n',
        b'["Tokens",{"items":[[1,"a",[2]]]}]\n',
        b'["Cancel",{}]\n',
        b'["Cancel",[1]]\n',
        b'[["Cancel"],{"id":1}]\n',
        b"3\n",
        b"null\n",
        b"\xff\n",
    ],
)
def test_what_no_end_wrote_is_refused(line):
    with pytest.raises(ValueError):
        decode(line)


def test_messages_are_compact():
    assert encode(m.Cancel(3)) == json.dumps(["Cancel", {"id": 3}], separators=(",", ":")).encode() + b"\n"
