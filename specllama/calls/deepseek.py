"""DeepSeek's formats: of V3 and R1, of V3.1, and the tags of V3.2 and V4. Their bars are not ASCII's."""

from __future__ import annotations

from specllama.calls.frame import Frame, FramedFormat
from specllama.calls.lark import NEWLINE
from specllama.calls.tagged import TaggedArguments

_CALLS, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_DSML = "｜DSML｜"


class DeepSeekR1(FramedFormat):
    """V3 and R1: the arguments are a block of JSON."""

    name = "deepseek-r1"
    markers = (_CALLS, "```json")
    tokens = (_CALLS, _END, _CALL, _SEP, _CALL_END)
    frame = Frame(
        open=f"{_CALLS}{_CALL}function{_SEP}",
        mid="\n```json\n",
        sep=f"\n```{_CALL_END}\n{_CALL}function{_SEP}",
        close=f"\n```{_CALL_END}{_END}",
        trigger=_CALLS,
    )


class DeepSeekV31(FramedFormat):
    """V3.1."""

    name = "deepseek-v3.1"
    markers = (_CALLS,)
    tokens = (_CALLS, _END, _CALL, _SEP, _CALL_END)
    frame = Frame(
        open=f"{_CALLS}{_CALL}",
        mid=_SEP,
        sep=f"{_CALL_END}{_CALL}",
        close=f"{_CALL_END}{_END}",
        trigger=_CALLS,
    )


class DeepSeekV32(FramedFormat):
    """V3.2: tags around each argument."""

    name = "deepseek-v3.2"
    markers = (_DSML, "function_calls>")
    tokens = (_DSML,)
    frame = Frame(
        open=f'<{_DSML}function_calls>\n<{_DSML}invoke name="',
        mid='">\n',
        sep=f'</{_DSML}invoke>\n<{_DSML}invoke name="',
        close=f"</{_DSML}invoke>\n</{_DSML}function_calls>",
        trigger=f"<{_DSML}function_calls>",
    )
    style = TaggedArguments(
        f'<{_DSML}parameter name="', '" string="', f"</{_DSML}parameter>\n", typed=('true">', 'false">')
    )


class DeepSeekV4(DeepSeekV32):
    """V4: as V3.2 with another outer tag."""

    name = "deepseek-v4"
    markers = (_DSML, "tool_calls>")
    frame = Frame(
        open=f'<{_DSML}tool_calls>\n<{_DSML}invoke name="',
        mid=f'">\n{NEWLINE}',
        sep=f'</{_DSML}invoke>\n<{_DSML}invoke name="',
        close=f"</{_DSML}invoke>\n</{_DSML}tool_calls>",
        trigger=f"<{_DSML}tool_calls>",
    )
