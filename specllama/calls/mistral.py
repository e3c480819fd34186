"""Mistral's formats. Up to Nemo and v3 a list of objects with ids, since v11 a marker for each call:

    [TOOL_CALLS][{"name": "f", "arguments": {…}, "id": "123456789"}]
    [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{…}
    [TOOL_CALLS]f[ARGS]{…}

Their templates refuse ids that are not 9 letters and digits.
"""

from __future__ import annotations

from specllama.calls.frame import ID, Frame, FramedFormat
from specllama.calls.history import Messages, nine_characters, with_ids

_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HEAD = '{"name": "'


class _Mistral(FramedFormat):
    def fixed(self, messages: Messages) -> Messages:
        return with_ids(messages, nine_characters)


class MistralList(_Mistral):
    """Nemo, 7B v0.3, Small up to 3.1."""

    name = "mistral-list"
    markers = (_CALLS,)
    tokens = (_CALLS,)
    frame = Frame(
        open=f"{_CALLS}[{_HEAD}",
        mid='", "arguments": ',
        sep=f', "id": "{ID}"}}, {_HEAD}',
        close=f', "id": "{ID}"}}]',
        trigger=_CALLS,
    )


class MistralArgs(_Mistral):
    """Devstral, Magistral, Ministral 3."""

    name = "mistral"
    markers = (_CALLS, _ARGS)
    tokens = (_CALLS, _ARGS)
    frame = Frame(open=_CALLS, mid=_ARGS, sep=_CALLS, close="", trigger=_CALLS)


class MistralIds(_Mistral):
    """Small 3.2."""

    name = "mistral-ids"
    markers = (_CALLS, _ID, _ARGS)
    tokens = (_CALLS, _ID, _ARGS)
    frame = Frame(open=_CALLS, mid=f"{_ID}{ID}{_ARGS}", sep=_CALLS, close="", trigger=_CALLS)
