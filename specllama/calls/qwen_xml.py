"""The format of Qwen3-Coder, Qwen 3.5, Nemotron 3 and Step 3.5, and that of Seed, which has its own tag:

<tool_call>
<function=f>
<parameter=key>
value
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

from specllama.calls.frame import Frame, FramedFormat
from specllama.calls.history import Messages, text_of, with_arguments
from specllama.calls.lark import NEWLINE
from specllama.calls.tagged import TaggedArguments


def _frame(opening: str, closing: str) -> Frame:
    return Frame(
        open=f"{opening}\n<function=",
        mid=">\n",
        sep=f"</function>\n{closing}{NEWLINE}{opening}\n<function=",
        close=f"</function>\n{closing}",
        trigger=opening,
    )


class QwenXml(FramedFormat):
    """The format as above."""

    name = "qwen-xml"
    markers = ("<tool_call>", "<function=", "<parameter=")
    tokens = ("<tool_call>", "</tool_call>")
    frame = _frame("<tool_call>", "</tool_call>")
    style = TaggedArguments("<parameter=", ">\n", "\n</parameter>\n", words=True)


class Seed(FramedFormat):
    """ByteDance's Seed-OSS: values are on the line of their tags."""

    name = "seed"
    markers = ("<seed:tool_call>", "<function=", "<parameter=")
    tokens = ("<seed:tool_call>", "</seed:tool_call>")
    frame = _frame("<seed:tool_call>", "</seed:tool_call>")
    style = TaggedArguments("<parameter=", ">", "</parameter>\n", words=True)

    def fixed(self, messages: Messages) -> Messages:
        return with_arguments(messages, text_of)  # the template writes other values as Python does
