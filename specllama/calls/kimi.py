"""The format of Kimi K2, whose ids have the name of the function and the number of the call:

<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>
<|tool_calls_section_end|>
"""

from __future__ import annotations

from specllama.calls.frame import ID, Frame, FramedFormat
from specllama.calls.history import Messages, with_ids

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


class KimiK2(FramedFormat):
    """The format as above, without line breaks."""

    name = "kimi-k2"
    markers = (_SECTION, _ARGUMENTS)
    tokens = (_SECTION, _SECTION_END, _CALL, _ARGUMENTS, _END)
    frame = Frame(
        open=f"{_SECTION}{_CALL}functions.",
        mid=f":{ID}{_ARGUMENTS}",
        sep=f"{_END}{_CALL}functions.",
        close=f"{_END}{_SECTION_END}",
        trigger=_SECTION,
        id="[0-9]{1,9}",
    )

    def fixed(self, messages: Messages) -> Messages:
        return with_ids(messages, lambda _id, name, n: f"functions.{name}:{n}")
