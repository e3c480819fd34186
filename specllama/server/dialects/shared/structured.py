"""All fields that restrict the text by a schema or grammar: forms of answers, and vLLM's fields under old
and new names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.answer_forms import FormFields
from specllama.server.dialects.shared.fields import MAX_JSON, SMALL, AtMost, Body, FieldError
from specllama.server.dialects.shared.restriction import (
    ANY_OBJECT,
    RestrictingField,
    Restriction,
    restriction,
)

MAX_CHOICES, MAX_CHOICE = 256, 1024
_DOUBLE = "::="  # a grammar that contains it is read as GBNF
Text = Annotated[str, Field(max_length=MAX_JSON)]
SchemaOrText = Text | Annotated[JsonObject, SMALL]
Choices = Annotated[list[Annotated[str, Field(max_length=MAX_CHOICE)]], AtMost(MAX_CHOICES)]


class StructuredOutputs(Body):
    """One of these is set; the other fields select backends that this server does not have."""

    unnamed = frozenset({"disable_fallback", "disable_any_whitespace", "disable_additional_properties",
                         "whitespace_pattern", "_backend", "_backend_was_auto"})  # fmt: skip

    json_: SchemaOrText | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    structural_tag: None = None


class StructuredFields(FormFields):
    """guided_*: vLLM's older names. own_form: the API's own field, for errors."""

    own_form: ClassVar[str] = "response_format"

    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_json_object: bool | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None

    @property
    def has_tools(self) -> bool:
        """Whether the model may call tools."""
        return False

    @property
    def limits(self) -> Restriction:
        """The restriction of the text. Raises FieldError for two restrictions and for invalid JSON."""
        return restriction(
            [*self.forms(), *self._parameters(), *self._structures()], self.own_form, self.has_tools
        )

    def _parameters(self) -> list[RestrictingField]:
        """Sampling parameters that restrict the text."""
        return []

    def _structures(self) -> list[RestrictingField]:
        """Restrictions by vLLM's fields. Raises FieldError."""
        restrictions = [
            RestrictingField(field, _KINDS[kind](field, value))
            for field, kind, value in self._given()
            if value not in (None, False, "", [])
        ]
        if len(restrictions) > 1:
            one, other, *_ = (given.path for given in restrictions)
            raise FieldError(f"{one} and {other} are both given", other)
        return restrictions

    def _given(self) -> list[tuple[str, str, Any]]:
        inner = self.structured_outputs
        newer = [
            (f"structured_outputs.{kind}", kind, getattr(inner, "json_" if kind == "json" else kind))
            for kind in (_KINDS if inner is not None else ())
        ]
        return [*newer, *((f"guided_{kind}", kind, getattr(self, f"guided_{kind}")) for kind in _KINDS)]


def _schema(field: str, value: str | JsonObject) -> JsonObject:
    if not isinstance(value, str):
        return value
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise FieldError(f"{field} must be a JSON schema: an object, or its text", field)
    return schema


def _regex(text: str) -> str:
    """A regular expression of a Lark grammar."""
    escaped = re.sub(r"(\\.)|/", lambda m: m[1] or r"\/", text, flags=re.DOTALL)
    escaped = escaped.replace("\n", r"\n").replace("\r", r"\r").replace(_DOUBLE, r":\x3a=")
    return f"/{escaped}/"


def _literal(text: str) -> str:
    """A text in a Lark grammar."""
    return json.dumps(text, ensure_ascii=False).replace(_DOUBLE, r":\u003a=")


_KINDS: Mapping[str, Callable[[str, Any], JsonObject]] = {
    "json": lambda field, value: {"json_schema": _schema(field, value)},
    "json_object": lambda _, __: {"json_schema": ANY_OBJECT},
    "regex": lambda _, value: {"grammar": f"start: {_regex(value)}"},
    "choice": lambda _, value: {"grammar": f"start: {' | '.join(map(_literal, value))}"},
    "grammar": lambda _, value: {"grammar": value},
}
"""What restricts the text, to the parameter that it sets; from the field and its value."""
