"""Twenty typical JSON schemas, all bounded, so that any model ends its answer."""

from __future__ import annotations

from typing import Any

NAME = {"type": "string", "minLength": 1, "maxLength": 24}
WORD = {"type": "string", "pattern": "^[a-z]{2,10}$"}
SMALL = {"type": "integer", "minimum": 0, "maximum": 999}


def record(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """An object with these properties. required: None for all of them."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def some(items: Any, most: int = 4, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


SCHEMAS: dict[str, dict[str, Any]] = {
    "person": record(first_name=NAME, last_name=NAME, age=SMALL, active={"type": "boolean"}),
    "sentiment": record(label={"enum": ["positive", "negative", "neutral"]}, score={"enum": [0, 0.5, 1]}),
    "function call": record(name={"const": "copytree"}, arguments=record(src=NAME, dst=NAME)),
    "tags": record(title=NAME, tags=some(WORD, 5, 1)),
    "invoice": record(
        invoice_number={"type": "string", "pattern": "^INV-[0-9]{6}$"},
        currency={"enum": ["EUR", "USD", "GBP"]},
        lines=some(record(item=NAME, quantity=SMALL, unit_price=SMALL), 3, 1),
    ),
    "address": record(street=NAME, city=NAME, zip={"type": "string", "pattern": "^[0-9]{5}$"}, country=WORD),
    "date": record(day={"type": "string", "format": "date"}, time={"type": "string", "format": "time"}),
    "optional keys": record(["id"], id=SMALL, note=NAME, weight=SMALL),
    "nullable": record(
        value={"type": ["integer", "null"], "minimum": 0, "maximum": 9},
        reason={"anyOf": [NAME, {"type": "null"}]},
    ),
    "choice of shapes": {
        "anyOf": [record(kind={"const": "file"}, path=NAME), record(kind={"const": "link"}, target=NAME)]
    },
    "tree": {
        "$defs": {
            "leaf": record(name=WORD),
            "branch": record(name=WORD, children=some({"$ref": "#/$defs/leaf"}, 3)),
        },
        "$ref": "#/$defs/branch",
    },
    "matrix": some(some({"type": "integer", "minimum": -9, "maximum": 9}, 3, 3), 3, 3),
    "numbers": record(ratio={"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01}, count=SMALL),
    "flags": record(
        **{f"enable_{name}": {"type": "boolean"} for name in ("cache", "retry", "debug", "color")}
    ),
    "class diagram": record(
        class_name=NAME,
        base_classes=some(WORD, 2),
        methods=some(
            record(name=WORD, parameters=some(WORD, 3), returns=WORD, is_static={"type": "boolean"}), 2, 1
        ),
    ),
    "diagnosis": record(
        severity={"enum": ["low", "medium", "high", "critical"]},
        component=WORD,
        affected_versions=some({"type": "string", "pattern": "^[0-9]\\.[0-9]{1,2}$"}, 3, 1),
        reproducible={"type": "boolean"},
    ),
    "nested": record(
        server=record(host=WORD, port=SMALL, tls=record(enabled={"type": "boolean"}, name=NAME))
    ),
    "fixed tuple": {
        "type": "array",
        "prefixItems": [WORD, SMALL, {"type": "boolean"}],
        "minItems": 3,
        "maxItems": 3,
        "items": False,
    },
    "one word": {"type": "string", "enum": ["yes", "no", "unknown"]},
    "translation": record(
        source_language={"const": "en"},
        target_language={"enum": ["de", "fr", "es", "it"]},
        text={"type": "string", "maxLength": 60},
    ),
}
