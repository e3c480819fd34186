"""The schema or grammar that restricts the text of a request, and the field that sets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from specllama.server.dialects.shared.fields import FieldError

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class RestrictingField:
    """A field that restricts the text. path: its path in the body. params: the parameter that it sets.
    strict: unsupported parts of a schema are errors.
    """

    path: str
    params: Mapping[str, Any]
    strict: bool = False

    @classmethod
    def of(cls, path: str, schema: Mapping[str, Any], strict: bool | None = False) -> Self:
        """The restriction by a schema."""
        return cls(path, {"json_schema": schema}, bool(strict))

    @property
    def goes_with_tools(self) -> bool:
        """Whether an answer may be either tool calls or this text: true for schemas that set the form of
        answers.
        """
        return "grammar" not in self.params and self.path != "json_schema"


@dataclass(frozen=True, slots=True)
class Restriction:
    """path: of the field in the body, "" without a restriction. params: the parameter that it sets.
    strict: unsupported parts of a schema are errors.
    """

    path: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False

    @property
    def fields(self) -> dict[str, str]:
        """The field's path by the name of the parameter, for errors of the engine."""
        return dict.fromkeys(self.params, self.path)


def restriction(given: Sequence[RestrictingField], own: str, has_tools: bool) -> Restriction:
    """The only restriction of a request. own: the API's own field. Raises FieldError for two
    restrictions, and for a grammar together with tools.
    """
    if len(given) > 1:
        first, second = given[0].path, given[1].path
        raise FieldError(f"{first} and {second} are both given; only one can be", first.partition(".")[0])
    if not given:
        return Restriction()
    one = given[0]
    if has_tools and not one.goes_with_tools:
        raise FieldError(f"tools and {one.path} are both given; {own} goes with tools", one.path)
    return Restriction(one.path, one.params, one.strict)
