"""The registry of call formats. A new one needs its class and an entry here."""

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
    tagged.Seed(),
    tagged.QwenXml(),
    tagged.Hy3(),
    tagged.Glm(),
    GptOss(),
    json_formats.MistralIds(),
    json_formats.MistralArgs(),
    json_formats.MistralList(),
    tagged.DeepSeekV32(),
    tagged.DeepSeekV4(),
    json_formats.DeepSeekR1(),
    json_formats.DeepSeekV31(),
    literals.Gemma4(),
    literals.FunctionGemma(),
    json_formats.KimiK2(),
    tagged.MiniMaxM2(),
    json_formats.CommandR(),
    json_formats.MiniMaxM1(),
    json_formats.Solar(),
    json_formats.GigaChat(),
    json_formats.Apertus(),
    json_formats.Granite3(),
    json_formats.Phi4(),
    json_formats.NemotronV2(),
    json_formats.Apriel(),
    json_formats.Firefunction(),
    json_formats.Functionary31(),
    literals.Olmo3(),
    literals.Lfm2(),
    literals.Pythonic(),
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
