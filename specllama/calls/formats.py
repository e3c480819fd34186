"""The registry of call formats: those of formats.toml, and classes where texts do not say it all. A new one
needs its table or class, and its name in the order of that file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specllama.calls import json_formats
from specllama.calls.arguments import Lfm2, LiteralArguments, Syntax, TaggedArguments
from specllama.calls.format import NEWLINE, CallFormat
from specllama.calls.frame import ID, JSON, ArgumentStyle, Frame, PlainFormat
from specllama.calls.gpt_oss import GptOss
from specllama.calls.history import (
    Messages,
    nine_characters,
    one_call_each,
    text_of,
    with_arguments,
    with_calls,
    with_ids,
)
from specllama.errors import UsageError, option
from specllama.regular_file import table_of

GENERIC: CallFormat = json_formats.Generic()
"""For templates of no known family, and those that know no tools."""
_TOOLS = re.compile(r"\b(xml_)?tools\b|\+ functions\b")
_OWN = (
    *(GptOss(), json_formats.CommandR(), json_formats.Firefunction(), Lfm2()),
    *(json_formats.Llama3(), json_formats.Hermes(), GENERIC),
)
_MESSAGES: Mapping[str, Callable[[Messages], Messages]] = {
    "": list,
    "one call each": one_call_each,
    "nine-character ids": functools.partial(with_ids, new=nine_characters),
    "ids of name and number": functools.partial(with_ids, new=lambda _id, name, n: f"functions.{name}:{n}"),
    "no ids": functools.partial(with_calls, change=lambda call: {k: v for k, v in call.items() if k != "id"}),
    "arguments as text": lambda some: with_arguments(some, text_of),
}


def _plain(name: str, row: dict[str, Any]) -> CallFormat:
    style: ArgumentStyle = JSON
    if "tagged" in row:
        style = TaggedArguments(**row.pop("tagged"))
    elif "literal" in row:
        style = LiteralArguments(Syntax(**row.pop("literal")))
    frame, messages = Frame(**row.pop("frame")), _MESSAGES[row.pop("messages", "")]
    return PlainFormat(name, frame, style=style, messages=messages, **row)


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("{id}", ID).replace("{newline}", NEWLINE)
    if isinstance(value, dict):
        return {key: _value(part) for key, part in value.items()}
    return tuple(map(_value, value)) if isinstance(value, list) else value


def _read() -> Sequence[CallFormat]:
    table = table_of(__file__)
    own = {form.name: form for form in _OWN}
    return [own.get(name) or _plain(name, _value(table[name])) for name in table["order"].split()]


FORMATS = _read()
"""In the order in which they are tried: special ones first."""


def named(name: str) -> CallFormat:
    """A format by its name. Raises UsageError."""
    for form in FORMATS:
        if form.name == name:
            return form
    known = ", ".join(["auto", *(form.name for form in FORMATS)])
    raise UsageError(f"there is no call format {name!r}", f"{option('tool_format')} is one of {known}")


@functools.lru_cache(maxsize=64)
def choose(template: str) -> CallFormat:
    known = FORMATS if _TOOLS.search(template) else ()
    return next((form for form in known if form.matches(template)), GENERIC)
