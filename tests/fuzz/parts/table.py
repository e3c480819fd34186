"""All parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.part import Part
from tests.fuzz.parts.headers import Headers, Load
from tests.fuzz.parts.http import Http
from tests.fuzz.parts.images import Images, Projectors
from tests.fuzz.parts.lossless import Lossless
from tests.fuzz.parts.pipes import Engine, Lines, Probe
from tests.fuzz.parts.texts import Grammar, Templates

PARTS = (
    "headers", "load", "http", "grammars", "templates", "protocol", "engine", "rpc", "images", "projectors",
    "lossless",
)  # fmt: skip


def make(name: str, headers: Sequence[Path]) -> Part:
    """A part. headers: GGUF files whose headers are changed."""
    made: dict[str, Part] = {
        part.name: part
        for part in (
            Headers(headers), Load(headers), Http(), Grammar(), Templates(), Lines(), Engine(), Probe(),
            Images(), Projectors(), Lossless(),
        )
    }  # fmt: skip
    return made[name]
