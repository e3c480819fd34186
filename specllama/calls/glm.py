"""The format of GLM 4.5 and later, Laguna, Ling and Spark, which differ in where lines end:

<tool_call>f
<arg_key>key</arg_key>
<arg_value>value</arg_value>
</tool_call>
"""

from __future__ import annotations

from specllama.calls.frame import Frame
from specllama.calls.framed import FramedFormat
from specllama.calls.lark import NEWLINE
from specllama.calls.tagged import TaggedArguments

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


class Glm(FramedFormat):
    """The format as above."""

    name = "glm"
    markers = (_OPEN, _KEY, _VALUE)
    tokens = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)
    frame = Frame(
        open=_OPEN,
        mid=2 * NEWLINE,  # Ling's without arguments
        sep=f"{_CLOSE}{NEWLINE}{_OPEN}",
        close=_CLOSE,
        trigger=_OPEN,
    )
    style = TaggedArguments(_KEY, f"{_KEY_END}{NEWLINE}{_VALUE}", f"{_VALUE_END}{NEWLINE}")
