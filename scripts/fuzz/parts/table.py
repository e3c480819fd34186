"""All parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scripts.fuzz.part import Part
from scripts.fuzz.parts.headers import Headers, Load
from scripts.fuzz.parts.http import Http
from scripts.fuzz.parts.lossless import Lossless
from scripts.fuzz.parts.pipes import Engine, Lines, Probe
from scripts.fuzz.parts.texts import Grammar, Templates

PARTS = ("headers", "load", "http", "grammars", "templates", "protocol", "engine", "rpc", "lossless")


def make(name: str, headers: Sequence[Path]) -> Part:
    """A part. headers: GGUF files whose headers are changed."""
    made: dict[str, Part] = {
        part.name: part
        for part in (
            Headers(headers), Load(headers), Http(), Grammar(), Templates(), Lines(), Engine(), Probe(),
            Lossless(),
        )
    }  # fmt: skip
    return made[name]
