"""Replays recorded texts on devices whose decodes depend on those before them, such as GPUs.

The planner learns what decodes cost as it does on a user's machine: from the decodes of loading and from its
own rounds, the first ones of each width included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scripts.replay.hindsight import Decodes, fixed_decodes
from specllama.core.interfaces import Drafter
from specllama.core.policy.config import DEFAULT, PolicyConfig
from specllama.core.policy.planner import Planner
from specllama.core.replay.simulator import ChangingDevice, Replay, Seconds, Trace
from specllama.drafters.copy import CopyDrafter
from specllama.worker.calibrate import measure_load

STEPS = (0.05, 0.12)  # t(1) of a step of the draft model
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 11, 15)
SLACK = 4.0  # t(1) that a text may lose besides 3 %
CHANGE_SHARE = 0.2  # of what changes cost the target: the least that they cost the draft model
ROW_SHARE = 0.08  # of a step of one row that each further row costs; 1.12 ms and 2.78 ms of 16 on an H100


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
    decodes = {n: [fixed_decodes(text, n) for text in texts] for n in (0, *lengths)}
    for name, data in devices.items():
        t1 = ChangingDevice.from_dict(data).steady(1)
        for step in steps:

            def planner(drafters: list[Drafter], clock: Callable[[], float]) -> Planner:
                return Planner(drafters, clock, config=config)

            took = times(data, step, planner, texts)
            fixed = {n: sum(fixed_times(data, step, decodes[n])) for n in lengths}
            best = min(fixed, key=lambda n: fixed[n])
            plain = fixed_times(data, step, decodes[0])
            pairs = zip(plain, took, strict=True)
            excess = max((s - p / 0.97) / t1 - SLACK for p, s in pairs)
            yield DeviceCell(name, step, sum(plain) / sum(took), sum(plain) / fixed[best], best, excess)


def draft_device(data: Mapping[str, Any], step: float) -> ChangingDevice:
    """The draft model's decodes on the same device. step: of a steady one of one row, in decodes of the
    target. What changes and loading cost more depends less on the size of the model: it is a fifth of what
    they cost the target, if a step costs less.
    """
    target = ChangingDevice.from_dict(data)
    t1, more = target.steady(1), max(step, CHANGE_SHARE)

    def scaled(seconds: Seconds) -> Seconds:
        return lambda n: more * seconds(n)

    loading = target.loading
    if loading is not None:
        first, second = loading
        loading = scaled(first), scaled(second)
    return ChangingDevice(
        lambda n: step * t1 * (1 + ROW_SHARE * (n - 1)), scaled(target.first), scaled(target.second), loading
    )


def times(
    data: Mapping[str, Any],
    step: float,
    make: Callable[[list[Drafter], Callable[[], float]], Planner],
    texts: Sequence[Trace],
) -> list[float]:
    """The seconds of each text with a planner, after the decodes of loading."""
    device, steps = ChangingDevice.from_dict(data), draft_device(data, step)
    session = Replay(make, device, steps, CopyDrafter, prompt=device.interrupt)
    assert isinstance(session.policy, Planner)
    change = measure_load(session.policy.costs, device, DEFAULT.max_rows)
    session.policy.change_seconds, session.one_width = change or 0.0, bool(change)
    measure_load(session.policy.learnt.models["model"].steps.curve, steps, DEFAULT.max_rows, True)
    return [session.replay([text]).seconds for text in texts]


def fixed_times(data: Mapping[str, Any], step: float, texts: Sequence[Decodes]) -> list[float]:
    """The seconds of each text with a fixed length, after decodes of every width."""
    device, steps = ChangingDevice.from_dict(data), draft_device(data, step)
    for n in (1, 2, *LENGTHS):
        for _ in range(3):
            device(n + 1)
    took = []
    for text in texts:
        device.interrupt()
        took.append(sum(map(device, text.rows)) + sum(map(steps, text.steps)))
    return took


def show(label: str, cells: Iterator[DeviceCell]) -> None:
    """Print a line for each device and draft cost."""
    for c in cells:
        print(
            f"{label} | {c.device} | c {c.step:.2f}: {c.gain:.2f} x plain, best fixed length {c.fixed:.2f} "
            f"({c.length}), worst text {c.excess:+.1f} t(1) over plain / 0.97 + 4 t(1)",
            flush=True,
        )
