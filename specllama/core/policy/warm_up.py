"""The first decodes after loading: they carry costs that no answer should pay, and show whether a change of
the number of rows costs something.

Where it does, as on a GPU, some more widths are decoded, so that the first answer meets a known cost curve.
Knows no contexts and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.width_changes import Place

SECONDS = 0.3  # most that all decodes but the first two may take
FAST_SECONDS = 0.05  # of one row; where it takes longer, a change of some milliseconds does not count
WIDTHS = (2, 4, 8, 16, 9, 3, 32, 6, 12, 24)


def warm_up(
    curve: CostCurve, decode: Callable[[int], float], max_rows: int, widths: Sequence[int] = WIDTHS
) -> None:
    """Decode one row, then two, and further ones while they tell something; refines `curve`. decode: decodes
    so many rows and removes them again; returns the seconds.
    """
    spent = 0.0

    def run(n: int) -> None:
        nonlocal spent
        seconds = decode(n)
        curve.observe(n, seconds, plain=n == 1)
        spent += seconds

    run(1)
    if max_rows < 2:
        return
    run(2)
    spent = 0.0
    run(1)
    if spent > FAST_SECONDS:
        return
    run(1)
    run(1)
    if not curve.changes.may_cost:
        return
    for n in (2, 2, 2, 1, 1, 1, 2, 2, 2):
        run(n)
    for width in widths:
        if width <= max_rows and not curve.is_reliable(width):
            changes = curve.changes
            for _ in range(Place.FIRST if changes.loading_known and not changes.loading else Place.STEADY):
                if spent + 2 * curve.predict(width) > SECONDS:
                    curve.changes.forget_runs()
                    return
                run(width)
    curve.changes.forget_runs()
