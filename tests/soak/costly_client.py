"""A client that sends the costliest bodies all the time. Knows the bodies' table, no processes."""

from __future__ import annotations

import random
import threading
import time

from tests.soak.load_client import TIMEOUT, Outcomes
from tests.support.costly_bodies import BODIES
from tests.support.serving import Api

_EXPECTED = (200, 400, 413, 429)


class CostlyClient(threading.Thread):
    """Sends every body of the table, in an order of its own, until `stop` is set. seconds: for each request,
    by the name of its body.
    """

    def __init__(self, api: Api, seed: int, outcomes: Outcomes, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._api, self._random = api, random.Random(seed)
        self._outcomes, self._stopped = outcomes, stop
        self.seconds: dict[str, list[float]] = {}

    def run(self) -> None:
        while not self._stopped.is_set():
            for body in self._random.sample(BODIES, len(BODIES)):
                if self._stopped.is_set():
                    return
                began = time.monotonic()
                try:
                    status = body.send(self._api, TIMEOUT)
                except Exception as error:  # noqa: BLE001 - whatever it is, the soak reports it
                    self._outcomes.add_violation(f"{body}: {type(error).__name__}: {error}")
                    continue
                self.seconds.setdefault(str(body), []).append(time.monotonic() - began)
                if status in _EXPECTED:
                    self._outcomes.add("costly")
                else:
                    self._outcomes.add_violation(f"{body} got {status}")
