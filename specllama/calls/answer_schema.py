"""The schema of an answer's text, as grammars use it. Knows no tools and no call format."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from specllama.calls.closed_schema import closed
from specllama.calls.schema import MAX_DEPTH, without_nulls
from specllama.calls.schema_check import JSON_STYLE, STYLE, checked, is_plain, json_text, reduced
from specllama.errors import UsageError
from specllama.text.json_shape import json_shape
from specllama.text.schema_length import MAX_LENGTH, forces_too_much

MAX_PARTS = 1_500  # objects and lists


@functools.lru_cache(maxsize=64)
def answer_schema(text: str, strict: bool, is_open: bool) -> tuple[str, str]:
    """(The schema of an answer as JSON text for its grammar, what of it is not enforced, "" for nothing).
    strict: what cannot be enforced stays, and makes the grammar fail. is_open: objects may have properties
    that the schema does not name. What is no usable schema stays as it is.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return text, ""
    if not isinstance(schema, dict):
        return text, ""
    schema = without_nulls(schema)
    deepest, n_parts = json_shape(schema)
    if deepest > MAX_DEPTH or n_parts > MAX_PARTS or forces_too_much(schema):
        return text, ""
    own_schema, problems = schema if is_open else closed(schema), list[str]()
    if not strict:
        own_schema, problems = reduced(own_schema)
        own = own_schema.get(STYLE) if isinstance(own_schema.get(STYLE), Mapping) else {}
        own_schema = {**own_schema, STYLE: JSON_STYLE | {"lenient": True} | dict(own or {})}
        if not is_plain(schema) and (problem := checked(json.dumps(own_schema))[0]):
            problems.append(problem)
    return json.dumps(own_schema), "; ".join(problems)


def answer_text(schema: str | Mapping[str, Any] | bool) -> str:
    """The schema of an answer without calls (JSON text or an object) as an item of a grammar, with the limits
    of `text.grammar`. Raises UsageError.
    """
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not JSON: {error}") from None
    if parsed is True:
        parsed = {}
    if not isinstance(parsed, Mapping):
        raise UsageError("the JSON schema must be an object", 'as {"type": "object", "properties": {…}}')
    deepest, n_parts = json_shape(parsed)
    if deepest > MAX_DEPTH or n_parts > MAX_PARTS:
        raise UsageError(f"the JSON schema has more than {MAX_DEPTH} levels or {MAX_PARTS} objects and lists")
    if forces_too_much(parsed):
        raise UsageError(f"the JSON schema asks for a text of more than {MAX_LENGTH} characters")
    return json_text(parsed, lenient=False)
