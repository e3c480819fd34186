"""Finds out what a chat template shows, by rendering it. Knows no template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from specllama.calls.format import CallFormat, TemplateData
from specllama.calls.history import REFUSED, Message, Messages, accepted, settled
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
_USER: Message = {"role": "user", "content": "Hello."}
_CALL = {"id": "a1b2c3d4e", "type": "function", "function": {"name": _NAME, "arguments": {"word": _VALUE}}}
_TURNS: Messages = [
    _USER,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "a1b2c3d4e", "name": _NAME, "content": "An animal."},
]


_SYSTEMS = ("Be brief, quokka.", "Be kind, narwhal.", "Be quick, axolotl.")
_ORDERED = [
    {"role": "system", "content": _SYSTEMS[0]},
    {"role": "system", "content": _SYSTEMS[1]},
    {"role": "user", "content": "Who is a wombat?"},
    {"role": "assistant", "content": "An ocelot."},
    {"role": "system", "content": _SYSTEMS[2]},
    {"role": "user", "content": "Where is the pangolin?"},
]
_THOUGHT, _ANSWER = "A capybara swims.", "The tapir sleeps."


@dataclass(frozen=True, slots=True)
class Abilities:
    """Parts of a conversation that a template shows: tools; calls and their results; a first system message;
    system messages wherever they are. thought: what it writes before and after the reasoning of a last
    answer, None if it does not show that.
    """

    tools: bool
    calls: bool
    system: bool
    systems: bool = False
    thought: tuple[str, str] | None = None


def abilities(form: CallFormat, render: Callable[[TemplateData], str]) -> Abilities:
    """Try what a template shows in a model's call format. render: renders it, or raises SpecllamaError."""

    def written(messages: Messages, more: Mapping[str, Any]) -> str:
        try:
            return render(TemplateData(messages, dict(more)))
        except SpecllamaError:
            return ""

    def shows(messages: Messages, tools: Tools | None, *texts: str) -> bool:
        try:
            rendered = render(form.template_input(messages, tools, True))
        except SpecllamaError:
            return False
        return all(text in rendered for text in texts)

    tools, ordered = Tools([_TOOL]), written(_ORDERED, {})
    positions = [ordered.find(message["content"]) for message in _ORDERED]
    system = {"role": "system", "content": "Be brief."}
    return Abilities(
        tools=shows([_USER], tools, _NAME),
        calls=shows(_TURNS, tools, _VALUE, "An animal."),
        system=shows([system, _USER], None, "Be brief."),
        systems=min(positions) >= 0 and positions == sorted(positions),
        thought=_thought(written),
    )


def _thought(written: Callable[[Messages, Mapping[str, Any]], str]) -> tuple[str, str] | None:
    """The texts around the reasoning of an answer, from the end of the prompt to the answer's text."""
    answer = {"role": "assistant", "content": _ANSWER, "reasoning_content": _THOUGHT}
    whole = written([_USER, answer], {"add_generation_prompt": False})
    before, separator, rest = whole.partition(_THOUGHT)
    after, said, _ = rest.partition(_ANSWER)
    prompt = written([_USER], {})
    if not separator or not said or not prompt:
        return None
    if before.startswith(prompt):
        return before[len(prompt) :], after
    return ("", after) if prompt.startswith(before.rstrip()) else None


def rendered(
    form: CallFormat,
    shows: Abilities,
    messages: Sequence[Mapping[str, Any]],
    tools: Tools | None,
    render: Callable[[TemplateData], Rendered],
    special: Collection[str] = (),
) -> Rendered:
    """The prompt for these messages, in a form that the template accepts. A template that shows tools but
    fails on these, such as Hermes 2's on lists of types, gets them described in a message. special: as for
    CallFormat.template_input. Raises what `render` does.
    """

    def made(some: Messages, own: bool) -> Rendered:
        return render(
            form.template_input(some, tools, own, calls=shows.calls, system=shows.system, special=special)
        )

    conversation = settled(messages, shows.system, shows.systems)
    try:
        return accepted(conversation, lambda some: made(some, shows.tools))
    except SpecllamaError as error:
        fails = isinstance(error, TemplateError) or error.details.get(REFUSED)
        if not fails or tools is None or not shows.tools:
            raise
        return accepted(conversation, lambda some: made(some, False))


def rendered_text(
    shows: Abilities, messages: Sequence[Mapping[str, Any]], render: Callable[[TemplateData], Rendered]
) -> Rendered:
    """The prompt for messages without tools and calls, as a template accepts it. Raises as `render`."""
    conversation = settled(messages, shows.system, shows.systems)
    return accepted(conversation, lambda some: render(TemplateData(some, {})))
