"""From a rendered prompt to token ids; what renders one. Knows no Jinja."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from specllama.errors import UsageError, option
from specllama.text.control_tokens import ControlTexts, PromptPart

Message = Mapping[str, Any]
MAX_CHARS = 4 * 1024 * 1024  # that a template writes beyond those of the messages
HINT = f"use {option('raw')}"  # where a template fails
_MAX_TOKEN_CHARS = 256  # of a control token


class PromptTemplate(Protocol):
    """A chat template that is ready."""

    def render(self, messages: Sequence[Message], **variables: Any) -> list[PromptPart]:
        """The prompt for the next answer, in parts whose concatenated ids are the prompt's ids. See
        ChatTemplate.
        """
        ...

    def continued(self, parts: Sequence[PromptPart], text: str) -> list[PromptPart]:
        """The parts followed by the start of an answer, in which no control token is parsed."""
        ...


def continued(control: ControlTexts, parts: Sequence[PromptPart], text: str) -> list[PromptPart]:
    """See PromptTemplate. The start is added to the last part, and tokenised with it, unless that would
    create a control text.
    """
    if not text or not parts:
        return [*parts, PromptPart(text, False)] if text else list(parts)
    last, both = parts[-1], parts[-1].text + text
    same = not last.parse_special or len(list(control.find(both))) == len(list(control.find(last.text)))
    if same:
        return [*parts[:-1], PromptPart(both, last.parse_special)]
    return [*parts, PromptPart(text, False)]


def nested_too_deeply() -> UsageError:
    """The error for messages that cannot be rendered for their depth."""
    return UsageError("the messages are nested too deeply")


def encode(
    parts: Sequence[PromptPart],
    tokenize: Callable[[str, bool, bool], list[int]],
    bos_text: str,
    adds_bos: bool,
) -> list[int]:
    """The ids of rendered parts: control tokens are parsed only in text of the template, and BOS is added
    unless the template has written it.

    tokenize: from (text, add_special, parse_special) to ids. bos_text: "" for none. adds_bos: whether BOS is
    to be added according to the vocabulary.
    """
    ids: list[int] = []
    begins = bool(parts) and bool(bos_text) and parts[0].parse_special and parts[0].text.startswith(bos_text)
    for i, part in enumerate(parts):
        text = part.text
        if i and parts[i - 1].parse_special and text[:1].isspace() and not part.parse_special:
            # Some control tokens absorb the whitespace that follows them.
            blanks, token = text[: -len(text.lstrip())] or text, parts[i - 1].text[-_MAX_TOKEN_CHARS:]
            if tokenize(token + blanks, False, True) == tokenize(token, False, True):
                text = text[len(blanks) :]
        ids += tokenize(text, i == 0 and adds_bos and not begins, part.parse_special)
    return ids
