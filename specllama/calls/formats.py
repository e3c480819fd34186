"""The registry of call formats. A new one needs its file and an entry here."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from specllama.calls import (
    cohere,
    deepseek,
    gemma,
    glm,
    json_lists,
    kimi,
    minimax,
    mistral,
    pythonic,
    qwen_xml,
)
from specllama.calls.format import CallFormat
from specllama.calls.gpt_oss import GptOss
from specllama.calls.hermes import Generic, Hermes
from specllama.calls.llama3 import Llama3
from specllama.errors import UsageError, option

GENERIC: CallFormat = Generic()
"""For templates of no known family, and those that know no tools."""
_TOOLS = re.compile(r"\b(xml_)?tools\b|\+ functions\b")
FORMATS: Sequence[CallFormat] = (
    qwen_xml.Seed(),
    qwen_xml.QwenXml(),
    glm.Hy3(),
    glm.Glm(),
    GptOss(),
    mistral.MistralIds(),
    mistral.MistralArgs(),
    mistral.MistralList(),
    deepseek.DeepSeekV32(),
    deepseek.DeepSeekV4(),
    deepseek.DeepSeekR1(),
    deepseek.DeepSeekV31(),
    gemma.Gemma4(),
    gemma.FunctionGemma(),
    kimi.KimiK2(),
    minimax.MiniMaxM2(),
    cohere.CommandR(),
    json_lists.MiniMaxM1(),
    json_lists.Solar(),
    json_lists.GigaChat(),
    json_lists.Apertus(),
    json_lists.Granite3(),
    json_lists.Phi4(),
    json_lists.NemotronV2(),
    json_lists.Apriel(),
    json_lists.Firefunction(),
    json_lists.Functionary31(),
    pythonic.Olmo3(),
    pythonic.Lfm2(),
    pythonic.Pythonic(),
    Llama3(),
    Hermes(),
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
