"""The positions up to which later prompts may share a chat's prompt, found by rendering other conversations.

What a template writes of a message depends on those after it (some strip the reasoning of earlier answers),
so the prompt is compared with that of a conversation that differs: in a message, or in what follows the last
one. Their common beginning ends at such a position. Knows neither caches nor what is kept there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.calls.history import Message
from specllama.clock import running_time
from specllama.core.prefix.boundaries import GAP, Boundary, Kind
from specllama.errors import SpecllamaError
from specllama.text.control_tokens import PromptPart

_MAX_SECONDS, _SECONDS_AN_ID = 0.1, 1e-4  # of rendering other conversations, and more for long prompts
_END = 4  # ids before the end, for the same prompt again
_MAX_USERS = 4  # user messages whose starts are looked for
_SYSTEM = ("system", "developer")
_OTHER = ("#", "@")  # texts of messages that differ from any other in their first character

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt of a chat. parts: rendered; ids: of the prompt, which end with those of the parts. render:
    from messages to parts. encode: from parts in the middle of a prompt to their ids.
    """

    messages: Messages
    parts: Sequence[PromptPart]
    ids: Sequence[int]
    render: Callable[[Messages], list[PromptPart]]
    encode: Callable[[Sequence[PromptPart]], list[int]]


def chat_boundaries(prompt: ChatPrompt) -> list[Boundary]:
    """The boundaries in order, without those that are not between two tokens. A conversation that the
    template refuses gives none; so do those that there was no time for.
    """
    text = "".join(part.text for part in prompt.parts)
    kinds: dict[int, Kind] = {}
    ends = running_time() + _MAX_SECONDS + _SECONDS_AN_ID * len(prompt.ids)
    for kind, other in _others(prompt.messages, len(prompt.ids)):
        if running_time() > ends:
            break
        try:
            changed = "".join(part.text for part in prompt.render(other))
        except SpecllamaError:
            continue
        n = _n_ids(prompt, _n_common(text, changed))
        if 0 < n < len(prompt.ids):
            kinds.setdefault(n, kind)
    kinds.setdefault(len(prompt.ids) - _END, "end")
    return [Boundary(n, kind) for n, kind in sorted(kinds.items())]


def _others(messages: Messages, n_ids: int) -> Iterator[tuple[Kind, Messages]]:
    """Conversations that differ from this one, the most likely first."""
    if not messages:
        return
    answer = {"role": "assistant", "content": _OTHER[0]}
    yield "reasoning", [*messages, answer, {"role": "user", "content": _OTHER[0]}]
    if messages[-1].get("role") != "user":
        yield "reasoning", [*messages, answer]
    yield "reasoning", [*messages, {**answer, "reasoning_content": _OTHER[0]}]
    first = next((i for i, m in enumerate(messages) if m.get("role") not in _SYSTEM), 0)
    yield "system", [*messages[:first], _changed(messages[first])]
    users = [i for i, m in enumerate(messages) if m.get("role") == "user" and i > first]
    while users:
        yield "user", [*messages[: users[-1]], _changed(messages[users[-1]])]
        if n_ids < GAP * _MAX_USERS:
            return
        users = users[: (len(users) - 1) * (_MAX_USERS - 1) // _MAX_USERS]


def _changed(message: Mapping[str, Any]) -> Message:
    """A message of this role with another text from its first character on."""
    content = message.get("content")
    if isinstance(content, list):
        content = next((part.get("text") for part in content if isinstance(part, dict)), "")
    same = isinstance(content, str) and content.lstrip().startswith(_OTHER[0])
    return {"role": message.get("role", "user"), "content": _OTHER[same]}


def _n_common(a: str, b: str) -> int:
    """Length of the common beginning of two texts, by bisection: comparing slices is fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def _n_ids(prompt: ChatPrompt, n_chars: int) -> int:
    """How many ids the first characters of the text are; 0 where a token goes across."""
    before, after = _split(prompt.parts, n_chars)
    rest = prompt.encode(after)
    n = len(prompt.ids) - len(rest)
    if n > 0 and list(prompt.ids[n:]) == rest:
        return n
    start = prompt.encode(before)  # without BOS, which may come before it
    for n_bos in (0, 1):
        if start and list(prompt.ids[n_bos : n_bos + len(start)]) == start:
            return n_bos + len(start)
    return 0


def _split(parts: Sequence[PromptPart], n_chars: int) -> tuple[list[PromptPart], list[PromptPart]]:
    """The parts of the first characters, and those of the others."""
    before, after = list[PromptPart](), list[PromptPart]()
    for part in parts:
        n = max(0, min(len(part.text), n_chars))
        n_chars -= n
        if n:
            before.append(PromptPart(part.text[:n], part.parse_special))
        if n < len(part.text):
            after.append(PromptPart(part.text[n:], part.parse_special))
    return before, after
