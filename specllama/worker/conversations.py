"""Conversations: the ids of earlier turns are kept, so that a next turn evaluates only what is new.

Text turned into ids again need not give the ids that the model wrote; kept ids are what the cache holds.
"""

from __future__ import annotations

import codecs
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.client import protocol
from specllama.llama.model import LlamaModel
from specllama.text import chat_template as chat
from specllama.text.chat_template import ChatTemplate

_KEPT = 32  # turns


@dataclass(frozen=True, slots=True)
class _Turn:
    messages: list[dict[str, Any]]
    ids: list[int]  # of prompt and answer
    n_prompt: int


class ConversationCache:
    """The last turns that were answered, by the id of their generation."""

    def __init__(self) -> None:
        self._turns: OrderedDict[int, _Turn] = OrderedDict()

    def keep(self, id_: int, messages: list[dict[str, Any]], ids: Sequence[int], n_prompt: int) -> None:
        """Remember a turn: the messages it answered, and the ids of its prompt and answer."""
        self._turns[id_] = _Turn(messages, list(ids), n_prompt)
        while len(self._turns) > _KEPT:
            self._turns.popitem(last=False)

    def ids(self, template: ChatTemplate, model: LlamaModel, message: protocol.Generate) -> list[int]:
        """Ids of the prompt for these messages; those of the turn that they follow where the text allows.

        Raises TemplateError, UsageError.
        """
        parts = template.render(message.messages or [], **message.variables)
        earlier = self._turns.get(message.follows) if message.follows is not None else None
        if earlier is not None and message.messages is not None:
            kept = _continued(template, model, earlier, message.messages, message.variables, parts)
            if kept is not None:
                return kept
        parts = template.continued(parts, message.prefix)
        return chat.encode(parts, model.tokenize, model.token_text(model.bos_id), model.adds_bos)


def _continued(
    template: ChatTemplate,
    model: LlamaModel,
    earlier: _Turn,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    parts: Sequence[chat.PromptPart],
) -> list[int] | None:
    """The earlier turn's ids and those of the text after its answer; None where the template now writes
    another beginning (it drops the reasoning of earlier turns, or blanks around an answer).
    """
    n = len(earlier.messages)
    if list(messages[:n]) != earlier.messages or len(messages) <= n or messages[n].get("role") != "assistant":
        return None
    ended = earlier.ids[-1] in model.end_ids
    wrote = earlier.ids[earlier.n_prompt : -1 if ended else None]
    # As in text.py, a character that was cut short is no text.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    answer = decoder.decode(b"".join(map(model.piece, wrote)))
    if answer != messages[n].get("content"):  # it was edited, or ended by a stop string
        return None
    before = "".join(part.text for part in template.render(earlier.messages, **variables))
    rest = _behind(parts, before + answer)
    if rest is None:
        return None
    kept = earlier.ids[:-1] if ended else earlier.ids  # the template writes the end of the turn itself
    return [*kept, *chat.encode([part for part in rest if part.text], model.tokenize, "", False)]


def _behind(parts: Sequence[chat.PromptPart], beginning: str) -> list[chat.PromptPart] | None:
    """The parts of the text after `beginning`; None where it begins otherwise."""
    done = 0
    for i, part in enumerate(parts):
        size = min(len(part.text), len(beginning) - done)
        if part.text[:size] != beginning[done : done + size]:
            return None
        done += size
        if done == len(beginning):
            return [chat.PromptPart(part.text[size:], part.parse_special), *parts[i + 1 :]]
    return None
