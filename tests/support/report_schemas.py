"""Parts of JSON schemas, for the reports of commands."""

from __future__ import annotations

NUMBER, COUNT, TEXT = {"type": "number", "minimum": 0}, {"type": "integer", "minimum": 0}, {"type": "string"}
MAYBE = {"type": ["number", "null"], "minimum": 0}


def an_object(**properties: object) -> dict[str, object]:
    """With these properties, and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def a_list(item: object) -> dict[str, object]:
    return {"type": "array", "items": item}


def or_null(schema: object) -> dict[str, object]:
    return {"anyOf": [schema, {"type": "null"}]}
