"""Conversations in the forms that chat templates accept. Knows no template: what one shows is passed in, and
what it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from specllama.calls.history import Message, Messages
from specllama.errors import SpecllamaError

Rendered = TypeVar("Rendered")
REFUSED = "refused"
"""In the details of errors: whether a template has refused the messages, and did not fail in another way."""
_BRIDGE = "OK."


def settled(messages: Sequence[Mapping[str, Any]], system: bool, systems: bool) -> Messages:
    """The messages with those of the system where a template shows them. system: whether it shows a first
    one, which else becomes the beginning of the user's first message, as in llama.cpp; systems: whether it
    shows several, wherever they are. Otherwise the first ones are joined, and later ones are said by the
    user, marked.
    """
    n = next((i for i, m in enumerate(messages) if m.get("role") != "system"), len(messages))
    if systems and system:
        return [dict(message) for message in messages]
    first = "\n\n".join(text for m in messages[:n] if isinstance(text := m.get("content"), str) and text)
    rest = [_between(m) if m.get("role") == "system" else dict(m) for m in messages[n:]]
    if system and n:
        return [{**messages[0], "content": first}, *rest]
    if not first:
        return rest
    if rest and rest[0].get("role") == "user" and isinstance(rest[0].get("content"), str):
        return [rest[0] | {"content": f"{first}\n{rest[0]['content']}"}, *rest[1:]]
    return [{"role": "user", "content": first}, *rest]


def _between(message: Mapping[str, Any]) -> Message:
    """Instructions between turns."""
    return {**message, "role": "user", "content": f"<system>\n{message.get('content') or ''}\n</system>"}


def accepted(messages: Messages, render: Callable[[Messages], Rendered]) -> Rendered:
    """What `render` makes of the messages or, where the template refuses them, of other forms of them. Raises
    what it raises for the messages as they are.
    """
    problem: SpecllamaError | None = None
    for form in _forms(messages):
        try:
            return render(form)
        except SpecllamaError as error:
            if not error.details.get(REFUSED):
                raise
            problem = problem or error
    assert problem is not None
    raise problem


def _forms(messages: Messages) -> Iterator[Messages]:
    """The messages as they are; with neighbours of the same role as one; with the turns between that
    templates which demand alternation expect.
    """
    yield messages
    joined = _joined(messages)
    if joined != messages:
        yield joined
    bridged = list(_bridged(joined))
    if bridged != joined:
        yield bridged


def _joined(messages: Messages) -> Messages:
    joined = Messages()
    for message in messages:
        if message.get("role") == "assistant" and _is_empty(message):
            continue
        last = joined[-1] if joined else {}
        same = message.get("role") == last.get("role") and message.get("role") in ("user", "assistant")
        if same and all(isinstance(m.get("content") or "", str) for m in (last, message)):
            joined[-1] = _merged(last, message)
        else:
            joined.append(message)
    return joined


def _is_empty(message: Mapping[str, Any]) -> bool:
    """Whether an answer says nothing: it was ended at once."""
    return not any(message.get(name) for name in ("content", "tool_calls", "reasoning_content"))


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> Message:
    merged: Message = {**one}
    for name in ("content", "reasoning_content"):
        texts = [text for m in (one, other) if (text := m.get(name))]
        if texts or name == "content":
            merged[name] = "\n".join(texts)
    if calls := [*(one.get("tool_calls") or ()), *(other.get("tool_calls") or ())]:
        merged["tool_calls"] = calls
    return merged


def _bridged(messages: Messages) -> Iterator[Message]:
    """Before a first answer a message of the user, after a result, or a call without one, an answer before
    the user's next message.
    """
    last: Mapping[str, Any] | None = None
    for message in messages:
        role = message.get("role")
        if last is None and role == "assistant":
            yield {"role": "user", "content": ""}
        elif last is not None and role == "user" and (last.get("role") == "tool" or last.get("tool_calls")):
            yield {"role": "assistant", "content": _BRIDGE}
        yield message
        if role != "system":
            last = message
