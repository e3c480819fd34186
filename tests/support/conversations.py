"""Conversations in a form of no API, each written as the body of a request in every API of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Body = dict[str, Any]


@dataclass(frozen=True)
class Media:
    """A picture, sound or file. name: of a file."""

    kind: Literal["image", "audio", "file"] = "image"
    name: str = ""


Parts = str | Sequence[str | Media]


@dataclass(frozen=True)
class Say:
    """A message of the system or the user."""

    role: Literal["system", "user"]
    content: Parts


@dataclass(frozen=True)
class Call:
    """A call. arguments: as the model wrote them."""

    id: str
    name: str = "weather"
    arguments: str = '{"city": "Paris"}'


@dataclass(frozen=True)
class Answer:
    """A message of the assistant."""

    content: Parts = ""
    thought: str = ""
    calls: Sequence[Call] = ()


@dataclass(frozen=True)
class Result:
    """The result of a call."""

    id: str
    content: Parts = "done"
    failed: bool = False


@dataclass(frozen=True)
class Foreign:
    """A call that another provider ran. result: None where its result is not shown to the client."""

    id: str
    name: str
    arguments: str
    result: str | None


Turn = Say | Answer | Result | Foreign


@dataclass(frozen=True)
class Style:
    """How a client writes. thought: which of an API's places for reasoning it uses. parts: texts are lists of
    parts, too. own: it has fields of its own everywhere. nulls: absent fields are null.
    """

    thought: int = 0
    parts: bool = False
    own: bool = False
    nulls: bool = False

    def written(self, found: Body, *absent: str) -> Body:
        """An object with what this style adds."""
        more: Body = {"mood": {"a": [1]}, "cache_control": {"type": "ephemeral"}} if self.own else {}
        if self.nulls:
            more |= dict.fromkeys((*absent, "mood"))
        return {**more, **found}

    def texts(self, content: Parts) -> Sequence[str | Media] | str:
        """A content that this style writes in parts, or as one text."""
        return [content] if isinstance(content, str) and self.parts and content else content


PLAIN = Style()
_OWN = {"id": "m_1", "annotations": [], "provider_specific_fields": {"x": 1}, "created_at": 1}


@dataclass(frozen=True)
class Conversation:
    """turns, and what the styles of clients differ in. continues: whether the last answer goes on, which
    responses do not.
    """

    name: str
    turns: Sequence[Turn]
    style: Style = field(default=PLAIN)
    continues: bool = False


def chat(found: Conversation) -> Body:
    """The body of /v1/chat/completions."""
    style, messages = found.style, list[Body]()
    for turn in found.turns:
        if isinstance(turn, Say):
            messages.append({"role": turn.role, "content": _chat_content(turn.content, style)})
        elif isinstance(turn, Result):
            content = _chat_content(_failed(turn), style)
            messages.append({"role": "tool", "tool_call_id": turn.id, "content": content})
        elif isinstance(turn, Foreign):
            if turn.result is not None:
                messages += [_chat_calls([Call(turn.id, turn.name, turn.arguments)], style)]
                messages.append({"role": "tool", "tool_call_id": turn.id, "content": turn.result})
        else:
            calls = _chat_calls(turn.calls, style) if turn.calls else {}
            messages.append(
                calls | {"role": "assistant", "content": _chat_content(turn.content, style) or None}
            )
            _add_thought(messages[-1], turn.thought, style)
    own, absent = _OWN if style.own else {}, ("name", "refusal", "audio", "function_call")
    return {"messages": [style.written(message | own, *absent) for message in messages]}


def _chat_content(content: Parts, style: Style) -> Any:
    given = style.texts(content)
    if isinstance(given, str):
        return given
    kinds: dict[str, Callable[[Media], Body]] = {
        "image": lambda _: {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        "audio": lambda _: {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        "file": lambda m: {"type": "file", "file": {"filename": m.name, "file_data": "aGk="}},
    }
    parts = [{"type": "text", "text": p} if isinstance(p, str) else kinds[p.kind](p) for p in given]
    return [style.written(part, "annotations") for part in parts]


def _chat_calls(calls: Sequence[Call], style: Style) -> Body:
    shown = []
    for i, call in enumerate(calls):
        function = {"name": call.name, "arguments": call.arguments}
        shown.append(style.written({"id": call.id, "type": "function", "index": i, "function": function}))
    return {"role": "assistant", "content": "", "tool_calls": shown}


def _add_thought(message: Body, thought: str, style: Style) -> None:
    """Reasoning in one of the places that clients of chat completions have for it."""
    if not thought:
        return
    halves = thought[: len(thought) // 2], thought[len(thought) // 2 :]
    places: list[Body] = [
        {"reasoning_content": thought},
        {"reasoning": thought},
        {"thinking_blocks": [{"type": "thinking", "thinking": thought, "signature": "x"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": half} for half in halves]},
    ]
    if style.thought < len(places):
        message |= places[style.thought]
        return
    content = message["content"] or []
    content = [{"type": "text", "text": content}] if isinstance(content, str) else content
    message["content"] = [{"type": "thinking", "thinking": thought}, *content]


def responses(found: Conversation) -> Body:
    """The body of /v1/responses."""
    style, items = found.style, list[Body]()
    for turn in found.turns:
        if isinstance(turn, Say):
            role = "developer" if turn.role == "system" else "user"
            items.append({"type": "message", "role": role, "content": _response_content(turn.content, style)})
        elif isinstance(turn, Result):
            output = _response_content(_failed(turn), style)
            items.append({"type": "function_call_output", "call_id": turn.id, "output": output})
        elif isinstance(turn, Foreign):
            items.append(_foreign_item(turn))
        else:
            items += _response_answer(turn, style)
    own = {"id": "it_1", "status": "completed"} if style.own else {}
    return {"input": [style.written(item | own, "namespace", "summary") for item in items]}


def _foreign_item(turn: Foreign) -> Body:
    if turn.result is None:
        return {"type": "web_search_call", "id": turn.id, "action": {"type": "search", "query": "x"}}
    made = {"id": turn.id, "name": turn.name, "arguments": turn.arguments, "server_label": "s"}
    return {"type": "mcp_call", **made, "output": turn.result}


def _response_answer(turn: Answer, style: Style) -> list[Body]:
    items: list[Body] = []
    if turn.thought:
        parts = [{"type": "reasoning_text", "text": turn.thought}]
        summary = [{"type": "summary_text", "text": turn.thought}]
        items.append({"type": "reasoning", "summary": [], "content": parts} if style.thought % 2 == 0
                     else {"type": "reasoning", "summary": summary, "encrypted_content": "x"})  # fmt: skip
    if turn.content or not turn.calls:
        given = style.texts(turn.content)
        content: Any = given if isinstance(given, str) else [
            style.written({"type": "output_text", "text": text}, "logprobs") for text in given
        ]  # fmt: skip
        items.append({"role": "assistant", "content": content})
    for call in turn.calls:
        items.append(
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        )
    return items


def _response_content(content: Parts, style: Style) -> Any:
    given = style.texts(content)
    if isinstance(given, str):
        return given
    kinds: dict[str, Callable[[Media], Body]] = {
        "image": lambda _: {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
        "audio": lambda _: {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        "file": lambda m: {"type": "input_file", "filename": m.name, "file_data": "aGk="},
    }
    parts = [{"type": "input_text", "text": p} if isinstance(p, str) else kinds[p.kind](p) for p in given]
    return [style.written(part, "annotations") for part in parts]


def messages(found: Conversation) -> Body:
    """The body of /v1/messages."""
    style, turns, body = found.style, list[Body](), Body({"max_tokens": 5})
    for i, turn in enumerate(found.turns):
        if isinstance(turn, Say) and turn.role == "system" and i == 0:
            body["system"] = _message_content(turn.content, style)
        elif isinstance(turn, Say):
            turns.append({"role": turn.role, "content": _message_content(turn.content, style)})
        elif isinstance(turn, Result):
            block = {
                "type": "tool_result",
                "tool_use_id": turn.id,
                "content": _message_content(turn.content, style),
            }
            block |= {"is_error": True} if turn.failed else {}
            last = turns[-1] if turns else {"role": ""}
            own = last["role"] == "user" and last["content"][0]["type"] == "tool_result"
            if own:  # results of one turn are blocks of one message
                last["content"].append(style.written(block))
            else:
                turns.append({"role": "user", "content": [style.written(block)]})
        elif isinstance(turn, Foreign):
            turns.append({"role": "assistant", "content": _foreign_blocks(turn)})
        else:
            turns.append(_message_answer(turn, style))
    own = {"id": "msg_1", "type": "message", "stop_reason": "end_turn", "usage": {}} if style.own else {}
    return body | {"messages": [style.written(turn | own, "name") for turn in turns]}


def _foreign_blocks(turn: Foreign) -> list[Body]:
    if turn.result is None:
        return [{"type": "compaction", "content": "x"}]
    use = {"type": "mcp_tool_use", "id": turn.id, "name": turn.name, "server_name": "s"}
    return [
        use | {"input": json.loads(turn.arguments)},
        {
            "type": "mcp_tool_result",
            "tool_use_id": turn.id,
            "content": [{"type": "text", "text": turn.result}],
        },
    ]


def _message_answer(turn: Answer, style: Style) -> Body:
    blocks: list[Body] = []
    if turn.thought and style.thought % 2 == 0:
        blocks.append({"type": "thinking", "thinking": turn.thought, "signature": ""})
    texts = [turn.content] if isinstance(turn.content, str) else turn.content
    blocks += [style.written({"type": "text", "text": text}, "citations") for text in texts if text]
    for call in turn.calls:
        try:
            given: Any = json.loads(call.arguments or "{}")
        except ValueError:  # clients send what they have
            given = call.arguments
        blocks.append(style.written({"type": "tool_use", "id": call.id, "name": call.name, "input": given}))
    alone = not turn.thought and not turn.calls and isinstance(turn.content, str) and not style.parts
    found: Body = {"role": "assistant", "content": turn.content if alone else blocks}
    return found | ({"reasoning_content": turn.thought} if turn.thought and style.thought % 2 else {})


def _message_content(content: Parts, style: Style) -> Any:
    given = style.texts(content)
    if isinstance(given, str):
        return given
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    kinds: dict[str, Callable[[Media], Body]] = {
        "image": lambda _: {"type": "image", "source": source},
        "audio": lambda _: {"type": "audio", "source": source},
        "file": lambda m: {"type": "document", "title": m.name, "source": source},
    }
    parts = [{"type": "text", "text": p} if isinstance(p, str) else kinds[p.kind](p) for p in given]
    return [style.written(part, "citations") for part in parts]


def ollama(found: Conversation) -> Body:
    """The body of /api/chat. Pictures alone are lists next to the content."""
    style, shown = found.style, list[Body]()
    for turn in found.turns:
        if isinstance(turn, Say):
            shown.append({"role": turn.role, "content": _ollama_content(turn.content, style)})
        elif isinstance(turn, Result):
            content = _ollama_content(_failed(turn), style)
            shown.append({"role": "tool", "tool_call_id": turn.id, "content": content})
        elif isinstance(turn, Foreign):
            if turn.result is not None:
                shown.append(
                    {
                        "role": "assistant",
                        "tool_calls": [_ollama_call(Call(turn.id, turn.name, turn.arguments))],
                    }
                )
                shown.append({"role": "tool", "tool_call_id": turn.id, "content": turn.result})
        else:
            one: Body = {"role": "assistant", "content": _ollama_content(turn.content, style)}
            if turn.thought:
                one[("thinking", "reasoning_content")[style.thought % 2]] = turn.thought
            if turn.calls:
                one["tool_calls"] = [_ollama_call(call) for call in turn.calls]
            shown.append(one)
    own = {"done": True, "created_at": "x", "model": "m"} if style.own else {}
    return {"messages": [style.written(m | own, "images", "tool_name", "name") for m in shown]}


def _ollama_call(call: Call) -> Body:
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = call.arguments
    return {"id": call.id, "function": {"index": 0, "name": call.name, "arguments": arguments}}


def _ollama_content(content: Parts, style: Style) -> Any:
    return content if isinstance(content, str) and not style.parts else _chat_content(content, style)


def _failed(turn: Result) -> Parts:
    """The result with the words that Messages puts before those of errors."""
    said = turn.content if isinstance(turn.content, str) else ""
    if not turn.failed or said.startswith("Error"):
        return turn.content
    return f"Error: {turn.content}" if isinstance(turn.content, str) else ["Error:", *turn.content]


WRITERS: dict[str, Callable[[Conversation], Body]] = {
    "chat": chat,
    "responses": responses,
    "messages": messages,
    "ollama": ollama,
}
"""The APIs, and what writes a conversation for each."""
