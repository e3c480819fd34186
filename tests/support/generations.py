"""Requests to the engine, written by the names of what their prompts are made of."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from specllama.client import protocol as m

_OF_CHATS = {f.name for f in fields(m.ChatInput)}
_FORMS = {"ids": lambda ids: m.MixedInput([ids]), "parts": m.MixedInput}


def generate(id_: int, **given: Any) -> m.Generate:
    """A Generate of one of messages (with the other fields of ChatInput), prompt, ids, parts and infill;
    images go with the first two.
    """
    if "prompt" in given:
        return m.Generate(id_, m.TextInput(given.pop("prompt"), given.pop("images", [])), **given)
    chat = {name: given.pop(name) for name in _OF_CHATS & given.keys()}
    form, value = next(((n, given.pop(n)) for n in (*_FORMS, "infill") if n in given), ("", None))
    prompt = m.ChatInput(**chat) if chat else value if form == "infill" else _FORMS[form](value)
    return m.Generate(id_, prompt, **given)


def text_only(body: Any) -> Any:
    """A body that was read, as a server goes on with it whose model reads text only."""
    if getattr(body, "given_images", ()):
        body.refuse_images("")
    return body
