"""Validates the JSON object of a request as a pydantic model, with one policy for fields.

null means absent at every level, and 4.0 is a whole number. Unknown fields have no effect: they are ignored
and reported (`RequestBody.ignored_fields`), except those that clients always send (`Body.unnamed`). Fields of
other APIs that would change the text are errors; they are listed in fields.toml. Every list and object is
bounded by AtMost, SMALL or MAX_FIELDS before its items are processed.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.regular_file import table_of

_TABLE: dict[str, Any] = table_of(__file__)
_NO_EFFECT = frozenset(_TABLE["no_effect"].split())
_OFF: Mapping[str, list[Any]] = {
    name: values for names, values in _TABLE["off"].items() for name in names.split()
}
Model = TypeVar("Model", bound="RequestBody")
MAX_JSON = 64 * 1024  # characters of a schema, or of other JSON of any form
MAX_FIELDS = 256  # of an object, those without effect included
MAX_NAMED, MAX_NAME = 32, 128  # ignored fields that are named, and characters of a name
_BEYOND_FLOATS = 10**309


class Body(BaseModel):
    """Base of all objects in bodies: strict types, finite numbers.

    unnamed: fields without effect that clients send with every such object. defaults: values with which
    others are not named.
    """

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        json_schema_extra={"maxProperties": MAX_FIELDS},
    )
    unnamed: ClassVar[frozenset[str]] = frozenset()
    defaults: ClassVar[Mapping[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _read_fields(cls, data: Any, info: ValidationInfo) -> Any:
        """Select the model's fields. info.context: collects (class, name) of the others."""
        if not isinstance(data, Mapping):
            return data
        if len(data) > MAX_FIELDS:
            raise ValueError(f"must have at most {MAX_FIELDS} fields, not {len(data)}")
        known, kept, ignored = _names(cls), {}, info.context
        types = set(map(type, data.values()))
        if known.issuperset(data) and float not in types and type(None) not in types:
            return data
        for name, value in data.items():
            if value is None:
                continue
            if name in known:
                kept[name] = whole(value)
            elif ignored is not None and name not in cls.unnamed and cls.defaults.get(name) != value:
                ignored[cls, name] = None
        return kept


class RequestBody(Body):
    """Base of whole bodies. asks: whether fields of other APIs could have an effect on the request."""

    asks: ClassVar[bool] = True
    _ignored: tuple[str, ...] = PrivateAttr(())
    _sent: JsonObject = PrivateAttr({})  # the names that were sent, those in `options` too

    @classmethod
    def prepared(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of a request under the model's names and in its forms."""
        return data

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        """Paths of fields without effect, such as "session_id", "messages[].mood", at most MAX_NAMED."""
        return self._ignored


class CacheChoice(Body):
    """store: False writes nothing of the request to disk. `"cache": true` and false set it. reuse: False
    evaluates all of the prompt; no later request reuses it, and nothing is written to disk. Other fields are
    refused, so that a misspelt one does not leave a prompt on disk.
    """

    store: bool = True
    reuse: bool = True

    @model_validator(mode="before")
    @classmethod
    def _read_switch(cls, data: Any) -> Any:
        unknown = [name for name in data if name not in cls.model_fields] if isinstance(data, dict) else []
        if unknown:
            raise ValueError(f"has the fields store and reuse only, not {str(unknown[0])[:40]!r}")
        if not isinstance(data, (bool, dict)):
            raise ValueError("must be true, false or an object")
        return {"store": data} if isinstance(data, bool) else data


def whole(value: Any) -> Any:
    """4.0 as 4, for programs whose numbers are all floats, and 1e999, which is infinite as a float, as a
    number beyond every range. Other values are returned unchanged.
    """
    if type(value) is float and math.isinf(value):
        return int(math.copysign(1, value)) * _BEYOND_FLOATS
    return int(value) if type(value) is float and value.is_integer() else value


def _whole_items(value: Any) -> Any:
    if isinstance(value, list) and any(type(item) is float for item in value):
        return [whole(item) for item in value]
    return value


WHOLE_ITEMS = BeforeValidator(_whole_items)
"""The annotation of a list of whole numbers."""


@functools.cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in model.model_fields.items())


