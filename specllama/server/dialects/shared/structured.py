"""Fields that restrict the text by a schema or grammar, vLLM's under old and new names among them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import MAX_JSON, SMALL, AtMost, Body, FieldError
from specllama.server.dialects.shared.image_parts import BodyImages

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Restriction:
    """A restriction of the text. path: of the field that sets it, "" for none. params: the parameter that it
    sets. strict: unsupported parts of a schema are errors.
    """

    path: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False

    @classmethod
    def of(cls, path: str, schema: Mapping[str, Any], strict: bool | None = False) -> Self:
        return cls(path, {"json_schema": schema}, bool(strict))

    @property
    def fields(self) -> dict[str, str]:
        """The field's path by the name of the parameter, for errors of the engine."""
        return dict.fromkeys(self.params, self.path)


# Fields of all APIs that set the form of an answer: JSON, or JSON of a schema.
#
# Every API here accepts all of them in all forms, since clients keep their field names whatever the API is.
# An API validates its own field strictly; it reads those of other APIs only if they have the expected type.


Word = Annotated[str, Field(max_length=64)]
Schema = Annotated[JsonObject, SMALL]
_TYPES = ("text", "json_object", "json_schema", "json")
_KEYWORDS = frozenset(("type", "properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"))
"""Of which a schema has one."""


class JsonSchema(Body):
    """A schema with its name, or the schema itself; it is enforced. Other fields have no effect."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Schema | None = Field(None, alias="schema")

    @model_validator(mode="before")
    @classmethod
    def _wrap(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "schema" in data or not _KEYWORDS.intersection(data):
            return data
        named = {name: data[name] for name in ("name", "strict") if name in data}
        return {**named, "schema": {name: value for name, value in data.items() if name not in named}}


class ResponseFormat(Body):
    """The form of an answer, in any place, with its schema where any API has it. type: json_object may have a
    schema, json_schema must; json and value are the names used by huggingface_hub.
    """

    unnamed = frozenset({"description"})

    type: Literal["text", "json_object", "json_schema", "json"] = "text"
    name: Annotated[str, Field(max_length=512)] | None = None
    strict: bool | None = None
    json_schema: JsonSchema | None = None
    schema_: Schema | None = Field(None, alias="schema")
    value: Schema | None = None

    @property
    def _schemas(self) -> list[tuple[str, JsonObject]]:
        inner = self.json_schema
        nested = inner.schema_ if inner else None
        fields = {".json_schema.schema": nested, ".schema": self.schema_, ".value": self.value}
        return [(field, schema) for field, schema in fields.items() if schema is not None]

    def restriction(self, path: str) -> Restriction | None:
        """The restriction of the text, None for free text. path: its field. Raises FieldError."""
        field, schema = next(iter(self._schemas), ("", ANY_OBJECT))
        if self.type == "text":
            if field:
                message = f'{path} has a schema, but its type is "text", not "json_schema"'
                raise FieldError(message, f"{path}.type")
            return None
        if not field and self.type == "json_schema":
            nested = self.json_schema is not None or path == "response_format"
            missing = f"{path}.json_schema.schema" if nested else f"{path}.schema"
            raise FieldError(f"{missing} is missing", missing)
        strict = self.strict or (self.json_schema is not None and self.json_schema.strict)
        return Restriction.of(f"{path}{field}", schema, strict)

    def echo(self) -> JsonObject:
        """The format as repeated in answers of /v1/responses."""
        if self.type == "text":
            return {"type": "text"}
        schema = next((schema for _, schema in self._schemas), None)
        if schema is None:
            return {"type": "json_object"}
        inner = self.json_schema
        return {
            "type": "json_schema",
            "name": self.name or (inner and inner.name) or "schema",
            "schema": schema,
            "strict": bool(self.strict or (inner and inner.strict)),
        }


class TextFields(Body):
    """`text` of Responses: format and verbosity, which is a variable of the chat template."""

    verbosity: Word | None = None
    format: ResponseFormat | None = None


class OutputConfig(Body):
    """`output_config` of Messages. effort: for templates that support it."""

    effort: Word | None = None
    format: ResponseFormat | None = None


def only(has_form: Callable[[Any], bool]) -> BeforeValidator:
    """Annotation of another API's field: a value without this form counts as absent."""
    return BeforeValidator(lambda value: value if has_form(value) else None)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _kind(value: Any) -> str | None:
    if isinstance(value, (str, ResponseFormat)):
        return "<word>" if isinstance(value, str) else "<form>"
    kind = value.get("type") if _is_object(value) else None
    return "<form>" if isinstance(kind, str) and kind in _TYPES else "<schema>" if _is_object(value) else None


