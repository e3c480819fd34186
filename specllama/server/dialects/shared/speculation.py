"""The field `speculation` of all bodies that generate text."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from pydantic import BeforeValidator, Field

from specllama.server.dialects.shared.fields import Body


def _trace_choice(value: Any) -> Any:
    if isinstance(value, bool) or value == "full":
        return value
    raise ValueError('must be a valid boolean or "full"')


TraceChoice = Annotated[bool | Literal["full"], BeforeValidator(_trace_choice)]


class SpeculationSettings(TypedDict):
    """Fields of protocol.Generate that `speculation` sets."""

    speculate: bool
    draft_max: int | None
    exact: bool
    show_rejected: bool


class Speculation(Body):
    """enabled: False decodes plainly, to the same text. max: longest draft per round, in tokens. trace: the
    chunks of a stream name the drafters of their tokens; "full" includes rejected draft tokens. memory: False
    neither drafts from earlier requests nor lets later ones draft from this one. exact: the same text with
    and without drafts, on every device.
    """

    enabled: bool = True
    max: Annotated[int, Field(ge=0, le=512)] | None = None
    trace: TraceChoice = False
    memory: bool = True
    exact: bool = False

    def engine_fields(self) -> SpeculationSettings:
        """The fields of protocol.Generate that these set."""
        full = self.trace == "full"
        return {
            "speculate": self.enabled, "draft_max": self.max, "exact": self.exact, "show_rejected": full,
        }  # fmt: skip