@functools.cache
def _paths(model: type[Body]) -> Mapping[type[Body], Sequence[str]]:
    """The paths of each object in a body: "messages[]" for its messages."""
    paths: dict[type[Body], list[str]] = {model: [""]}
    todo = [model]
    while todo:
        here = todo.pop(0)
        before = f"{paths[here][0]}." if paths[here][0] else ""
        for name, field in here.model_fields.items():
            for inner, brackets in _bodies(field.annotation):
                if inner not in paths:
                    todo.append(inner)
                paths.setdefault(inner, []).append(f"{before}{field.alias or name}{brackets}")
    return paths


def _bodies(annotation: Any, brackets: str = "") -> Iterator[tuple[type[Body], str]]:
    """The models in an annotation, each with "[]" if it stands in a list."""
    if isinstance(annotation, type) and issubclass(annotation, Body):
        yield annotation, brackets
    inside = "[]" if getattr(annotation, "__origin__", None) is list else brackets
    for one in get_args(annotation):
        yield from _bodies(one, inside)


@dataclass(frozen=True)
class AtMost:
    """Annotation of a list or object with `least` to `most` items. Larger ones are refused before any
    item is validated, and validation of a list stops at its first invalid item.
    """

    most: int
    least: int = 0

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: JsonObject = {**handler(source), "max_length": self.most, "min_length": self.least}
        if schema["type"] == "list":
            schema["fail_fast"] = True
        return core_schema.no_info_before_validator_function(self._counted, cast("CoreSchema", schema))

    def _counted(self, value: Any) -> Any:
        if isinstance(value, (list, dict)) and len(value) > self.most:
            raise ValueError(f"must have at most {self.most} items, not {len(value)}")
        return value


def _small(value: Any) -> Any:
    """The value, if its JSON is small; counting stops at the limit. Raises ValueError."""
    size, todo = 0, [value]
    while todo:
        one = todo.pop()
        size += len(one) + 2 if isinstance(one, (str, list, dict)) else 1
        if size > MAX_JSON:
            raise ValueError(f"must be at most {MAX_JSON} characters of JSON")
        if isinstance(one, dict):
            todo += one
            todo += one.values()
        elif isinstance(one, list):
            todo += one
    return value


class _Small:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_small, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonObject:
        return {**handler(schema), "x-max-characters": MAX_JSON}


SMALL = _Small()
"""The annotation of a value of any form: at most MAX_JSON characters of JSON."""


