"""Fields of all APIs that set the form of an answer: JSON, or JSON of a schema.

Every API here accepts all of them in all forms, since clients keep their field names whatever the API is. An
API validates its own field strictly; it reads those of other APIs only if they have the expected type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import SMALL, Body, FieldError, RequestBody
from specllama.server.dialects.shared.restriction import ANY_OBJECT, RestrictingField

_EFFORTS = {"xhigh": "high", "max": "high"}  # templates know low, medium and high
Word = Annotated[str, Field(max_length=64)]
Schema = Annotated[JsonObject, SMALL]
_TYPES = ("text", "json_object", "json_schema", "json")
_KEYWORDS = frozenset(("type", "properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"))
"""Of which a schema has one."""


class FormatEcho(TypedDict):
    """A form of the text as repeated in answers. The fields after the type: of a schema."""

    type: str
    name: NotRequired[str]
    schema: NotRequired[JsonObject | None]
    strict: NotRequired[bool]


class JsonSchema(Body):
    """A schema with its name, or the schema itself. It is enforced, strict or not; other fields have no
    effect.
    """

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
        """The schemas with their fields."""
        inner = self.json_schema
        nested = inner.schema_ if inner else None
        fields = {".json_schema.schema": nested, ".schema": self.schema_, ".value": self.value}
        return [(field, schema) for field, schema in fields.items() if schema is not None]

    def restriction(self, path: str) -> RestrictingField | None:
        """The restriction of the text, None for free text. path: its field. Raises FieldError."""
        field, schema = next(iter(self._schemas), ("", ANY_OBJECT))
        if self.type == "text":
            if field:
                message = f'{path} has a schema, but its type is "text", not "json_schema"'
                raise FieldError(message, f"{path}.type")
            return None
        if not field and self.type == "json_schema":
            raise FieldError(f"{path}.schema is missing", f"{path}.schema")
        strict = self.strict or (self.json_schema is not None and self.json_schema.strict)
        return RestrictingField.of(f"{path}{field}", schema, strict)

    def echo(self) -> FormatEcho:
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


class NestedFields(RequestBody):
    """Objects that contain the form of an answer, besides effort and verbosity."""

    text: Annotated[TextFields | None, only(_is_object)] = None
    output_config: Annotated[OutputConfig | None, only(_is_object)] = None

    @property
    def configured_effort(self) -> str | None:
        """output_config.effort as the value that templates know."""
        effort = self.output_config.effort if self.output_config else None
        return _EFFORTS.get(effort, effort) if effort else None


class FormFields(NestedFields):
    """format: Ollama's, "json" or a schema. output_format: an older name of output_config.format."""

    response_format: ResponseFormat | None = None
    output_format: Annotated[ResponseFormat | None, only(_is_object)] = None
    format: Annotated[Format | None, only(lambda value: value == "json" or _is_object(value))] = None

    def forms(self) -> list[RestrictingField]:
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
            forms.append(RestrictingField.of("format", schema))
        return [one for one in forms if one is not None]
