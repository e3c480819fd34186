"""The engine's own time: of a round, and of a step of the draft model, with contexts that compute nothing.

The contexts return rows of logits that were made before. The draft model is right about half of the time.
Prints microseconds: the least of several runs, which other load on the machine affects least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow
from specllama.core.policy.base import Policy
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.model import ModelDrafter
from specllama.testing import TableContext

N_ROWS = 64  # different rows of logits
N_TOKENS = 400
RUNS = 9
EPSILON = 0.05


class ReadyContext(TableContext):
    """Returns ready-made rows, which depend on the position alone. seconds: spent in decodes."""

    def __init__(self, rows: NDArray[np.float32], shift: int) -> None:
        super().__init__(n_vocab=rows.shape[1], n_ctx=4096)
        self.ready, self.shift, self.seconds = rows, shift, 0.0

    def decode(self, batch: Sequence[BatchRow], n_rows: int = 0, n_outputs: int = 0) -> NDArray[np.float32]:  # noqa: ARG002
        began = time.perf_counter()
        cells = self.cells[0]
        cells += [row.token for row in batch]
        self.n_decoded = len(batch)
        at = [(row.pos + (self.shift if row.pos % 2 else 0)) % N_ROWS for row in batch if row.output]
        found = self.ready[at]
        self.seconds += time.perf_counter() - began
        return found


def run(
    make: Callable[[ModelDrafter], Policy], arguments: argparse.Namespace, epsilon: float | None
) -> tuple[float, float]:
    """Microseconds of a round without its steps of the draft model, and of such a step."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((N_ROWS, arguments.vocab)) * 3).astype(np.float32)
    target, draft = ReadyContext(rows, 0), ReadyContext(rows, 1)
    drafter = ModelDrafter(draft, target.n_vocab)
    policy, steps, inside = make(drafter), 0, 0.0
    step = drafter.step

    def timed(drafts: dict[int, Sequence[int]]) -> object:
        nonlocal steps, inside
        before, began = draft.seconds, time.perf_counter()
        found = step(drafts)
        inside += time.perf_counter() - began - (draft.seconds - before)
        steps += 1
        return found

    drafter.step = timed  # type: ignore[method-assign,assignment]
    engine = Engine(target, policy, end_ids=(), clock=time.perf_counter, epsilon=epsilon)
    params = SamplingParams(temperature=arguments.temp, max_tokens=N_TOKENS, ignore_eos=True)
    generation = engine.submit(Request(list(range(5, 300)), params, 1))
    while not generation.prefilled:
        engine.step()
    began, target.seconds, draft.seconds = time.perf_counter(), 0.0, 0.0
    steps, inside = 0, 0.0
    while engine.busy:
        engine.step()
    took = time.perf_counter() - began - target.seconds - draft.seconds
    return 1e6 * (took - inside) / generation.stats.rounds, 1e6 * inside / max(1, steps)


def rounds(arguments: argparse.Namespace) -> None:
    """Print the engine's own time of rounds and steps."""
    kinds: dict[str, Callable[[ModelDrafter], Policy]] = {
        "no drafters": lambda _: Fixed([], 0),
        "copies, auto": lambda _: Planner([CopyDrafter()], time.perf_counter),
        "draft model, 4 tokens": lambda drafter: Fixed([drafter], 4),
        "both, auto": lambda drafter: Planner([CopyDrafter(), drafter], time.perf_counter),
    }
    for name, make in kinds.items():
        for epsilon in (None, EPSILON):
            found = [run(make, arguments, epsilon) for _ in range(RUNS)]
            own, step = (min(one[i] for one in found) for i in (0, 1))
            ties = ", near-ties looked for, as on a GPU" if epsilon else ""
            print(f"{name}{ties}: a round {own:.0f} us, a step {step:.0f} us", flush=True)