class FieldError(UsageError):
    """A field that cannot be used. `details["param"]`: its path."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message, details={"param": param})


def checked(model: type[Model], data: Mapping[str, Any]) -> Model:
    """The body as this model. Raises FieldError."""
    sent = {name: value for name, value in data.items() if value is not None}
    data = model.prepared(sent)
    given = supported(data, _names(model)) if model.asks else data
    ignored: dict[tuple[type[Body], str], None] = {}
    try:
        body = model.model_validate(given, context=ignored)
    except ValidationError as error:
        raise as_sent(_field_error(error), model, sent) from None
    body._sent = {name: value if name == "options" else None for name, value in sent.items()}
    if ignored:
        body._ignored = tuple(_named(model, ignored, given))[:MAX_NAMED]
    return body


def as_sent(error: FieldError, model: type[RequestBody], sent: Mapping[str, Any]) -> FieldError:
    """The error, with the name and the place that its field had before `RequestBody.prepared`."""
    param, inner = error.details["param"] or "", sent.get("options")
    name = re.split(r"[.\[]", param.removeprefix("options."), maxsplit=1)[0]
    places = [(one, one) for one in sent]
    inside = [(f"options.{one}", one) for one in inner] if isinstance(inner, Mapping) else []
    places = inside + places if param.startswith("options.") else places + inside
    names = {**_SHARED, **getattr(model, "aliases", {})}
    same = [place for place, one in places if one == name]
    same += [place for place, one in places if names.get(one) == name]
    if not name or not same:
        return error
    path = same[0] + param[param.index(name) + len(name) :]
    is_named = error.message.startswith(param)
    return FieldError(path + error.message[len(param) :] if is_named else error.message, path)


def _named(
    model: type[Body], ignored: Mapping[tuple[type[Body], str], None], given: Collection[str]
) -> Iterator[str]:
    """The paths of fields without effect. given: the fields of the body, among which their object is."""
    for owner, name in ignored:
        places = _paths(model).get(owner, [""])
        path = next((one for one in places if re.split(r"[.\[]", one)[0] in given), places[0])
        yield f"{path}{'.' if path else ''}{name[:MAX_NAME]}"


def supported(data: Mapping[str, Any], own: Collection[str], path: str = "") -> JsonObject:
    """The fields without those of other APIs that need not be reported. own: names of the model's fields.
    path: of the object, with a final dot. Raises FieldError for a field that would change the text.
    """
    kept = {}
    for name, value in data.items():
        if name not in own and (value is None or name in _NO_EFFECT):
            continue
        if name in own or name not in _OFF:
            kept[name] = value
            continue
        same = (value == off and isinstance(value, bool) == isinstance(off, bool) for off in _OFF[name])
        if not any(same):
            why = _TABLE["instead"].get(name, "it would change the text")
            raise FieldError(f"{path}{name} is not supported: {why}", f"{path}{name}")
    return kept


def _field_error(error: ValidationError) -> FieldError:
    errors = error.errors(include_url=False, include_context=False)
    # Of a union's errors, one inside a member is more helpful than "matches no member".
    first = min(errors, key=lambda e: (e["type"].endswith("_type"), -len(e["loc"])))
    name = _path(first["loc"])
    if first["type"] == "missing":
        return FieldError(f"{name} is missing", name)
    reason = _rephrased(first["msg"])
    if first["type"] == "float_type" and type(first["input"]) is int:
        return FieldError(f"{name}: must be a finite number", name)
    if first["type"].endswith("_type"):  # of a union: all that it may be
        alike = [e["msg"] for e in errors if e["type"].endswith("_type") and _path(e["loc"]) == name]
        kinds = dict.fromkeys(
            _rephrased(message).removeprefix("must be ") for message in (first["msg"], *alike)
        )
        reason = f"must be {' or '.join(kinds)}"
    return FieldError(f"{name}: {reason}" if name else reason, name or None)


def _rephrased(message: str) -> str:
    text = message.removeprefix("Value error, ").replace(" after validation", "")
    if "unicode" in text:
        return "must be valid Unicode"
    text = re.sub(r"^(?:Input|List|Dictionary|String|Data|Value) should ", "must ", text)
    return re.sub(r"^must be a valid (dictionary|.* or instance of .*)$", "must be an object", text)


def _path(location: Sequence[str | int]) -> str:
    """The path of a field, without the type names that pydantic inserts."""
    name, names, before = "", _field_names(), ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part in names or "dict[" in before:  # or a key of an object with any keys
            name += f"{'.' if name else ''}{part[:80]}"
        before = str(part)
    return name


@functools.cache
def _field_names() -> frozenset[str]:
    names, todo = set[str](), [Body]
    while todo:
        model = todo.pop()
        names |= {field.alias or name for name, field in model.model_fields.items()}
        todo += model.__subclasses__()
    return frozenset(names)


# Maps field names and places of other APIs to those of this one.
#
# Clients keep such names whatever the API is.


_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict")
_SHARED = {**dict.fromkeys(_LIMITS, "max_tokens"), "stop_sequences": "stop", "n_cmpl": "n"}
_SHARED["speculative.n_max"] = "draft_num_predict"  # llama-server's


def renamed(data: Mapping[str, Any], aliases: Mapping[str, str], own: Collection[str]) -> JsonObject:
    """A body with the model's field names. aliases: further names. own: its fields, which come first."""
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
    unsupported one, and for what is no object.
    """
    options = {} if data.get("options") is None else data["options"]
    if not isinstance(options, Mapping):
        raise FieldError("options: must be an object", "options")
    known = {name: value for name, value in options.items() if _is_one(name, own)}
    rest = {name: value for name, value in options.items() if name not in known}
    rest = supported(rest, (), "options.")
    others = {name: value for name, value in data.items() if name != "options"}
    return known | others | ({"options": rest} if rest else {})


def as_options(data: Mapping[str, Any], own: Collection[str], options: Collection[str]) -> JsonObject:
    """The reverse: a body with its sampling fields moved to `options`, and its own fields moved out. own,
    options: field names of either place; a field in its own place takes precedence.
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
