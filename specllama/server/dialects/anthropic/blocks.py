"""Content blocks and tools of Anthropic's requests, and what the rest of the program makes of them.

Unknown fields of blocks are ignored (cache_control, citations …), unknown types are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from specllama.server.dialects.fields import AtMost, FieldError, OpenBody
from specllama.server.dialects.instructions import between_turns

MAX_BLOCKS, MAX_ARGUMENTS, MAX_ID = 4096, 4096, 256
_NOT_TEXT = frozenset({"image", "document", "audio", "video", "file", "container_upload"})
_PAIR = r"[ \t]{0,8}[\w.-]{1,64}=[^;\n]{0,256}(?:;|$)"
_HEADER = re.compile(rf"x-anthropic-billing-header:(?:{_PAIR}){{0,16}}[ \t]{{0,8}}\n?", re.MULTILINE)


class TextBlock(OpenBody):
    """A block where only text can stand: in `system` and in the result of a tool. In a result, a search for
    tools names what it found by tool_name; the tools themselves are in `tools`.
    """

    type: Annotated[str, Field(max_length=256)]
    text: str = ""
    tool_name: Annotated[str, Field(max_length=512)] = ""


Texts = str | Annotated[list[TextBlock], AtMost(MAX_BLOCKS)]


class ContentBlock(OpenBody):
    """A block of a message. Which of the fields count depends on the type."""

    type: Annotated[str, Field(max_length=256)]
    text: str = ""
    thinking: str = ""
    id: Annotated[str, Field(max_length=MAX_ID)] = ""
    name: Annotated[str, Field(max_length=512)] = ""
    input: Annotated[dict[str, Any], AtMost(MAX_ARGUMENTS)] | None = None
    tool_use_id: Annotated[str, Field(max_length=MAX_ID)] = ""
    content: Texts | None = None
    is_error: bool | None = None


class MessageTurn(OpenBody):
    """One turn, or instructions between turns."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], AtMost(MAX_BLOCKS)]

    def for_template(self, path: str) -> list[dict[str, Any]]:
        """The messages for the chat template: the results of tools come before the text. Raises FieldError.

        path: of this message in the body.
        """
        if self.role == "system":
            return [between_turns(joined(self.content, f"{path}.content"))]
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        read = _assistant if self.role == "assistant" else _user
        return read(self.content, f"{path}.content")


def joined(found: str | Sequence[TextBlock | ContentBlock] | None, path: str) -> str:
    """The text of blocks, one a line. Raises FieldError for other blocks. path: of the list in the body."""
    if found is None or isinstance(found, str):
        return found or ""
    for i, block in enumerate(found):
        if block.type != "text":
            raise _wrong_type(block.type, f"{path}[{i}]", "text")
    return "\n".join(block.text for block in found)


def system_text(system: Texts | None) -> str:
    """The system prompt, without the header that Claude Code puts before it: a checksum in it changes with
    every request, so that no prompt would begin like the one before.
    """
    if isinstance(system, list) and system and system[0].type == "text":
        rest = _without_header(system[0].text)
        system = [*([TextBlock(type="text", text=rest)] if rest else []), *system[1:]]
    return _without_header(joined(system, "system"))


def _without_header(text: str) -> str:
    found = _HEADER.match(text)
    return text[found.end() :] if found else text


def _user(blocks: Sequence[ContentBlock], path: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    texts = []
    for i, block in enumerate(blocks):
        here = f"{path}[{i}]"
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "tool_result":
            _require(block, "tool_use_id", here)
            text = _result(block.content, f"{here}.content")
            if block.is_error and not text.lower().startswith("error"):
                text = f"Error: {text}" if text else "Error"
            results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
        else:
            raise _wrong_type(block.type, here, "text or tool_result")
    if texts or not results:
        results.append({"role": "user", "content": "\n".join(texts)})
    return results


def _result(found: Texts | None, path: str) -> str:
    if isinstance(found, list):
        found = [
            TextBlock(type="text", text=f"The tool {block.tool_name} can be called now.")
            if block.type == "tool_reference"
            else block
            for block in found
        ]
    return joined(found, path)


def _assistant(blocks: Sequence[ContentBlock], path: str) -> list[dict[str, Any]]:
    texts, reasoning, calls = [], [], []
    for i, block in enumerate(blocks):
        here = f"{path}[{i}]"
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "thinking":
            reasoning.append(block.thinking)
        elif block.type == "tool_use":
            _require(block, "id", here)
            _require(block, "name", here)
            function = {"name": block.name, "arguments": block.input or {}}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif block.type != "redacted_thinking":
            raise _wrong_type(block.type, here, "text, tool_use, thinking or redacted_thinking")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    more = {"reasoning_content": "".join(reasoning), "tool_calls": calls}
    return [message | {name: value for name, value in more.items() if value}]


def _require(block: ContentBlock, name: str, path: str) -> None:
    if not getattr(block, name):
        raise FieldError(f"{path}.{name} is missing", f"{path}.{name}")


def _wrong_type(kind: str, path: str, known: str) -> FieldError:
    if kind in _NOT_TEXT:
        return FieldError(f"{path}.type: {kind!r} cannot be used, the model reads text alone", f"{path}.type")
    return FieldError(f"{path}.type must be {known} here, not {kind[:80]!r}", f"{path}.type")
