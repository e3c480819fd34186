"""Which requests the queue accepts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from specllama.errors import BusyError, ResourceError, SpecllamaError
from specllama.server.service import Admission

KEYED = Admission(4, 64, several=True)  # 68 texts, 16 places of the queue kept
SINGLE = Admission(4, 64)


@pytest.mark.parametrize(
    ("n_open", "n_waiting", "n", "accepted"),
    [
        ({"a": 51}, 47, 1, True),
        ({"a": 52}, 48, 1, False),  # one key cannot fill the queue
        ({"a": 50}, 46, 3, False),
        ({"a": 52}, 0, 1, True),  # asked for b
        ({"a": 52}, 0, 16, True),
        ({"a": 52}, 0, 17, False),
        ({"a": 52, "b": 1}, 1, 1, False),
        ({"a": 4, "b": 47}, 47, 1, True),
        ({"a": 4, "b": 48}, 48, 1, False),
        ({"a": 4, "b": 48}, 0, 1, True),  # asked for a, whose four texts run
        ({"a": 52, "b": 16}, 0, 1, False),  # the queue is full
        ({"a": 500}, 0, 1, True),  # a request of many texts leaves the kept places to others as well
        ({"a": 500}, 496, 1, False),
        ({}, 0, 500, True),
        ({"a": 0}, 0, 500, True),
    ],
)
def test_the_last_quarter_is_kept_for_keys_with_nothing_waiting(n_open, n_waiting, n, accepted) -> None:
    assert (not KEYED.problem(n_open, n_waiting, n)) == accepted


@pytest.mark.parametrize(("n_open", "n", "accepted"), [(67, 1, True), (68, 1, False), (60, 9, False)])
def test_a_single_owner_may_fill_the_queue(n_open: int, n: int, accepted: bool) -> None:
    assert (not SINGLE.problem({"": n_open}, n_open - 4, n)) == accepted


def test_the_message_says_why() -> None:
    kept = "the last 16 of 64 places in the queue are kept for keys that have none"
    assert KEYED.problem({"a": 52}, 48, 1) == f"this key has 48 texts waiting, and {kept}"
    assert "1 text waiting" in KEYED.problem({"a": 52}, 1, 1)
    assert KEYED.problem({"a": 52, "b": 16}, 1, 1).startswith("68 texts running or waiting, at most 68 can")


def test_every_key_can_queue_whatever_the_others_send() -> None:
    """Fifteen keys that ask for all they can get leave a place for the sixteenth."""
    n_open: dict[str, int] = {}
    for owner in map(str, range(15)):
        while not KEYED.problem(n_open, n_open.get(owner, 0), 1):
            n_open[owner] = n_open.get(owner, 0) + 1
    assert not KEYED.problem(n_open, 0, 1)


@dataclass(eq=False)
class Request:
    owner: str
    n_open: int
    n_waiting: int = 0
    n_held: int = 0
    seconds: float = 9.0
    error: SpecllamaError | None = None

    def fail(self, error: SpecllamaError) -> None:
        self.error = error


def test_requests_of_all_models_are_counted_together() -> None:
    admission = Admission(4, 8)
    first, second = Request("", 6, 2), Request("", 5, 5)
    admission.requests |= {first, second}
    admission.check("", 1)
    with pytest.raises(BusyError, match="11 texts running or waiting, at most 12 can be") as raised:
        admission.check("", 2)
    assert raised.value.details["retry_after"] == admission.retry_after >= 1
    admission.ended(first)
    admission.check("", 7)
    admission.end_all(ResourceError("the end"))
    assert (str(second.error), first.error) == ("the end", None)


def test_a_server_that_shuts_down_accepts_nothing() -> None:
    admission = Admission(4, 8)
    drains: list[int] = []
    admission.on_drain = lambda: drains.append(len(admission.requests))
    running = Request("", 1)
    admission.requests |= {running}
    admission.ended(Request("", 1))
    admission.drain()
    with pytest.raises(ResourceError, match="shutting down"):
        admission.check("", 1)
    admission.ended(running)
    assert drains == [1, 0]


def test_large_requests_that_wait_for_their_models_are_bounded() -> None:
    admission, body = Admission(4, 64), 4 * 1024 * 1024
    waiting = [Request("", 1, 1, n_held=body) for _ in range(16)]
    admission.requests |= set(waiting)
    with pytest.raises(BusyError, match="requests of more than 64 MiB wait for their models"):
        admission.check("", 1, 1)
    admission.check("", 1)
    admission.ended(waiting[0])
    admission.check("", 1, body)
