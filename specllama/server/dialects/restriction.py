"""The schema or grammar that restricts the text of a request, and the field that gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specllama.server.dialects.fields import FieldError

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Restriction:
    """path: of its field in the body, "" where nothing restricts the text. params: the parameter that it
    sets. strict: whether what cannot be enforced of a schema is an error.
    """

    path: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False

    @property
    def fields(self) -> dict[str, str]:
        """The path by the name of the parameter, for errors of the engine."""
        return dict.fromkeys(self.params, self.path)


def restriction(
    given: Mapping[str, Mapping[str, Any]], own: str, strict: bool | None, has_tools: bool
) -> Restriction:
    """The only one of those that are given: field to parameter. own: the API's own field. Raises FieldError
    for two of them, and for tools with another grammar than that of their calls.
    """
    found = list(given)
    if len(found) > 1:
        first = found[0]
        raise FieldError(f"{first} and {found[1]} are both given; only one can be", first.partition(".")[0])
    if not found:
        return Restriction()
    name, params = found[0], given[found[0]]
    if has_tools and name != own and ("grammar" in params or name == "json_schema"):
        goes = own.removesuffix(".schema").removesuffix(".json_schema")
        raise FieldError(f"tools and {name} are both given; {goes} goes with tools", name)
    return Restriction(name, params, bool(strict) and name == own)
