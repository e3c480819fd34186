"""Reads the calls in the text of a whole answer."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from specllama.calls.format import CallFormat
from specllama.calls.pieces import ArgumentsPiece, ClosePiece, OpenPiece, TextPiece
from specllama.calls.tools import Tools

_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)```\s*", re.DOTALL)


@dataclass(slots=True)
class ReadCall:
    """A call in an answer. arguments: JSON, an object if the call is complete."""

    name: str
    arguments: str = ""
    complete: bool = False


def read(
    form: CallFormat, tools: Tools, text: str, special: Collection[str] | None = None
) -> tuple[str, list[ReadCall]]:
    """(The text without the calls, the calls) of an answer without its reasoning.

    An answer that is nothing but a JSON object with the name of a tool and its arguments is a call in every
    format, also in a block of code. special: as for CallFormat.reader.
    """
    reader, kept, calls = form.reader(tools, special), list[str](), list[ReadCall]()
    for piece in reader.push(text, [(len(text), "target")] if text else []) + reader.finish():
        if isinstance(piece, TextPiece):
            kept.append(piece.text)
        elif isinstance(piece, OpenPiece):
            calls.append(ReadCall(piece.name))
        elif isinstance(piece, ArgumentsPiece):
            calls[-1].arguments += piece.text
        elif isinstance(piece, ClosePiece):
            calls[-1].complete = True
    if not calls and (call := _bare(tools, text)) is not None:
        return "", [call]
    return "".join(kept), calls


def _bare(tools: Tools, text: str) -> ReadCall | None:
    """The call in an answer that is nothing else."""
    block = _FENCE.fullmatch(text)
    try:
        found = json.loads(block[1] if block else text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("name") not in [tool.name for tool in tools.allowed]:
        return None
    arguments = found.get("arguments", found.get("parameters"))
    if not isinstance(arguments, dict) or len(found) > 2:
        return None
    return ReadCall(found["name"], json.dumps(arguments, ensure_ascii=False), complete=True)
