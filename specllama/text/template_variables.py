"""Checks the variables of a chat template besides the messages. Knows no template."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

from specllama.errors import UsageError, option
from specllama.json_types import JsonObject


def template_variables(given: Mapping[str, Any] | None) -> JsonObject:
    """A checked copy of chat_template_kwargs. Raises UsageError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise UsageError("chat_template_kwargs must be a dict of names and values")
    if taken := {"messages", "self"} & set(given):
        raise UsageError(f"chat_template_kwargs cannot set {taken.pop()!r}")
    thinking = given.get("enable_thinking")
    if not isinstance(thinking, (bool, NoneType)):  # a template would take the text "false" for true
        raise UsageError(f"chat_template_kwargs: enable_thinking must be true or false, not {thinking!r:.80}")
    return dict(given)


def reasoning_variables(mode: str) -> JsonObject:
    """The variables for the option "reasoning"; "auto": the template decides. Raises UsageError."""
    if mode not in ("on", "off", "auto"):
        raise UsageError(f"{option('reasoning')} must be on, off or auto, not {mode!r}")
    return {} if mode == "auto" else {"enable_thinking": mode == "on"}


def effort_variables(effort: str | None) -> JsonObject:
    """The variables for an API's reasoning effort. "none" also switches reasoning off where templates can."""
    if not effort:
        return {}
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})
