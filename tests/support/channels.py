"""A tiny model with gpt-oss's control tokens and a template in its form, and grammars that spell its answers
out. Its weights are random: what it writes without a grammar has no meaning.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from specllama.calls.formats import named
from tests.support import tinygguf

TOKENS = named("gpt-oss").tokens
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} in the channel commentary, as functions.{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "<|start|>assistant{# <|channel|> #}"
)
ANSWER = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello."
THOUGHT, TEXT = "hm", "Hello."
TAGGED = f"<think>\n{THOUGHT}\n</think>\n\n{TEXT}"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"const": 1}},
    "required": ["a"],
    "additionalProperties": False,
}
JSON = '{"a": 1}'
_IDS = {text: tinygguf.N_VOCAB - len(TOKENS) + i for i, text in enumerate(TOKENS)}
TO_FINAL = {_IDS["<|message|>"]: 50.0, len(tinygguf.CONTROL) + ord("f"): 40.0}
"""Biases of tokens that lead to the final channel at once, where a grammar asks for a channel."""


def gpt_oss(path: Path) -> Path:
    """Writes the model, without the template."""
    return tinygguf.llama(path, more=TOKENS)


def spelt_out(answer: str = ANSWER) -> str:
    """A Lark grammar of this answer alone, its control tokens matched as tokens."""
    parts = re.split("(" + "|".join(map(re.escape, TOKENS)) + ")", answer)
    return "start: " + " ".join(f"<[{_IDS[p]}]>" if p in _IDS else json.dumps(p) for p in parts if p)
