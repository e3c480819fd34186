"""Whatever a client sends, the others notice nothing: the costliest bodies within the limits, for every route
and for every command that a client can send to the engine (tests/support/costly_bodies.py).

`python -m tests.soak --costly 2` measures the bounds themselves; here they are wider, for a busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import get_args

import pytest

from specllama.client import protocol
from specllama.client.tune_messages import Calibrate, Configure, Inspect, Serve, Trim, Tune
from specllama.server.app import ROUTES
from tests.soak.bystander import MB, Bystander
from tests.support.costly_bodies import BODIES
from tests.support.health import quantile
from tests.support.serving import Server, first_event

pytestmark = pytest.mark.alone
P99_SECONDS, LONGEST_SECONDS = 0.2, 0.75  # of /health, for all bodies together and for each
GAP_SECONDS, GROWTH = 2.0, 200 * MB
SETTLE = 0.1  # seconds before and after the requests to a route
OF_THE_OPERATOR = {
    protocol.Load, Calibrate, Configure, Inspect, Serve, Trim,
    Tune,
}  # fmt: skip
WITHOUT_BODY = {protocol.Cancel, protocol.EndReasoning, protocol.GetSlots}
READS_NO_BODY = {"/drain"}


class Watched:
    """A server with a bystander. pid: of its engine process, which must stay the same."""

    def __init__(self, server: Server, bystander: Bystander) -> None:
        self.server, self.bystander = server, bystander
        self.pid = server.engine().pid
        self.latencies: list[float] = []


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with (
        Server(tmp_path_factory.mktemp("costly"), "--draft-max", "4", "-np", "4", "--queue", "256") as server,
        Bystander(server.connect, server.process.pid) as bystander,
    ):
        bystander.wait_until_streaming()
        yield Watched(server, bystander)


def test_every_route_and_every_command_has_bodies() -> None:
    posted = {route.path for route in ROUTES if route.method == "POST"}
    assert {body.path for body in BODIES} == posted - READS_NO_BODY
    sent = {m for m in get_args(protocol.Message) if (m.__doc__ or "").startswith("To the engine")}
    assert {body.command for body in BODIES if body.command} | WITHOUT_BODY == sent - OF_THE_OPERATOR


@pytest.mark.parametrize("path", list(dict.fromkeys(body.path for body in BODIES)))
def test_costly_bodies_delay_no_other_request(watched: Watched, path: str) -> None:
    server, bystander = watched.server, watched.bystander
    time.sleep(SETTLE)
    first = time.monotonic()
    for body in BODIES:
        if body.path != path:
            continue
        began = time.monotonic()
        status = body.send(server)
        check(watched, str(body), began)
        assert status in (200, 400, 404, 413, 501), (str(body), status)
    time.sleep(SETTLE)
    check(watched, path, first)
    watched.latencies += bystander.latencies(first)


def check(watched: Watched, what: str, began: float) -> None:
    """Nobody was stopped since a monotonic time."""
    noticed = watched.bystander.noticed(began, time.monotonic())
    assert noticed.unanswered == 0, what
    assert noticed.health_max < LONGEST_SECONDS, (what, noticed)
    assert noticed.gap < GAP_SECONDS, (what, noticed)
    assert noticed.growth < GROWTH, (what, noticed)
    assert watched.server.engine().pid == watched.pid, what
    assert watched.bystander.lost == [], what


def test_disconnects_and_queries_delay_no_other_request(watched: Watched) -> None:
    server, began = watched.server, time.monotonic()
    for _ in range(20):
        first_event(server.begin(prompt="zip", max_tokens=500, ignore_eos=True, stream=True))
        assert server.get("/slots").status == server.get("/metrics").status == 200
        server.hang_up()
    assert watched.bystander.noticed(began, time.monotonic()).gap < GAP_SECONDS
    assert server.engine().pid == watched.pid


def test_health_answers_in_time(watched: Watched) -> None:
    assert len(watched.latencies) > 100
    assert quantile(watched.latencies, 0.99) < P99_SECONDS
