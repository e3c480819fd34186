"""Tools that a model may call, and what a request allows of them. Knows no API and no call format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from specllama.json_types import JsonObject

Choice = Literal["auto", "none", "required"]
Schema = JsonObject
"""A JSON schema that is an object; its keywords are data to all but the modules about schemas."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    parameters: JSON schema of its arguments, an object; {} for none. strict: an unsupported keyword in the
    schema is an error; otherwise the tool is then not constrained by its schema.
    """

    name: str
    description: str = ""
    parameters: Schema = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request. All are shown to the model, so that prompts of the same conversation have the
    same beginning, whatever is allowed.

    choice: "auto": text or calls; "none": text only; "required": calls only, from the first token after the
    reasoning. names: those that may be called, () for all. parallel: whether several calls are allowed.
    """

    tools: Sequence[Tool]
    choice: Choice = "auto"
    names: Sequence[str] = ()
    parallel: bool = True

    @property
    def allowed(self) -> list[Tool]:
        """The tools that may be called, in the order of `tools`."""
        if self.choice == "none":
            return []
        return [tool for tool in self.tools if not self.names or tool.name in self.names]


NO_TOOLS = Tools((), "none")
