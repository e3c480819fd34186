"""What is said while an answer arrives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from specllama.cli.answer import generate
from specllama.client import protocol
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats

NOTE = "note: the answer repeats itself; Ctrl-C ends it\n"


def said(
    capsys: pytest.CaptureFixture[str], params: Mapping[str, Any], ids: list[int], ends: bool = False
) -> str:
    def events(_: protocol.Generate) -> Iterator[protocol.Message]:
        yield protocol.Started(1, 3, SamplingParams(**params))
        for at in range(0, len(ids), 5):
            yield protocol.Tokens([protocol.SequenceDelta(1, "x", ids[at : at + 5], [(1, "copy")], 4, 4)])
        yield protocol.Done(1, "", "stop", RunStats())

    client: Any = SimpleNamespace(generate=events, notices=[], send=lambda _: None)
    request = protocol.Generate(1, protocol.TextInput("a"), dict(params), end_loops=ends)
    generate(client, request, lambda _text, _runs: None)
    return capsys.readouterr().err


def test_a_repetition_is_noticed_once_where_nothing_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    loop, text = 300 * [1, 2, 3, 4, 5, 6], list(range(1500))
    assert said(capsys, {}, text + loop) == NOTE
    assert said(capsys, {}, text) == ""
    for limited in ({"max_tokens": 2000}, {"max_tokens": -1}, {"ignore_eos": True}):
        assert said(capsys, limited, loop) == ""
    assert said(capsys, {}, loop, ends=True) == ""
