"""Conversations as the engine renders them."""

from __future__ import annotations

from typing import Any

from specllama.calls.abilities import abilities, rendered, rendered_text
from specllama.calls.format import TemplateData
from specllama.calls.formats import choose
from specllama.text.chat_template import ChatTemplate


class Rendering:
    """A chat template as the engine uses it. variables: that it wants in addition."""

    def __init__(self, source: str, **variables: Any) -> None:
        self._form, self._template, self._variables = choose(source), ChatTemplate(source), variables
        self.shows = abilities(self._form, self._rendered)

    def _rendered(self, data: TemplateData) -> str:
        variables = self._variables | dict(data.variables)
        return "".join(part.text for part in self._template.render(data.messages, **variables))

    def prompt(self, messages: list[dict[str, Any]]) -> str:
        if any(m["role"] == "tool" or m.get("tool_calls") for m in messages):
            return rendered(self._form, self.shows, messages, None, self._rendered)
        return rendered_text(self.shows, messages, self._rendered)
