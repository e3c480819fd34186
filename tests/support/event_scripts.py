"""Generated streams of events, for the writers of all APIs: whatever a model and the engine can come up with.
Use: @given(scripts()) on a test with one argument, a Script.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from specllama.client.protocol import CandidateLogprob, PositionLogprobs
from specllama.core.gain import PlainRate
from specllama.core.stats import RunStats
from specllama.server.events import (
    CallArgs,
    CallClose,
    CallOpen,
    End,
    Event,
    Reasoning,
    RoundEvent,
    Start,
    TextEvent,
)

_ALPHANUMERICS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6) | st.sampled_from(
    ["\n\n", " ", '"', "\\", "data: x\n\n", "</tool_call>", "{}", "\u2028", "\r\n", "😀"]
)
_NAMES = st.sampled_from(["f", "get_weather", "mcp__files__read", "a-b", "ns.do"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | _TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXTS, inner, max_size=2),
    max_leaves=4,
)
_ARGUMENTS = st.dictionaries(_TEXTS, _VALUES, max_size=2)
_ROUNDS = st.none() | st.just(RoundEvent(3, 2, 0.01))


@dataclass(frozen=True)
class Script:
    """The events of an answer with n choices. batches: as they arrive, none is empty."""

    batches: Sequence[Sequence[Event]]
    n: int

    @property
    def events(self) -> list[Event]:
        """All of them in order."""
        return [event for batch in self.batches for event in batch]


@st.composite
def scripts(
    draw: st.DrawFn,
    *,
    most_choices: int = 1,
    calls: bool = True,
    reasoning: bool = True,
    logprobs: bool = False,
) -> Script:
    """The events of an answer. Texts and calls come in any order; a last call may be cut off. logprobs: of
    the texts, one token a piece.
    """
    n = draw(st.integers(1, most_choices))
    choices = [draw(_choice(i, calls, reasoning, logprobs)) for i in range(n)]
    events: list[Event] = [Start(i, 0, 7, 5 + i) for i in range(n)]
    while any(choices):
        events.append(choices[draw(st.sampled_from([i for i in range(n) if choices[i]]))].pop(0))
    return Script(draw(_cut(events)), n)


@st.composite
def _choice(draw: st.DrawFn, index: int, calls: bool, reasoning: bool, logprobs: bool) -> list[Event]:
    """The events of one choice after its start."""
    found: list[Event] = []
    if reasoning:
        for text in draw(st.lists(_TEXTS, max_size=2)):
            found.append(Reasoning(index, text, [(len(text), "target")], draw(_ROUNDS)))
    reason = draw(st.sampled_from(["stop", "stop", "length", "context"]))
    stop_string = draw(st.sampled_from([None, "###"])) if reason == "stop" else None
    n_calls = 0
    items = draw(st.lists(st.sampled_from(["text", "call"] if calls else ["text"]), max_size=4))
    for i, item in enumerate(items):
        if item == "text":
            found += _text(index, draw(st.lists(_TEXTS, min_size=1, max_size=3)), logprobs)
            continue
        may_be_cut = i == len(items) - 1 and (reason != "stop" or stop_string is not None)
        found += draw(_call(index, n_calls, may_be_cut))
        n_calls += 1
    stats = RunStats(n_prompt=7, n_evaluated=7, n_predict=len(found), n_drafted=4, n_accept=2)
    stats.reached, stats.accepted_at = [2, 2], [1, 1]
    n_reasoning = sum(isinstance(event, Reasoning) for event in found)
    ids = [2] if reason == "stop" and stop_string is None else []
    probs = [_logprob("")] if ids and logprobs else []
    end = End(index, reason, stop_string, stats, PlainRate(None, "none", 0), n_reasoning, ids, 0, probs)
    return [*found, end]


def _text(index: int, texts: Sequence[str], logprobs: bool) -> list[Event]:
    return [
        TextEvent(index, text, [(len(text), "copy")], [_logprob(text)] if logprobs else [], ids=[5])
        for text in texts
    ]


def _logprob(text: str) -> PositionLogprobs:
    chosen = CandidateLogprob(5, text, list(text.encode()), -0.5)
    return PositionLogprobs(chosen, [chosen], len(text))


@st.composite
def _call(draw: st.DrawFn, index: int, number: int, may_be_cut: bool) -> list[Event]:
    arguments = json.dumps(draw(_ARGUMENTS), ensure_ascii=draw(st.booleans()))
    cut = may_be_cut and draw(st.booleans())
    if cut:
        arguments = arguments[: draw(st.integers(0, len(arguments) - 1))]
    id_ = draw(st.text(_ALPHANUMERICS, min_size=22, max_size=22)) + f"{index}{number}"  # unique
    found: list[Event] = [CallOpen(index, number, id_, draw(_NAMES), draw(_ROUNDS))]
    for piece in draw(_cut(arguments)):
        found.append(CallArgs(index, number, piece, [(len(piece), "grammar")], draw(_ROUNDS)))
    return found if cut else [*found, CallClose(index, number)]


@st.composite
def _cut(draw: st.DrawFn, whole: Any) -> list[Any]:
    """A text or list in parts, none of them empty."""
    if not whole:
        return []
    inner = draw(st.sets(st.integers(1, len(whole) - 1), max_size=4)) if len(whole) > 1 else set()
    ends = [0, *sorted(inner), len(whole)]
    return [whole[a:b] for a, b in pairwise(ends)]
