"""Finds out what a chat template shows, by rendering it. Knows no template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from specllama.calls.format import CallFormat, TemplateData
from specllama.calls.tools import Tool, Tools
from specllama.errors import SpecllamaError, TemplateError

Rendered = TypeVar("Rendered")

_NAME, _VALUE = "look_up_word", "hippopotamus"
_TOOL = Tool(
    _NAME,
    "Looks a word up.",
    {
        "type": "object",
        "properties": {"word": {"type": "string", "description": "The word."}},
        "required": ["word"],
    },
)
_USER: dict[str, Any] = {"role": "user", "content": "Hello."}
_CALL = {"id": "a1b2c3d4e", "type": "function", "function": {"name": _NAME, "arguments": {"word": _VALUE}}}
_TURNS: list[dict[str, Any]] = [
    _USER,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "a1b2c3d4e", "name": _NAME, "content": "An animal."},
]


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a template shows: tools; calls and their results; system messages."""

    tools: bool
    calls: bool
    system: bool


def abilities(form: CallFormat, render: Callable[[TemplateData], str]) -> Abilities:
    """What a template shows in a model's call format. render: renders it, or raises SpecllamaError."""

    def shows(messages: list[dict[str, Any]], tools: Tools | None, *texts: str) -> bool:
        try:
            rendered = render(form.template_input(messages, tools, True))
        except SpecllamaError:
            return False
        return all(text in rendered for text in texts)

    tools = Tools([_TOOL])
    system = {"role": "system", "content": "Be brief."}
    return Abilities(
        tools=shows([_USER], tools, _NAME),
        calls=shows(_TURNS, tools, _VALUE, "An animal."),
        system=shows([system, _USER], None, "Be brief."),
    )


def rendered(
    form: CallFormat,
    shows: Abilities,
    messages: Sequence[Mapping[str, Any]],
    tools: Tools | None,
    render: Callable[[TemplateData], Rendered],
    special: Collection[str] = (),
) -> Rendered:
    """The prompt for these messages. A template that shows tools but fails on these, such as Hermes 2's on
    lists of types, gets them described in a message. special: as for CallFormat.template_input. Raises what
    `render` does.
    """

    def made(own: bool) -> Rendered:
        return render(
            form.template_input(messages, tools, own, calls=shows.calls, system=shows.system, special=special)
        )

    try:
        return made(shows.tools)
    except TemplateError:
        if tools is None or not shows.tools:
            raise
        return made(False)
