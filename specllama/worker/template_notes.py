"""Notes on a chat template that does not fit its model."""

from __future__ import annotations

import contextlib
import re

from specllama.errors import Note, SpecllamaError, option
from specllama.llama.model import LlamaModel
from specllama.text.prompt_parts import PromptTemplate

_ANSWER = "specllama"
_MARKER = re.compile(r"<[^<>\s]{1,60}>")


def template_notes(model: LlamaModel, template: PromptTemplate) -> list[Note]:
    """That the model lacks the tokens with which the template ends an answer: it then has none to write
    there, and goes on with the next message itself.
    """
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    ending = ""
    with contextlib.suppress(SpecllamaError):  # a template that takes no such messages
        parts = template.render(messages, add_generation_prompt=False)
        ending = "".join(part.text for part in parts).rpartition(_ANSWER)[2]
    markers = _MARKER.findall(ending)
    if not markers or any(len(model.tokenize(marker, False, True)) == 1 for marker in markers):
        return []
    reverse = option("stop", f"'{markers[0]}'")
    return [
        Note(
            f"the chat template ends answers with {markers[0]}, no token of this model: they may not "
            f"end by themselves; use the model's own template, or {reverse}"
        )
    ]
