"""The formats of Gemma 4 and FunctionGemma, whose values are not JSON:

<|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>
"""

from __future__ import annotations

from specllama.calls.frame import Frame, FramedFormat
from specllama.calls.literals import LiteralArguments, Syntax

_WORDS = ("true", "false", "null")


def _frame(opening: str, closing: str) -> Frame:
    return Frame(
        open=f"{opening}call:",
        mid="{",
        sep=f"}}{closing}{opening}call:",
        close=f"}}{closing}",
        trigger=opening,
    )


class Gemma4(FramedFormat):
    """Gemma 4, which also reasons in a channel."""

    name = "gemma4"
    markers = ("<|tool_call>call:",)
    tokens = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")
    reasons, thinks = True, ("<|channel>thought\n", "<channel|>")
    headers = (("<|channel>",), "\n")
    frame = _frame("<|tool_call>", "<tool_call|>")
    style = LiteralArguments(Syntax(":", ",", ":", _WORDS, '<|"|>', sorts=True))


class FunctionGemma(FramedFormat):
    """FunctionGemma."""

    name = "functiongemma"
    markers = ("<start_function_call>",)
    tokens = ("<start_function_call>", "<end_function_call>", "<escape>")
    frame = _frame("<start_function_call>", "<end_function_call>")
    style = LiteralArguments(Syntax(":", ",", ":", _WORDS, "<escape>", sorts=True))
