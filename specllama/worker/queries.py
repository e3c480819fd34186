"""Answers to what a front may ask of a loaded engine beside generations: tokens, templates, slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specllama.client import protocol as m
from specllama.core.engine import Engine
from specllama.errors import UsageError
from specllama.llama.model import LlamaModel
from specllama.text.chat_template import ChatTemplate
from specllama.text.reasoning import closing_tag
from specllama.worker.output import SequenceOutput

_TAIL = 32  # tokens at the end of a prompt in which an opening tag is looked for


def answer_query(
    question: m.Question,
    model: LlamaModel,
    template: ChatTemplate | None,
    engine: Engine,
    running: Sequence[SequenceOutput],
) -> dict[str, Any]:
    """The answer to a question. Raises TemplateError, UsageError."""
    if isinstance(question, m.Render):
        assert template is not None
        return _rendered(template, question)
    if isinstance(question, m.GetSlots):
        return _slots(engine, running)
    return _in_tokens(model, question)


def _in_tokens(model: LlamaModel, question: m.Tokenize | m.Detokenize) -> dict[str, Any]:
    """Ids and the bytes of each, or the text of ids. Raises UsageError."""
    if isinstance(question, m.Tokenize):
        ids = model.tokenize(question.text, question.add_special and model.adds_bos, question.parse_special)
        return {"ids": ids, "pieces": [list(_bytes(model, i)) for i in ids]}
    known = model.n_vocab
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < known for i in question.ids):
        raise UsageError(f"token ids must be from 0 to {known - 1}")
    return {"text": b"".join(_bytes(model, i) for i in question.ids).decode("utf-8", "replace")}


def _rendered(template: ChatTemplate, question: m.Render) -> dict[str, Any]:
    """The text of the prompt. Raises TemplateError, UsageError."""
    parts = template.render(question.messages, **question.variables)
    return {"prompt": "".join(part.text for part in parts) + question.prefix}


def _slots(engine: Engine, running: Sequence[SequenceOutput]) -> dict[str, Any]:
    """What each slot is doing: `id` is that of the generation; and how much of the cache is in use."""
    found, n_used = [], 0
    by_sequence = {r.generation.seq_id: r for r in running if r.generation in engine.active}
    for slot in engine.slots:
        r = by_sequence.get(slot.seq_id)
        state = {"slot": slot.seq_id, "n_past": len(slot.ids), "id": None}
        n_used += 0 if slot.saved is not None else len(slot.ids)
        if r is not None:
            g, s = r.generation, r.generation.stats
            n_used += g.n_past
            state |= {
                "id": r.id,
                "n_past": g.n_past,
                "n_prompt": g.n_prompt,
                "n_decoded": s.n_predict,
                "n_drafted": s.n_drafted,
                "n_accept": s.n_accept,
                "speculate": g.request.speculate,
            }
        found.append(state)
    return {
        "slots": found,
        "n_waiting": len(engine.waiting),
        "n_used": n_used,
        "n_ctx": engine.target.n_ctx,
    }


def open_reasoning_tag(model: LlamaModel, ids: Sequence[int]) -> str:
    """The tag that will close the reasoning which the prompt's last ids open; "" where they open none."""
    return closing_tag(b"".join(_bytes(model, i) for i in ids[-_TAIL:]).decode("utf-8", "replace"))


def _bytes(model: LlamaModel, token: int) -> bytes:
    return model.piece(token) or model.token_text(token).encode()
