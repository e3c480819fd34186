"""Tools in a chat: the file that describes them, the calls in an answer, the results that the user types."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from specllama.calls import definitions
from specllama.calls.collector import CallCollector
from specllama.calls.tools import Tools
from specllama.cli.chat.engine import ChatEngine
from specllama.cli.chat.screen import Screen
from specllama.client.stream import GenerationResult
from specllama.config.build import read_text
from specllama.errors import UsageError
from specllama.text.detokenizer import Runs


def read_tools(path: str) -> Tools | None:
    """The tools in a file: a list of tools as the OpenAI API takes them, or an object with such a list as
    "tools". Raises NotFoundError, UsageError.
    """
    try:
        found = json.loads(read_text(path, "tools"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f": {path} is no JSON: {str(error)[:100]}", option="tools") from None
    if isinstance(found, dict):
        found = found.get("tools")
    if not isinstance(found, list):
        raise UsageError(
            f": {path} has no list of tools",
            'as [{"type": "function", "function": {"name": …, "parameters": …}}]',
            option="tools",
        )
    try:
        return definitions.tools(found)
    except UsageError as error:
        raise UsageError(f": {path}: {error.message}", error.hint, option="tools") from None


def result_message(call: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The message with the result of a call."""
    name = call["function"]["name"]
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": text}


class AnswerOutput:
    """Shows an answer: its text as it arrives, its calls at the end. text: without the calls; calls: as chat
    templates read them, once it has ended.
    """

    def __init__(self, screen: Screen, answer: GenerationResult, engine: ChatEngine) -> None:
        self.calls: list[dict[str, Any]] = []
        self._screen, self._answer, self._engine = screen, answer, engine
        self._collector: CallCollector | None = None

    @property
    def text(self) -> str:
        return self._answer.text if self._collector is None else self._collector.text

    def show(self, text: str, runs: Runs) -> None:
        """Show the next piece of the answer. runs: (characters, source)."""
        tools = self._engine.tools
        if tools is not None and self._collector is None:
            reader = self._engine.info.call_reader(tools)
            self._collector = CallCollector(reader, self._answer.closing_tag)
        if self._collector is None:
            self._screen.show(text, runs)
        else:
            self._push(text, runs)

    def end(self) -> None:
        """Show what was held back, and the calls."""
        if self._collector is None:
            return
        self._push("", (), last=True)
        for call in self._collector.calls:
            self._screen.line(f"{call.name}({call.arguments})")
            function = {"name": call.name, "arguments": json.loads(call.arguments)}
            made = {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
            self.calls.append(made)

    def _push(self, text: str, runs: Runs, last: bool = False) -> None:
        assert self._collector is not None
        for piece in self._collector.push(text, runs, last):
            self._screen.show(piece.text, piece.runs)
