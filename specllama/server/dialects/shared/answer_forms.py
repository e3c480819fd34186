"""Fields of all APIs that set the form of an answer: JSON, or JSON of a schema.

Every API here accepts all of them, since clients keep their field names whatever the API is. An API validates
its own field strictly; it reads those of other APIs only if they have the expected form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import BeforeValidator, Field

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import SMALL, Body, FieldError, RequestBody
from specllama.server.dialects.shared.restriction import ANY_OBJECT, RestrictingField

_EFFORTS = {"xhigh": "high", "max": "high"}  # templates know low, medium and high
Word = Annotated[str, Field(max_length=64)]
Schema = Annotated[JsonObject, SMALL]


class JsonSchema(Body):
    """response_format.json_schema. The schema is enforced, strict or not; other fields have no effect."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Schema | None = Field(None, alias="schema")


class ResponseFormat(Body):
    """type: json_object may have a schema, json_schema must; json and value are the names used by
    huggingface_hub.
    """

    type: Literal["text", "json_object", "json_schema", "json"]
    json_schema: JsonSchema | None = None
    schema_: Schema | None = Field(None, alias="schema")
    value: Schema | None = None

    def restriction(self) -> RestrictingField | None:
        """The restriction of the text, None for free text. Raises FieldError."""
        inner = self.json_schema
        if self.type == "text":
            return None
        if inner is not None and inner.schema_ is not None:
            return RestrictingField.of("response_format.json_schema.schema", inner.schema_, inner.strict)
        strict = inner is not None and inner.strict
        if self.value is not None:
            return RestrictingField.of("response_format.value", self.value, strict)
        if self.schema_ is None and self.type == "json_schema":
            raise FieldError("response_format.json_schema.schema is missing", "response_format")
        schema = ANY_OBJECT if self.schema_ is None else self.schema_
        return RestrictingField.of("response_format.schema", schema, strict)


class FormatEcho(TypedDict):
    """A form of the text as repeated in answers. The fields after the type: of a schema."""

    type: str
    name: NotRequired[str]
    schema: NotRequired[JsonObject | None]
    strict: NotRequired[bool]


class TextFormat(Body):
    """text.format. The schema is enforced, strict or not; other fields have no effect."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str, Field(max_length=512)] | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None

    def restriction(self) -> RestrictingField | None:
        """The restriction of the text, None for free text. Raises FieldError."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return RestrictingField.of("text.format", ANY_OBJECT, self.strict)
        if self.schema_ is None:
            raise FieldError("text.format.schema is missing", "text.format.schema")
        return RestrictingField.of("text.format.schema", self.schema_, self.strict)

    def echo(self) -> FormatEcho:
        """The format as repeated in answers."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {
            "type": self.type,
            "name": self.name or "schema",
            "schema": self.schema_,
            "strict": bool(self.strict),
        }


class TextFields(Body):
    """`text` of Responses: format and verbosity, which is a variable of the chat template."""

    verbosity: Word | None = None
    format: TextFormat | None = None


class OutputFormat(Body):
    """The schema of the text."""

    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputConfig(Body):
    """`output_config` of Messages. effort: for templates that support it."""

    effort: Word | None = None
    format: OutputFormat | None = None


def only(has_form: Callable[[Any], bool]) -> BeforeValidator:
    """Annotation of another API's field: a value without this form counts as absent."""
    return BeforeValidator(lambda value: value if has_form(value) else None)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


Format = Word | Schema


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
    output_format: Annotated[OutputFormat | None, only(_is_object)] = None
    format: Annotated[Format | None, only(lambda value: value == "json" or _is_object(value))] = None

    def forms(self) -> list[RestrictingField]:
        """The restrictions set by the fields. Raises FieldError."""
        forms = [
            form.restriction() for form in (self.response_format, self.text and self.text.format) if form
        ]
        inner = self.output_config and self.output_config.format
        for path, form in (("output_config.format", inner), ("output_format", self.output_format)):
            if form:
                forms.append(RestrictingField.of(f"{path}.schema", form.schema_))
        if self.format not in (None, ""):
            schema = self.format if isinstance(self.format, dict) else ANY_OBJECT
            forms.append(RestrictingField.of("format", schema))
        return [one for one in forms if one is not None]
