"""From the JSON object of a request to a checked pydantic model; the fields that have no effect here.

A field that would change the text and is not supported is an error that names it. null means absent. Every
list and object has a bound, AtMost or SMALL, that is checked before anything is made of its items.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from specllama.errors import UsageError

IGNORED_FIELDS = frozenset(
    {
        "cache_prompt", "id_slot", "user", "metadata", "store", "service_tier", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "prediction", "n_keep",
        "slot_id", "timings_per_token", "return_progress", "return_tokens", "priority", "request_id",
        "spaces_between_special_tokens", "n_cache_reuse", "response_fields", "n_discard", "sse_ping_interval",
        "backend_sampling", "preserved_tokens", "verbose", "reasoning_control",
        "client_metadata", "max_tool_calls", "background_options", "access_programs",
        # Without effect unless another field of theirs, which is in _OFF, switches them on:
        "mirostat_tau", "mirostat_eta", "xtc_threshold", "dry_base", "dry_allowed_length",
        "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent", "adaptive_decay",
        "grammar_triggers",
    }
)  # fmt: skip
"""Fields that have no effect here, except in bodies that have a field of that name."""
_OFF: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "suffix": ("",),
    "echo": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "min_keep": (0,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "post_sampling_probs": (False,),
    "mirostat": (0,),
    "typical_p": (1,),
    "typ_p": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "grammar_lazy": (False,),
    "parse_tool_calls": (True,),
    "reasoning_format": ("auto", "deepseek"),
    "verbosity": ("medium",),
    "add_generation_prompt": (True,),
    "continue_final_message": (True,),
    "lora": ([],),
}
"""Fields that are not supported, with the values that would change nothing."""
_OFF_UP_TO: Mapping[str, float] = {"top_n_sigma": 0, "adaptive_target": -1e-6}
"""The same for numbers that are off up to this one."""
Model = TypeVar("Model", bound="Body")
MAX_JSON = 64 * 1024  # characters of a schema, or of other JSON of any form
MAX_FIELDS = 256  # of an object whose unknown fields have no effect


class Body(BaseModel):
    """The base of all bodies: no unknown fields, no values of another type, finite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @classmethod
    def prepared(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields of a request under the names and in the forms that the model has."""
        return data

    @model_validator(mode="before")
    @classmethod
    def _leave_one_unknown(cls, data: Any) -> Any:
        """Of very many unknown fields one is enough for an error."""
        known = _names(cls)
        if not isinstance(data, Mapping) or len(data) <= len(known):
            return data
        unknown = next(name for name in data if name not in known)
        return {name: value for name, value in data.items() if name in known} | {unknown: data[unknown]}


class OpenBody(Body):
    """The base of objects in which clients send fields that are not known here and have no effect."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"maxProperties": MAX_FIELDS})

    @model_validator(mode="before")
    @classmethod
    def _count(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and len(data) > MAX_FIELDS:
            raise ValueError(f"must have at most {MAX_FIELDS} fields, not {len(data)}")
        return data


@functools.cache
def _names(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in model.model_fields.items())


@dataclass(frozen=True)
class AtMost:
    """The annotation of a list or object with `least` to `most` items: more are refused before any of them is
    checked, and of a list one wrong item is enough.
    """

    most: int
    least: int = 0

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema: dict[str, Any] = {**handler(source), "max_length": self.most, "min_length": self.least}
        if schema["type"] == "list":
            schema["fail_fast"] = True
        return core_schema.no_info_before_validator_function(self._counted, cast("CoreSchema", schema))

    def _counted(self, value: Any) -> Any:
        if isinstance(value, (list, dict)) and len(value) > self.most:
            raise ValueError(f"must have at most {self.most} items, not {len(value)}")
        return value


def _small(value: Any) -> Any:
    """The value, if it is not much JSON; counting ends at the limit. Raises ValueError."""
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

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "x-max-characters": MAX_JSON}


SMALL = _Small()
"""The annotation of a value of any form: at most MAX_JSON characters of JSON."""


class FieldError(UsageError):
    """A field that cannot be used. `details["param"]`: its name."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message, details={"param": param})


def checked(model: type[Model], data: Mapping[str, Any]) -> Model:
    """The body as this model. Raises FieldError."""
    own = _names(model)
    data = model.prepared({name: value for name, value in data.items() if value is not None})
    given = {name: value for name, value in data.items() if name in own or name not in IGNORED_FIELDS}
    for name in [name for name in given if is_unsupported(name) and name not in own]:
        if not _is_off(name, given.pop(name)):
            raise FieldError(f"{name} is not supported, and it would change the text", name)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise _field_error(error) from None


def is_unsupported(name: str) -> bool:
    """Whether the field is known, and accepted only with values that change nothing."""
    return name in _OFF or name in _OFF_UP_TO


def _is_off(name: str, value: Any) -> bool:
    if name in _OFF_UP_TO:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and value <= _OFF_UP_TO[name]
    return any(value == off and isinstance(value, bool) == isinstance(off, bool) for off in _OFF[name])


def _field_error(error: ValidationError) -> FieldError:
    found = error.errors(include_url=False, include_context=False)
    # Of a union's errors, one inside a member is more helpful than "matches no member".
    first = min(found, key=lambda e: (e["type"].endswith("_type"), -len(e["loc"])))
    names, path = _field_names(), list(first["loc"])
    name = ""
    for i, part in enumerate(path):  # pydantic puts names of its types in between
        if isinstance(part, int):
            name += f"[{part}]"
        elif part in names or (i == len(path) - 1 and first["type"] == "extra_forbidden"):
            name += f"{'.' if name else ''}{part[:80]}"
    if first["type"] == "extra_forbidden":
        return FieldError(f"{name} is not known here, and it could change the text", name)
    if first["type"] == "missing":
        return FieldError(f"{name} is missing", name)
    reason = first["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
    return FieldError(f"{name}: {reason}" if name else reason, name or None)


@functools.cache
def _field_names() -> frozenset[str]:
    found, todo = set[str](), [Body]
    while todo:
        model = todo.pop()
        found |= {field.alias or name for name, field in model.model_fields.items()}
        todo += model.__subclasses__()
    return frozenset(found)
