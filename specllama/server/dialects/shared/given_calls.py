"""Calls of earlier answers in requests: the parts that they have in common in all APIs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import AtMost, Body
from specllama.server.dialects.shared.tools import Name

MAX_ARGUMENTS = 4096  # of a call whose arguments are an object
CallId = Annotated[str, Field(max_length=512)]
Arguments = str | Annotated[JsonObject, AtMost(MAX_ARGUMENTS)]
"""The annotation of arguments: JSON of an object, or the object itself."""


class CalledFunction(Body):
    """A function with its arguments."""

    unnamed = frozenset({"description", "index", "parsed_arguments"})

    name: Name
    arguments: Arguments | None = None
