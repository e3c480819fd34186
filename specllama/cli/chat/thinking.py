"""Which part of an answer is reasoning: between tags at its beginning, one of which the template may have
written.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from specllama.config.load import LoadSettings
from specllama.errors import SpecllamaError
from specllama.text.reasoning import TAGS


class Thinking:
    """Splits the stretches of one answer as they come.

    closing: the tag that ends the reasoning that the template has begun, "" where it has not.
    """

    def __init__(self, closing: str = "") -> None:
        self._closing, self._undecided = closing, not closing
        self._held: list[tuple[str, str]] = []  # text and source, while it may still become a tag
        self._tail = ""

    def push(self, text: str, source: str) -> list[tuple[str, str, bool]]:
        """(text, source, whether it is reasoning) of what is certain by now."""
        if not self._undecided:
            return self._split(text, source)
        self._held.append((text, source))
        begun = "".join(held for held, _ in self._held).lstrip()
        if any(tag.startswith(begun) and tag != begun for tag in TAGS):
            return []
        self._closing = next((end for tag, end in TAGS.items() if begun.startswith(tag)), "")
        return self.finish()

    def finish(self) -> list[tuple[str, str, bool]]:
        """What was held back, at the end of the answer."""
        self._undecided = False
        held, self._held = self._held, []
        return [part for text, source in held for part in self._split(text, source)]

    def _split(self, text: str, source: str) -> list[tuple[str, str, bool]]:
        if not self._closing:
            return [(text, source, False)]
        joined = self._tail + text
        at = joined.find(self._closing)
        if at < 0:
            self._tail = joined[-(len(self._closing) - 1) :]
            return [(text, source, True)]
        n = at + len(self._closing) - len(self._tail)
        self._closing = ""
        return [part for part in ((text[:n], source, True), (text[n:], source, False)) if part[0]]


class TemplateTag:
    """Looks, beside the load, whether the template begins every answer inside its reasoning."""

    def __init__(self, settings: LoadSettings, variables: Mapping[str, Any]) -> None:
        self._found = ""
        self._thread = threading.Thread(target=self._look, args=(settings, variables), daemon=True)
        self._thread.start()

    @property
    def closing(self) -> str:
        """The tag that will end the reasoning, or ""."""
        self._thread.join(timeout=3.0)
        return self._found

    def _look(self, settings: LoadSettings, variables: Mapping[str, Any]) -> None:
        try:
            self._found = _left_open(_template(settings), variables)
        except SpecllamaError:  # the engine says what is wrong with the file or the template
            return


def _template(settings: LoadSettings) -> str:
    from specllama.gguf.header import read_model

    return settings.chat_template or read_model(settings.target.path).chat_template or ""


def _left_open(source: str, variables: Mapping[str, Any]) -> str:
    if not any(tag in source for tag in TAGS):
        return ""
    from specllama.text.chat_template import ChatTemplate

    parts = ChatTemplate(source).render([{"role": "user", "content": "Hello"}], **variables)
    text = "".join(part.text for part in parts)
    at, tag = max((text.rfind(tag), tag) for tag in TAGS)
    return TAGS[tag] if at >= 0 and TAGS[tag] not in text[at:] else ""
