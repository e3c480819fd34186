"""A recorded text, with the choices of a draft at each of its positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

WRONG = -1  # an id that is never right


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded text. prompt: ids. text: the ids that the target wrote after it. draft, conf: the draft
    model's choice and its probability at each position of the text. second, second_conf: the same of its
    second candidate, WRONG where it has none; empty where they were not recorded. Raises ValueError where the
    lengths differ, the prompt is empty or a probability is invalid.
    """

    prompt: list[int]
    text: list[int]
    draft: list[int]
    conf: list[float]
    second: list[int] = field(default_factory=list)
    second_conf: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = len(self.text)
        if not self.prompt or not n == len(self.draft) == len(self.conf):
            raise ValueError("a trace needs a prompt, and a choice and a probability for each id of its text")
        if self.second and not n == len(self.second) == len(self.second_conf):
            raise ValueError("a trace needs a second candidate for each id of its text, or none at all")
        if not all(isfinite(c) and 0 <= c <= 1 for c in (*self.conf, *self.second_conf)):
            raise ValueError("a trace has probabilities outside of 0 to 1")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trace:
        """From parsed JSON. Raises ValueError where it is not a trace."""
        try:
            needed = {name: list(data[name]) for name in ("prompt", "text", "draft", "conf")}
            more = {name: list(data.get(name, ())) for name in ("second", "second_conf")}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a trace: {error}") from error
        return cls(**needed, **more)

    def to_dict(self) -> dict[str, list[int] | list[float]]:
        return {k: value for k, value in asdict(self).items() if value or not k.startswith("second")}
