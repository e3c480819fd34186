"""The format of Command R7B, Command A and later, which has tokens around each part of an answer:

    <|START_THINKING|>…<|END_THINKING|><|START_ACTION|>[
        {"tool_call_id": "0", "tool_name": "f", "parameters": {…}}
    ]<|END_ACTION|>

Text is between <|START_RESPONSE|> and <|END_RESPONSE|>, or <|START_TEXT|> and <|END_TEXT|>.
"""

from __future__ import annotations

from specllama.calls.frame import ID, Frame, FramedFormat, FrameReader
from specllama.calls.lark import Lark
from specllama.calls.scanner import Steps

_ACTION, _ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
_TEXTS = (("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>"))
_HEAD = f'{{"tool_call_id": "{ID}", "tool_name": "'


class CommandRReader(FrameReader):
    """Leaves the tokens around the text out."""

    def steps(self) -> Steps[None]:
        trigger = self.scan.marker(_ACTION)
        around = [self.scan.marker(text) for pair in _TEXTS for text in pair]
        while (marker := (yield from self.scan.text_until((trigger, *around)))) is not None:
            if marker != trigger:
                self.scan.take(self.scan.text.find(marker) + len(marker))
            elif not (yield from self.calls()):
                self.scan.write_text(self.scan.text.find(trigger) + len(trigger))


class CommandR(FramedFormat):
    """The format as above."""

    name = "command-r"
    markers = (_ACTION, '"tool_call_id"')
    read_by = CommandRReader
    tokens = (_ACTION, _ACTION_END, *_TEXTS[0], *_TEXTS[1])
    frame = Frame(
        open=f"{_ACTION}[\n    {_HEAD}",
        mid='", "parameters": ',
        sep=f"}},\n    {_HEAD}",
        close=f"}}\n]{_ACTION_END}",
        trigger=_ACTION,
        id="[0-9]{1,4}",
    )

    def plain(self, lark: Lark, text: str, /) -> str:
        wrapped = [
            f"{lark.text(opening)} {f'{text} {lark.text(closing)}' if text else lark.until(closing)}"
            for opening, closing in _TEXTS
            if opening in lark.shape.special
        ]
        return " | ".join([text or "TEXT", *wrapped])
