"""Chat templates with calls: rendering earlier turns, and checking what the template writes of the calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specllama.calls.abilities import Abilities, abilities, rendered
from specllama.calls.format import CallFormat, TemplateData
from specllama.calls.frame import FramedFormat
from specllama.calls.tools import Tools
from specllama.text.chat_template import ChatTemplate
from tests.support.tool_calls import TOOLS, Call, grammar, read, turns

FOLDER = Path(os.environ.get("SPECLLAMA_TEMPLATES") or Path(sys.prefix) / "share" / "llama.cpp-templates")
SOURCES = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.jinja"))}
"""The templates of real models, by name; {} where they were not fetched."""


class CallTemplate:
    """A chat template, used for models of a call format. more: variables that it needs."""

    def __init__(self, form: CallFormat, source: str, more: Mapping[str, Any] | None = None) -> None:
        self.form, self._more = form, more or {}
        self._template = ChatTemplate(source, bos="<s>", eos="</s>")
        self.shows: Abilities = abilities(form, self.render)

    def render(self, data: TemplateData) -> str:
        variables = {**self._more, **data.variables}
        return "".join(part.text for part in self._template.render(data.messages, **variables))

    def conversation(self, messages: Sequence[dict[str, Any]]) -> str:
        """The prompt of a conversation with tools."""
        return rendered(self.form, self.shows, messages, Tools(TOOLS), self.render)

    def check(self, calls: Sequence[Call]) -> None:
        """Calls of an earlier turn are written as the grammar has them, and read again; results are shown."""
        rendered = self.conversation(turns(calls))
        assert all(f"RESULT {i}" in rendered for i in range(len(calls))), rendered
        for call in calls if not parallel(self.form) else [calls]:
            expected = [call] if isinstance(call, tuple) else list(call)
            assert self._found(rendered, expected) == expected, rendered

    def _found(self, rendered: str, expected: list[Call]) -> list[Call]:
        """The calls where the prompt has something that the grammar accepts."""
        tools = Tools(TOOLS, "required")
        compiled, found = grammar(self.form, tools), list[Call]()
        begin = self.begin(expected[0])
        at = rendered.find(begin, rendered.index("QUESTION"))
        while at >= 0 and found != expected:
            text = rendered[at:]
            n, _ = compiled.accepted(text)
            found = read(self.form, tools, text.encode()[:n].decode("utf-8", "replace"))[1]
            at = rendered.find(begin, at + 1)
        return found

    def begin(self, call: Call) -> str:
        """The text with which calls begin."""
        if not isinstance(self.form, FramedFormat):
            return " to=functions." + call[0]
        frame = self.form.frame
        return frame.trigger or f"{frame.open}{call[0]}"


def parallel(form: CallFormat) -> bool:
    """Whether a turn may have several calls."""
    return isinstance(form, FramedFormat) and form.parallel
