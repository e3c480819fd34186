"""JSON objects whose keys are not known here, such as schemas and arguments of tools, and JSON's texts."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""A JSON object, as parsed or to be written. Objects with known keys are TypedDicts or models instead."""


def without_lone_surrogates(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair that stands alone, as where a client has cut the
    text inside a character: JSON can escape it, and no tokenizer accepts it.
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def why_not_json(error: ValueError | RecursionError) -> str:
    """Why a text is no JSON, by the error of its parser."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if "set_int_max_str_digits" in str(error):  # Python's own advice
        return "it has a number of thousands of digits"
    return str(error)
