"""The first decodes after loading: they carry costs that no answer should pay, and show whether a change of
the number of rows costs something.

Where it does, as on a GPU, some more widths are decoded, so that the first answer meets a known cost curve.
Knows no contexts and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.width_changes import Phase

SECONDS = 0.6  # most that all decodes but the first two may take
FAST_SECONDS = 0.05  # of one row; where it takes longer, a change of some milliseconds does not count
WIDTHS = (2, 4, 8, 16, 9, 3, 32, 6, 12, 24)


def warm_up(
    curve: CostCurve, decode: Callable[[int], float], max_rows: int, widths: Sequence[int] = WIDTHS
) -> None:
    """Decode one row, then two, and further ones while they tell something; where changes of the width cost
    something, this refines `curve`. decode: decodes so many rows and removes them again; returns the seconds.
    """
    changes, spent = curve.changes, 0.0

    def run(n: int) -> tuple[Phase, int, float]:
        nonlocal spent
        seconds = decode(n)
        spent += seconds
        return changes.record(n, seconds), n, seconds

    run(1)
    if max_rows < 2:
        return
    run(2)
    spent = 0.0
    run(1)
    if spent <= FAST_SECONDS:
        run(1)
        run(1)
    if changes.may_cost or changes.change:
        decodes = [run(n) for n in (2, 2, 2, 1, 1, 1, 2, 2, 2)]
        for one in decodes if changes.change else ():
            curve.observe_at(*one)
        for width in widths if changes.change else ():
            if width <= max_rows and not curve.is_reliable(width):
                once = changes.loading_known and not changes.loading
                for _ in range(Phase.FIRST if once else Phase.STEADY):
                    if spent + 2 * curve.predict(width) < SECONDS:
                        curve.observe_at(*run(width))
    changes.forget_runs()
