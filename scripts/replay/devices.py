"""Replays recorded texts on devices whose decodes depend on those before them, such as GPUs.

The planner learns what decodes cost as it does on a user's machine: from the decodes of loading and from its
own rounds, the first ones of each width included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specllama.core.interfaces import Drafter
from specllama.core.policy.base import Policy
from specllama.core.policy.config import DEFAULT, PolicyConfig
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.policy.warm_up import warm_up
from specllama.core.replay.devices import ChangingDevice
from specllama.core.replay.simulator import Replay, Trace
from specllama.drafters.copy import CopyDrafter

STEPS = (0.05, 0.12)  # t(1) of a step of the draft model
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 11, 15)
SLACK = 4.0  # t(1) that a text may lose besides 3 %


class DeviceCell(NamedTuple):
    """A device and draft cost. gain: plain time over the planner's. fixed: the same of the best fixed length.
    excess: the most t(1) by which a text was slower than plain decoding / 0.97 + 4 t(1).
    """

    device: str
    step: float
    gain: float
    fixed: float
    length: int
    excess: float


def load_devices(path: str) -> dict[str, Mapping[str, Any]]:
    """Curves by name. Raises OSError, ValueError."""
    data = json.loads(Path(path).read_text("utf-8"))
    groups = [group for group in data.values() if isinstance(group, dict)]
    found = {name: one for group in groups for name, one in group.items() if "steady" in one}
    if not found:
        raise ValueError("no curves of devices")
    return found


def device_cells(
    devices: Mapping[str, Mapping[str, Any]],
    texts: Sequence[Trace],
    steps: Sequence[float] = STEPS,
    lengths: Sequence[int] = LENGTHS,
    config: PolicyConfig = DEFAULT,
) -> Iterator[DeviceCell]:
    """Replay the texts one after another on each device at each draft cost, each time with one pair."""
    texts = [text for text in texts if text.text]
    n_tokens = sum(len(text.text) for text in texts)
    for name, data in devices.items():
        t1 = ChangingDevice.from_dict(data).steady(1)
        for step in steps:

            def planner(drafters: list[Drafter], clock: Callable[[], float]) -> Policy:
                return Planner(drafters, clock, config=config)

            took = times(data, step, planner, texts)
            fixed = {
                n: sum(times(data, step, lambda drafters, _, n=n: Fixed(drafters, n), texts)) for n in lengths
            }
            best = min(fixed, key=lambda n: fixed[n])
            excess = max(s / t1 - len(t.text) / 0.97 - SLACK for t, s in zip(texts, took, strict=True))
            plain = n_tokens * t1
            yield DeviceCell(name, step, plain / sum(took), plain / fixed[best], best, excess)


def times(
    data: Mapping[str, Any],
    step: float,
    make: Callable[[list[Drafter], Callable[[], float]], Policy],
    texts: Sequence[Trace],
) -> list[float]:
    """The seconds of each text, after the decodes of loading."""
    device = ChangingDevice.from_dict(data)
    session = Replay(make, device, step * device.steady(1), CopyDrafter)
    if isinstance(session.policy, Planner):
        warm_up(session.policy.costs, device, DEFAULT.max_rows)
    else:
        for n in (1, 2, *LENGTHS):
            for _ in range(3):
                device(n + 1)
    return [session.replay([text]).seconds for text in texts]


def show(label: str, cells: Iterator[DeviceCell]) -> None:
    """Print a line for each device and draft cost."""
    for c in cells:
        print(
            f"{label} | {c.device} | c {c.step:.2f}: {c.gain:.2f} x plain, best fixed length {c.fixed:.2f} "
            f"({c.length}), worst text {c.excess:+.1f} t(1) over plain / 0.97 + 4 t(1)",
            flush=True,
        )
