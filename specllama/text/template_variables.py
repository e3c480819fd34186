"""Variables that a caller gives a chat template next to the messages. Knows no template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.errors import UsageError


def template_variables(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of chat_template_kwargs, checked. Raises UsageError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise UsageError("chat_template_kwargs must be a dict of names and values")
    if taken := {"messages", "self"} & set(given):
        raise UsageError(f"chat_template_kwargs cannot set {taken.pop()!r}")
    return dict(given)
