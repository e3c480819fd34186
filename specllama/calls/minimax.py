"""The format of MiniMax M2:

<minimax:tool_call>
<invoke name="f">
<parameter name="key">value</parameter>
</invoke>
</minimax:tool_call>
"""

from __future__ import annotations

from specllama.calls.frame import Frame, FramedFormat
from specllama.calls.tagged import TaggedArguments

_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"


class MiniMaxM2(FramedFormat):
    """The format as above."""

    name = "minimax-m2"
    markers = (_OPEN, '<invoke name="')
    tokens = (_OPEN, _CLOSE)
    frame = Frame(
        open=f'{_OPEN}\n<invoke name="',
        mid='">\n',
        sep='</invoke>\n<invoke name="',
        close=f"</invoke>\n{_CLOSE}",
        trigger=_OPEN,
    )
    style = TaggedArguments('<parameter name="', '">', "</parameter>\n")
