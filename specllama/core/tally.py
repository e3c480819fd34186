"""What the drafters offered a request, and how much of it was right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Of a request, whether drafted or not: rounds with a token that was offered for nothing (forced ones
    left out), and those where it was right; rounds in which the draft model was asked, named a token, and was
    right.
    """

    offered: int = 0
    offered_right: int = 0
    asked: int = 0
    named: int = 0
    named_right: int = 0
