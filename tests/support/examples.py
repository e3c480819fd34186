"""How many examples property tests make up: fewer in the quick tier, all with scripts/test --all."""

from __future__ import annotations

import os

TIER = "TESTS_TIER"  # scripts/test sets it: "quick", "all", or nothing
_PER_CENT = {"quick": 8, "": 30, "all": 100}


def examples(n: int) -> int:
    """Of `n` examples, as many as this tier makes up."""
    return max(5, n * _PER_CENT[os.environ.get(TIER, "")] // 100)
