"""Calls as Python writes them: of Llama 4 and small Llama 3.2. LFM2 and Olmo 3 put them between tokens, and
Olmo 3 puts each on a line.

[f(a=1, b="x"), g()]
"""

from __future__ import annotations

from specllama.calls.frame import Frame, FramedFormat
from specllama.calls.literals import PYTHON, LiteralArguments, Syntax


class Pythonic(FramedFormat):
    """The whole answer is a list of calls."""

    name = "pythonic"
    markers = ("[func_name1(params_name1=",)
    frame = Frame(open="[", mid="(", sep="), ", close=")]")
    style = LiteralArguments(PYTHON)


class Lfm2(FramedFormat):
    """LFM2: the list is between two control tokens."""

    name = "lfm2"
    markers = ("<|tool_list_start|>",)
    tokens = ("<|tool_call_start|>", "<|tool_call_end|>")
    frame = Frame(
        open="<|tool_call_start|>[",
        mid="(",
        sep="), ",
        close=")]<|tool_call_end|>",
        trigger="<|tool_call_start|>",
    )
    style = LiteralArguments(PYTHON)

    def matches(self, template: str) -> bool:
        return any(
            marker in template
            for marker in ("<|tool_list_start|>", "<|tool_call_start|>", "List of tools: [")
        )


class Olmo3(FramedFormat):
    """Olmo 3: a call on each line between two control tokens; true, false and null are JSON's."""

    name = "olmo3"
    markers = ("<function_calls>", "<functions>")
    tokens = ("<function_calls>", "</function_calls>")
    frame = Frame(
        open="<function_calls>",
        mid="(",
        sep=")\n",
        close=")</function_calls>",
        trigger="<function_calls>",
    )
    style = LiteralArguments(Syntax("=", ", ", ": ", ("true", "false", "null")))
