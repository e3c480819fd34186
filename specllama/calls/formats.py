"""The registry of call formats. A new one needs its row or class and an entry here."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from specllama.calls import json_formats, literals, tagged
from specllama.calls.format import CallFormat
from specllama.calls.gpt_oss import GptOss
from specllama.errors import UsageError, option

GENERIC: CallFormat = json_formats.Generic()
"""For templates of no known family, and those that know no tools."""
_TOOLS = re.compile(r"\b(xml_)?tools\b|\+ functions\b")
FORMATS: Sequence[CallFormat] = (
    tagged.SEED,
    tagged.QWEN_XML,
    tagged.HY3,
    tagged.GLM,
    GptOss(),
    json_formats.MISTRAL_IDS,
    json_formats.MISTRAL_ARGS,
    json_formats.MISTRAL_LIST,
    tagged.DEEPSEEK_V32,
    tagged.DEEPSEEK_V4,
    json_formats.DEEPSEEK_R1,
    json_formats.DEEPSEEK_V31,
    literals.GEMMA4,
    literals.FUNCTION_GEMMA,
    json_formats.KIMI_K2,
    tagged.MINIMAX_M2,
    json_formats.CommandR(),
    json_formats.MINIMAX_M1,
    json_formats.SOLAR,
    json_formats.GIGACHAT,
    json_formats.APERTUS,
    json_formats.GRANITE3,
    json_formats.PHI4,
    json_formats.NEMOTRON_V2,
    json_formats.APRIEL,
    json_formats.Firefunction(),
    json_formats.FUNCTIONARY31,
    literals.OLMO3,
    literals.Lfm2(),
    literals.PYTHONIC,
    json_formats.Llama3(),
    json_formats.Hermes(),
    GENERIC,
)
"""In the order in which they are tried: special ones first."""


def named(name: str) -> CallFormat:
    """A format by its name. Raises UsageError."""
    for form in FORMATS:
        if form.name == name:
            return form
    known = ", ".join(["auto", *(form.name for form in FORMATS)])
    raise UsageError(f"there is no call format {name!r}", f"{option('tool_format')} is one of {known}")


@functools.lru_cache(maxsize=64)
def choose(template: str) -> CallFormat:
    """The format of a model with this chat template."""
    known = FORMATS if _TOOLS.search(template) else ()
    return next((form for form in known if form.matches(template)), GENERIC)
