"""The order in which requests come to a slot and prompts are read."""

from __future__ import annotations

from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.scheduler import FairQueue, next_to_fill
from specllama.core.sequence import Generation, Request


def generation(turn: int = 0) -> Generation:
    params = SamplingParams()
    return Generation(Request([1], params, 0, turn=turn), KeyedSampler(params, 0, 8), frozenset(), 16)


class TestFairQueue:
    def test_one_after_the_other(self) -> None:
        line, waiting = FairQueue(), list[Generation]()
        made = [generation() for _ in range(5)]
        for one in made:
            line.join(waiting, one)
        assert [waiting.index(one) for one in made] == list(range(5))

    def test_a_request_of_many_does_not_keep_the_others_waiting(self) -> None:
        line, waiting = FairQueue(), list[Generation]()
        many = [generation(i) for i in range(8)]
        for one in many:
            line.join(waiting, one)
        late = generation()
        line.join(waiting, late)
        assert waiting.index(late) == 1
        assert [one for one in waiting if one is not late] == many

    def test_nobody_waits_for_ever(self) -> None:
        """However many newcomers there are, the last text of a request gets its turn."""
        line, waiting = FairQueue(), list[Generation]()
        last = generation(7)
        line.join(waiting, generation())
        line.join(waiting, last)
        passed = []
        while last in waiting:
            line.join(waiting, generation())
            passed.append(waiting.pop(0))
            assert len(passed) < 60
        assert len(passed) > 7

    def test_prompts_are_read_in_turn(self) -> None:
        long, short = generation(), generation()
        long.n_chunks = 3
        assert next_to_fill([long, short]) is short
        short.n_chunks = 3
        assert next_to_fill([long, short]) is long
        assert next_to_fill([]) is None
