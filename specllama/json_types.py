"""The type of JSON objects whose keys are not known here: unchecked bodies, schemas, arguments of tools."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""A JSON object, as parsed or to be written. Objects with known keys are TypedDicts or models instead."""
