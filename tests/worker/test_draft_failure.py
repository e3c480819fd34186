"""A draft context that fails during a request: one notice, the same text, and copying continues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.client import protocol as m
from specllama.client.stream import fold
from specllama.client.tune_messages import Calibrate, Calibrated, Configure, Configured
from specllama.core.interfaces import BatchRow, DecodeError
from specllama.drafters.model import ModelDrafter
from specllama.llama.context import LlamaContext
from tests.support.front import Front, SlowTarget
from tests.support.generations import generate

CODE = "def total(items):\n    result = 0\n    for i in items:\n        result += i\n    return result\n"
RENAME = [{"role": "user", "content": f"Rename `result` to `payload` in this code:\n{CODE}"}]
MORE = {"role": "user", "content": "Once more, please."}
PARAMS = {"max_tokens": 60, "temperature": 0}


class Failing:
    """Makes the draft context fail after n decodes."""

    def __init__(self, front: Front, n: int) -> None:
        loaded = front.core.loaded
        assert loaded is not None
        assert loaded.draft is not None
        (self.drafter,) = (d for d in loaded.drafters if isinstance(d, ModelDrafter))
        self.decode, self.n_good, self.n_decodes = loaded.draft.context.decode, n, 0
        loaded.draft.context.decode = self  # type: ignore[method-assign]

    def __call__(self, batch: Sequence[BatchRow], *others: Any) -> np.ndarray:
        self.n_decodes += 1
        if self.n_decodes > self.n_good:
            raise DecodeError("llama_decode answered -3: device lost")
        return self.decode(batch, *others)


@pytest.fixture(params=[7, None], ids=["fixed", "auto"])
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    front = Front.of_pair(tmp_path, request.param)
    SlowTarget(front)
    yield front
    front.close()


def answer(front: Front, id_: int, messages: Sequence[dict[str, str]], **more: object) -> tuple[str, m.Done]:
    output = front.ask(id_, messages=list(messages), params=PARAMS, **more)
    done = output[-1]
    assert isinstance(done, m.Done), output
    return fold(output).text, done


def notices(front: Front) -> list[str]:
    return [message.text for message in front.messages if isinstance(message, m.Notice)]


@pytest.mark.parametrize("n", [0, 1, 9])
def test_a_failing_draft_gives_one_notice_and_the_same_text(front: Front, n: int) -> None:
    plain, _ = answer(front, 1, RENAME, speculate=False)
    turn = [*RENAME, {"role": "assistant", "content": plain}, MORE]
    plain_turn, _ = answer(front, 2, turn, speculate=False, follows=1)
    assert front.core.loaded is not None
    context, failing = front.core.loaded.draft.context, Failing(front, n)
    assert context is not None
    assert answer(front, 3, RENAME)[0] == plain
    assert failing.n_decodes == n + 1
    assert notices(front) == [
        "the draft failed (llama_decode answered -3: device lost); continuing without it"
    ]
    # The next turn of the chat reuses the ids of the turn in which the draft failed.
    text, done = answer(front, 4, turn, follows=3)
    assert text == plain_turn
    assert done.stats.n_reused > 0
    assert "model" not in done.stats.drafted_by
    # No policy uses the draft again, and its memory is freed.
    for draft_max in (7, None, 3):
        front.messages.clear()
        front.core.handle(Configure(draft_max))
        assert front.messages == [Configured()]
        text, done = answer(front, 5, RENAME)
        assert text == plain
        assert set(done.stats.drafted_by) <= {"copy"}
        assert notices(front) == []
        assert done.stats.drafted_by["copy"] > 0
    assert failing.n_decodes == n + 1
    assert front.core.loaded.draft is None
    assert context.handle is None
    front.messages.clear()
    front.core.handle(Calibrate(0.05))
    assert isinstance(front.messages[-1], Calibrated)


def test_the_planner_drops_a_draft_that_failed_under_another_policy(tmp_path: Path) -> None:
    """The planner is kept while another policy is in use."""
    front = Front.of_pair(tmp_path)
    try:
        plain, _ = answer(front, 1, RENAME, speculate=False)
        front.core.handle(Configure(5))
        failing = Failing(front, 3)
        assert answer(front, 2, RENAME)[0] == plain
        assert failing.n_decodes == 4
        front.core.handle(Configure(None))
        for id_ in range(3, 8):
            assert answer(front, id_, RENAME)[0] == plain
        assert failing.n_decodes == 4
    finally:
        front.close()


def test_the_draft_is_freed_if_the_request_is_cancelled(tmp_path: Path) -> None:
    front = Front.of_pair(tmp_path, 5)
    try:
        failing = Failing(front, 3)
        front.core.handle(generate(1, messages=RENAME, params={"max_tokens": 400, "ignore_eos": True}))
        while failing.n_decodes < 4:
            front.core.step()
        front.core.handle(m.Cancel(1))
        assert front.core.loaded is not None
        assert front.core.loaded.draft is None
        front.core.handle(Configure(7))
        answer(front, 2, RENAME)
        assert (failing.n_decodes, notices(front)) == (4, [])
    finally:
        front.close()


def test_draft_and_target_fail_in_the_same_round(tmp_path: Path) -> None:
    """The request fails, the notice is sent nevertheless, and the next request is answered."""
    front = Front.of_pair(tmp_path, 5)
    try:
        plain, _ = answer(front, 1, RENAME, speculate=False)
        assert front.core.loaded is not None
        context = front.core.loaded.context
        failing, decode = Failing(front, 2), context.decode

        def fail_too(batch: Sequence[BatchRow], *others: Any) -> np.ndarray:
            if failing.n_decodes > failing.n_good:
                raise DecodeError("llama_decode answered -3")
            return decode(batch, *others)

        context.decode = fail_too  # type: ignore[method-assign]
        output = front.ask(2, messages=RENAME, params=PARAMS)
        assert isinstance([s for s in output if not isinstance(s, m.Notice)][-1], m.Failed)
        assert len(notices(front)) == 1
        context.decode = decode  # type: ignore[method-assign]
        assert front.core.loaded.draft is None
        assert answer(front, 3, RENAME)[0] == plain
    finally:
        front.close()


def test_a_draft_that_cannot_decode_at_all_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first decode is part of the load."""
    decode, made = LlamaContext.decode, []

    def fail_second(self: LlamaContext, batch: Sequence[BatchRow], *filled: int) -> np.ndarray:
        if self not in made:
            made.append(self)
        if self.model.settings.path.endswith("pydoc-draft.gguf"):
            raise DecodeError("llama_decode answered -3: device lost")
        return decode(self, batch, *filled)

    monkeypatch.setattr(LlamaContext, "decode", fail_second)
    front = Front.of_pair(tmp_path, 5)
    try:
        assert notices(front) == ["the draft cannot be used: llama_decode answered -3: device lost"]
        ready = front.messages[-1]
        assert isinstance(ready, m.Ready)
        assert ready.info.draft is None
        assert ready.info.drafters == ("grammar", "copy")
        assert [c.handle is None for c in made] == [True, False]
        assert answer(front, 1, RENAME)[0]
    finally:
        front.close()
