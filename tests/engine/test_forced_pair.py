"""Teacher forcing with the embedded pair in the real llama.cpp, and through the engine core."""

from __future__ import annotations

import time

import pytest

from specllama.client import protocol as m
from specllama.core.policy.base import Policy
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.llama.model import LlamaModel
from tests.engine.test_pair import CODE, PROMPTS, Make, chat_ids, engine_for, run
from tests.support.front import Front

RENAMED = f"```python\n{CODE.replace('result', 'payload')}```"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_output_is_the_forced_text_with_any_drafter(
    target: LlamaModel, draft: LlamaModel, context: Make, temperature: float
) -> None:
    forced = target.tokenize(RENAMED, False, False)
    params = SamplingParams(temperature=temperature)
    request = Request(chat_ids(target, PROMPTS["rename"]), params, 3, forced=forced)
    main, small = context(target), context(draft)
    model = ModelDrafter(small, target.n_vocab, True, target.end_ids)
    policies: list[Policy] = [
        Fixed([], 0),
        Fixed([CopyDrafter()], 7),
        Fixed([model], 3),
        Fixed([CopyDrafter(), model], 16),
        Planner([CopyDrafter(), model], time.perf_counter),
    ]
    accepted = []
    for policy in policies:
        main.truncate(0, 0)
        (got,) = run(engine_for(target, main, policy), request)
        assert (got.output, got.finish_reason) == (forced, "length")
        assert got.stats.n_accept + got.stats.rounds == len(forced) - 1
        accepted.append(got.stats.n_accept)
    assert accepted[0] == 0
    assert min(accepted[1:4]) > len(forced) / 4  # the text is an edited copy


def test_the_models_own_text_is_always_accepted_from_itself(target: LlamaModel, context: Make) -> None:
    params = SamplingParams(temperature=0, max_tokens=41, ignore_eos=True)
    ids = chat_ids(target, PROMPTS["explain"])
    main = context(target)
    (own,) = run(engine_for(target, main, Fixed([], 0)), Request(ids, params, 1))
    main.truncate(0, 0)
    policy = Fixed([ModelDrafter(context(target), target.n_vocab)], 7)
    (got,) = run(engine_for(target, main, policy), Request(ids, params, 1, forced=own.output))
    assert got.output == own.output
    assert (got.stats.rounds, got.stats.n_accept) == (5, 35)
    main.truncate(0, 0)
    (other,) = run(engine_for(target, main, policy), Request(ids, params, 1, forced=own.output[::-1]))
    assert other.output == own.output[::-1]
    assert other.stats.n_accept < 10


class TestThroughTheEngineCore:
    def test_text_and_ids_can_be_forced(self, front: Front) -> None:
        ids = front.prompt_ids(prompt="x = 1\n")
        assert front.text(prompt="zip", forced=RENAMED, params={"temperature": 0}) == RENAMED
        done = front.messages[-1]
        assert isinstance(done, m.Done)
        assert done.reason == "length"
        assert front.ids(prompt="zip", forced=list(ids)) == ids
        assert front.ids(prompt="zip", forced=list(ids), speculate=False) == ids

    def test_stop_strings_and_control_tokens_do_not_end_a_forced_text(self, front: Front) -> None:
        text = "one<|im_end|>two\n"
        params = {"stop": ["one", "\n"], "max_tokens": 40}
        assert front.text(prompt="zip", forced=text, params=params) == text

    def test_max_tokens_limits_a_forced_text(self, front: Front) -> None:
        full = front.ids(prompt="zip", forced=RENAMED)
        assert front.ids(prompt="zip", forced=RENAMED, params={"max_tokens": 5}) == full[:5]

    @pytest.mark.parametrize(
        ("request_", "needle"),
        [
            ({"forced": []}, "empty"),
            ({"forced": ""}, "empty"),
            ({"forced": [1 << 20]}, "token ids of a given text must be from 0 to"),
            ({"forced": [-1]}, "token ids"),
            ({"forced": [1.5]}, "token ids"),
            ({"forced": "word " * 600}, "and the context 512"),
            ({"forced": "x", "params": {"grammar": 'root ::= "x"'}}, "cannot be combined"),
        ],
    )
    def test_rejects_invalid_forced_texts(
        self, front: Front, request_: dict[str, object], needle: str
    ) -> None:
        assert needle in front.fails(prompt="zip", **request_)
        assert front.ids(prompt="zip", params={"max_tokens": 1})
