"""The format of GLM 4.5 and later, Laguna, Ling and Spark, which differ in where lines end, and that of Hy3:

<tool_call>f
<arg_key>key</arg_key>
<arg_value>value</arg_value>
</tool_call>
"""

from __future__ import annotations

from specllama.calls.frame import Frame, FramedFormat
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


_NAMES = ("tool_calls", "tool_call", "arg_key", "arg_value", "think")  # of Hy3's tags in pairs


def _hy3(name: str) -> str:
    return f"<{name}:opensource>"


class Hy3(FramedFormat):
    """Tencent's Hy3: all tags are control tokens with a suffix, and one more is around the calls."""

    name = "hy3"
    markers = ("HYTK = ':opensource'", "<tool_sep{}>")
    tokens = tuple(map(_hy3, (*_NAMES, *(f"/{name}" for name in _NAMES), "tool_sep")))
    frame = Frame(
        open=f"{_hy3('tool_calls')}\n{_hy3('tool_call')}",
        mid=f"{_hy3('tool_sep')}\n",
        sep=f"{_hy3('/tool_call')}\n{_hy3('tool_call')}",
        close=f"{_hy3('/tool_call')}\n{_hy3('/tool_calls')}",
        trigger=_hy3("tool_calls"),
    )
    style = TaggedArguments(
        _hy3("arg_key"), f"{_hy3('/arg_key')}\n{_hy3('arg_value')}", f"{_hy3('/arg_value')}\n"
    )
    thinks = (_hy3("think"), _hy3("/think"))
