"""Engine cores."""

from __future__ import annotations

from tests.support.front import front, fronts

__all__ = ["front", "fronts"]
