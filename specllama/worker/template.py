"""The chat template of what was loaded."""

from __future__ import annotations

from specllama.errors import SpecllamaError, option
from specllama.text.chat_template import ChatTemplate
from specllama.worker.loader import Loaded


def compile_template(loaded: Loaded) -> tuple[ChatTemplate | None, SpecllamaError | None]:
    """The chat template, tried once, and what is wrong with it: a note now, an error when it is used."""
    model, given = loaded.model, loaded.settings.chat_template
    source = given or loaded.header.chat_template
    if not source:
        return None, None
    bos, eos = model.token_text(model.bos_id), model.token_text(model.eos_id)
    template = None
    try:
        template = ChatTemplate(source, model.control_texts, bos, eos, own=given is None)
        template.render([{"role": "user", "content": "Hello"}])
    except SpecllamaError as error:
        loaded.info["notes"].append(f"warning: {error.message}; {option('raw')} does without it")
        return template, error
    return template, None
