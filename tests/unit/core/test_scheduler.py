"""The order in which requests get slots and prompts are evaluated."""

from __future__ import annotations

from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.scheduler import FairQueue, next_to_fill
from specllama.core.sequence import Generation, Request


def generation(turn: int = 0, owner: str = "") -> Generation:
    params = SamplingParams()
    return Generation(
        Request([1], params, 0, turn=turn, owner=owner), KeyedSampler(params, 0, 8), frozenset(), 16
    )


class TestFairQueue:
    def test_first_come_first_served(self) -> None:
        queue, waiting = FairQueue(), list[Generation]()
        arrived = [generation() for _ in range(5)]
        for one in arrived:
            queue.join(waiting, one)
        assert [waiting.index(one) for one in arrived] == list(range(5))

    def test_a_request_of_many_texts_lets_later_requests_pass(self) -> None:
        queue, waiting = FairQueue(), list[Generation]()
        many = [generation(i) for i in range(8)]
        for one in many:
            queue.join(waiting, one)
        late = generation()
        queue.join(waiting, late)
        assert waiting.index(late) == 1
        assert [one for one in waiting if one is not late] == many

    def test_no_generation_waits_forever(self) -> None:
        """However many requests arrive later, the last text of a request gets its turn."""
        queue, waiting = FairQueue(), list[Generation]()
        last = generation(7)
        queue.join(waiting, generation())
        queue.join(waiting, last)
        passed = []
        while last in waiting:
            queue.join(waiting, generation())
            passed.append(waiting.pop(0))
            assert len(passed) < 60
        assert len(passed) > 7

    def test_owners_take_turns(self) -> None:
        """An owner that asks much lets the others pass, from its first waiting request on."""
        queue, waiting = FairQueue(), list[Generation]()
        many = [generation(owner="a") for _ in range(9)]
        for one in many:
            queue.join(waiting, one)
        for _ in range(4):
            queue.served(waiting.pop(0))
        late = [generation(owner="b") for _ in range(3)]
        for one in late:
            queue.join(waiting, one)
        assert [g.request.owner for g in waiting] == list("bababaaa")
        assert [g for g in waiting if g.request.owner == "a"] == many[4:]
        assert [g for g in waiting if g.request.owner == "b"] == late

    def test_no_owner_keeps_another_one_waiting(self) -> None:
        """Whatever new owners come, a waiting generation is passed once by each of their turns."""
        queue, waiting = FairQueue(), list[Generation]()
        last = [generation(owner="a") for _ in range(5)][-1]
        for one in [generation(owner="a") for _ in range(4)] + [last]:
            queue.join(waiting, one)
        passed = 0
        while last in waiting:
            for owner in "bc":
                queue.join(waiting, generation(owner=owner))
            queue.served(waiting.pop(0))
            passed += 1
            assert passed < 20
        assert passed > 5

    def test_prompts_are_evaluated_in_turn(self) -> None:
        long, short = generation(), generation()
        long.n_chunks = 3
        assert next_to_fill([long, short]) is short
        short.n_chunks = 3
        assert next_to_fill([long, short]) is long
        assert next_to_fill([]) is None
