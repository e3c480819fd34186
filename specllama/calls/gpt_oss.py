"""The format of gpt-oss: every part of an answer is a message in a channel.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f \
<|constrain|>json<|message|>{…}<|call|>

Reasoning is in the channel analysis, the answer in final; commentary has calls, and text before them. The
recipient may also come before the channel. <|call|> and <|return|> end the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

from specllama.calls.format import MAX_PARTS, AnswerShape, CallFormat, Lark, marked
from specllama.calls.history import Call, Messages, one_call_each
from specllama.calls.scanner import StepReader, Steps
from specllama.calls.schema import bodies, json_text
from specllama.calls.tools import Tools
from specllama.text.detokenizer import MAX_HEADER

_CHANNEL, _MESSAGE, _START, _END = "<|channel|>", "<|message|>", "<|start|>", "<|end|>"
_CONSTRAIN, _CALL, _RETURN = "<|constrain|>", "<|call|>", "<|return|>"
_NEXT = f"{_END}{_START}assistant"
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_MAX_THOUGHTS = 4  # messages before a call that is required


class GptOss(CallFormat):
    """The format as above; one call an answer."""

    name = "gpt-oss"
    markers = (_CHANNEL, _MESSAGE, "to=functions.")
    reasons = True
    begin = f"{_CHANNEL}final{_MESSAGE}"
    begin_thought = (f"{_CHANNEL}analysis{_MESSAGE}", f"{_NEXT}{_CHANNEL}final{_MESSAGE}")
    end_thought = (_END, _NEXT[len(_END) :])
    headers = ((_START, _CHANNEL), _MESSAGE)
    tokens = (_CHANNEL, _MESSAGE, _START, _END, _CONSTRAIN, _CALL, _RETURN)

    def matches(self, template: str) -> bool:
        return all(text in template for text in (_CHANNEL, _MESSAGE, "functions.", "commentary"))

    def fixed(self, messages: Messages) -> Messages:
        # Reasoning is called `thinking`, and is there only with calls, instead of text.
        rewritten = Messages()
        for message in one_call_each(messages):
            thought = message.get("reasoning_content") if message.get("tool_calls") else None
            kept = {k: v for k, v in message.items() if k != "reasoning_content"}
            rewritten.append({**kept, "thinking": thought, "content": ""} if thought else kept)
        return rewritten

    def write(self, calls: Sequence[Call], special: Collection[str] = ()) -> str:
        channel, kind = marked(_CHANNEL, special), marked(f"{_CONSTRAIN}json{_MESSAGE}", special)
        written = (
            f"{channel}commentary to=functions.{name} {kind}{json.dumps(arguments, ensure_ascii=False)}"
            for name, arguments in calls
        )
        return marked(f"{_CALL}{_START}assistant", special).join(written)

    def grammar(self, tools: Tools, shape: AnswerShape) -> str:
        lark = Lark(shape)
        capped = tools.choice == "required"
        if shape.begun and not capped:
            return lark.answer(shape.text or "TEXT", False)
        start, message = lark.text(_CHANNEL), lark.text(_MESSAGE)
        text = lark.capped(_END, MAX_PARTS // _MAX_THOUGHTS) if capped else lark.until(_END)
        ending = f"{text} {lark.text(_NEXT[len(_END) :])}"
        thought = lark.rule(f'{start} "analysis" {message} {ending}')
        spoken = lark.rule(f'{start} "commentary" {message} {ending}')
        final = lark.rule(f'{start} "final" {self._kind(lark)} {message} {shape.text or "TEXT"}')
        before = f"({thought}{{0,{_MAX_THOUGHTS - 1}}} {spoken}?)" if capped else f"({thought} | {spoken})*"
        before = f"{ending} {before}" if shape.begun else before
        if not tools.allowed:
            return f"start: {before} {final}\n" + lark.answer(final, False).partition("\n")[2]
        calls = [
            lark.rule(f"{self._head(lark, names, message)} {lark.rule(json_text(schema))}")
            for schema, names in bodies(tools)
        ]
        last = lark.one_of(calls if capped else [*calls, final])
        return f"start: {before} {last}\n" + lark.answer(last, False).partition("\n")[2]

    def _kind(self, lark: Lark) -> str:
        """Items that may name the type of a message's content."""
        return f'(" "? {lark.text(_CONSTRAIN)}? "json")?'

    def _head(self, lark: Lark, names: Sequence[str], message: str) -> str:
        options = [lark.text(f"to=functions.{name}") for name in names]
        one = lark.one_of(options)
        usual = f'{lark.text(_CHANNEL)} "commentary " {one} {self._kind(lark)}'
        other = f'" " {one} {lark.text(_CHANNEL)} "commentary" {self._kind(lark)}'
        return f"{lark.rule(f'{usual} | {other}')} {message}"

    def reader(self, tools: Tools, special: Collection[str] | None = None) -> StepReader:
        return GptOssReader(tools, special)


class GptOssReader(StepReader):
    """Reads one message after another. What does not begin with a header is text up to the message's end."""

    def steps(self) -> Steps[None]:
        scan = self.scan
        ends = [scan.marker(text) for text in (_END, _CALL, _RETURN)]
        while True:
            header = (yield from self._header()) or ""
            recipient = _RECIPIENT.search(header)
            name = recipient.group(1) if recipient else ""
            if name in self.tools and (yield from scan.next_is("{")):
                scan.open(name)
                if not (yield from scan.json_object()):
                    break
                scan.close()
            else:
                scan.drop()
                if (yield from scan.text_until(ends, reasoning="analysis" in header)) is None:
                    return
            yield from scan.blanks()
            if (yield from scan.match(ends)) is None:
                break
            scan.drop()
        scan.at = 0
        yield from scan.text_until(())

    def _header(self) -> Steps[str | None]:
        """The header of the next message; None if none follows. One that is cut off is removed."""
        scan = self.scan
        yield from scan.blanks()
        markers = scan.marker(_START), scan.marker(_CHANNEL)
        first = yield from scan.match((*markers, "to=functions."))
        scan.at = 0
        if first is None:
            return None
        header = yield from scan.before(scan.marker(_MESSAGE), MAX_HEADER)
        if header is None:
            scan.at = 0
            if scan.last and first in markers and len(scan.text) <= MAX_HEADER:
                scan.take(len(scan.text))
        return header
