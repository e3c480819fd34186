"""Maps field names and places of other APIs to those of this one.

Clients keep such names whatever the API is. Knows no models.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import supported

_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict")
_SHARED = {**dict.fromkeys(_LIMITS, "max_tokens"), "stop_sequences": "stop", "n_cmpl": "n"}


def renamed(data: Mapping[str, Any], aliases: Mapping[str, str], own: Collection[str]) -> JsonObject:
    """A body with the model's field names. aliases: further names in this API. own: names of the model's
    fields, which take precedence.
    """
    fields = {name: value for name, value in data.items() if _meant(name, aliases, own) == name}
    for name, value in data.items():
        fields.setdefault(_meant(name, aliases, own), value)
    return fields


def _meant(name: str, aliases: Mapping[str, str], own: Collection[str]) -> str:
    if name in aliases:
        return aliases[name]
    shared = _SHARED.get(name, name)
    return shared if name not in own and shared in own else name


def with_options(data: Mapping[str, Any], own: Collection[str]) -> Mapping[str, Any]:
    """A body with the fields in `options` (Ollama's place) moved to the top level, where existing fields
    take precedence. own: names of fields to move; others stay in `options`. Raises FieldError for an
    unsupported one.
    """
    options = data.get("options")
    if not isinstance(options, Mapping):
        return data
    known = {name: value for name, value in options.items() if _is_one(name, own)}
    rest = {name: value for name, value in options.items() if name not in known}
    rest = supported(rest, (), "options.")
    others = {name: value for name, value in data.items() if name != "options"}
    return known | others | ({"options": rest} if rest else {})


def as_options(data: Mapping[str, Any], own: Collection[str], options: Collection[str]) -> JsonObject:
    """The reverse: a body with its sampling fields moved to `options`, and fields of the body in
    `options` moved out. own, options: field names of either place; a field in its own place takes
    precedence.
    """
    inner = data.get("options", {})
    if not isinstance(inner, Mapping):
        return dict(data)
    inside = {name: value for name, value in data.items() if name not in own and _is_one(name, options)}
    outside = {name: value for name, value in inner.items() if name in own and name not in options}
    inside |= {name: value for name, value in inner.items() if name not in outside}
    others = {name: value for name, value in data.items() if name in own or name not in inside}
    return outside | others | {"options": inside}


def _is_one(name: str, options: Collection[str]) -> bool:
    return name in options or name in _SHARED