Format = Annotated[
    Annotated[Word, Tag("<word>")]
    | Annotated[ResponseFormat, Tag("<form>")]
    | Annotated[Schema, Tag("<schema>")],
    Discriminator(_kind, custom_error_type="form", custom_error_message='must be "json" or a JSON schema'),
]
"""Ollama's `format`: "json", a schema, or what other APIs have in their fields."""


class NestedFields(BodyImages):
    """Objects that contain the form of an answer, besides effort and verbosity."""

    text: Annotated[TextFields | None, only(_is_object)] = None
    output_config: Annotated[OutputConfig | None, only(_is_object)] = None


MAX_CHOICES, MAX_CHOICE = 256, 1024
_DOUBLE = "::="  # a grammar that contains it is read as GBNF
Text = Annotated[str, Field(max_length=MAX_JSON)]
SchemaOrText = Text | Annotated[JsonObject, SMALL]
Choices = Annotated[list[Annotated[str, Field(max_length=MAX_CHOICE)]], AtMost(MAX_CHOICES, 1)]


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


class StructuredFields(NestedFields):
    """format: Ollama's, "json" or a schema. output_format: an older name of output_config.format. guided_*:
    vLLM's older names. own_form: the API's own field, for errors.
    """

    own_form: ClassVar[str] = "response_format"

    response_format: ResponseFormat | None = None
    output_format: Annotated[ResponseFormat | None, only(_is_object)] = None
    format: Annotated[Format | None, only(lambda value: value == "json" or _is_object(value))] = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_json_object: bool | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None

    def forms(self) -> list[Restriction]:
        """The restrictions set by the fields. Raises FieldError."""
        places = {
            "response_format": self.response_format,
            "text.format": self.text and self.text.format,
            "output_config.format": self.output_config and self.output_config.format,
            "output_format": self.output_format,
        }
        forms = [form.restriction(path) for path, form in places.items() if form]
        if isinstance(self.format, ResponseFormat):
            forms.append(self.format.restriction("format"))
        elif self.format not in (None, ""):
            schema = self.format if isinstance(self.format, dict) else ANY_OBJECT
            forms.append(Restriction.of("format", schema))
        return [one for one in forms if one is not None]

    @property
    def has_tools(self) -> bool:
        """Whether the model may call tools."""
        return False

    @property
    def limits(self) -> Restriction:
        """The restriction of the text. Raises FieldError for two restrictions, for a grammar together with
        tools, and for invalid JSON.
        """
        given = [*self.forms(), *self.parameters(), *self._structures()]
        if len(given) > 1:
            first, second = given[0].path, given[1].path
            raise FieldError(f"{first} and {second} are both given; only one can be", first.partition(".")[0])
        one = given[0] if given else Restriction()
        if self.has_tools and ("grammar" in one.params or one.path == "json_schema"):  # no forms of answers
            instead = f"{self.own_form} goes with tools"
            raise FieldError(f"tools and {one.path} are both given; {instead}", one.path)
        return one

    def parameters(self) -> list[Restriction]:
        return []

    def _structures(self) -> list[Restriction]:
        inner, given = self.structured_outputs, list[tuple[str, str, Any]]()
        if inner is not None:
            for kind in _KINDS:
                value = getattr(inner, "json_" if kind == "json" else kind)
                given.append((f"structured_outputs.{kind}", kind, value))
        given += [(f"guided_{kind}", kind, getattr(self, f"guided_{kind}")) for kind in _KINDS]
        return [
            Restriction(field, _KINDS[kind](field, value))
            for field, kind, value in given
            if value not in (None, False, "")
        ]


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
    escaped = re.sub(r"(\\.)|/", lambda m: m[1] or r"\/", text, flags=re.DOTALL)
    escaped = escaped.replace("\n", r"\n").replace("\r", r"\r").replace(_DOUBLE, r":\x3a=")
    return f"/{escaped}/"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace(_DOUBLE, r":\u003a=")


_KINDS: Mapping[str, Callable[[str, Any], JsonObject]] = {
    "json": lambda field, value: {"json_schema": _schema(field, value)},
    "json_object": lambda _, __: {"json_schema": ANY_OBJECT},
    "regex": lambda _, value: {"grammar": f"start: {_regex(value)}"},
    "choice": lambda _, value: {"grammar": f"start: {' | '.join(map(_literal, value))}"},
    "grammar": lambda _, value: {"grammar": value},
}
"""Kinds of restrictions, to the parameter that each sets; from the field and its value."""
