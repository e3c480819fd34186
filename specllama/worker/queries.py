"""Answers queries about a loaded engine: tokens, the chat template, slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specllama.client import protocol
from specllama.core.engine import Engine
from specllama.errors import SpecllamaError, UsageError
from specllama.llama.model import LlamaModel
from specllama.text.reasoning import closing_tag
from specllama.text.template_process import IsolatedTemplate, TemplateProcess
from specllama.worker.loader import Loaded
from specllama.worker.output import SequenceOutput, detokenize, token_bytes
from specllama.worker.prompts import Prompts

_PART_IDS, _PART_CHARS = 1024, 8 * 1024  # of a part of an answer: the front reads it in a few milliseconds
_TAIL = 32  # tokens at the end of a prompt that are searched for an opening tag


def compile_template(
    loaded: Loaded, process: TemplateProcess
) -> tuple[IsolatedTemplate | None, SpecllamaError | None]:
    """(the chat template, None if the model has none; the error of rendering a test message with it).

    The error is a note when the model is loaded, and raised when the template is used. process: for the
    template; it is ended where there is none.
    """
    model, given = loaded.model, loaded.settings.chat_template
    source = given or loaded.header.chat_template
    if not source:
        process.close()
        return None, None
    bos, eos = model.token_text(model.bos_id), model.token_text(model.eos_id)
    template = None
    try:
        template = IsolatedTemplate(source, model.control_texts, bos, eos, given is None, process)
        template.render([{"role": "user", "content": "Hello"}])
    except SpecllamaError as error:
        return template, error
    return template, None


def answer_query(
    question: protocol.Question, model: LlamaModel, prompts: Prompts
) -> Iterator[protocol.Tokenized | protocol.Detokenized | protocol.Rendered | protocol.TokenCount]:
    """The parts of the answer to a query about texts, in any thread. Raises TemplateError, UsageError,
    ContextLengthError, before the first part.
    """
    if isinstance(question, protocol.Tokenize):
        yield from _tokenized(model, question, prompts)
    elif isinstance(question, protocol.Detokenize):
        for text, more in _texts(_detokenized(model, question, prompts)):
            yield protocol.Detokenized(question.id, text, more)
    elif isinstance(question, protocol.Render):
        parts = prompts.rendered(question.chat)
        for text, more in _texts("".join(part.text for part in parts)):
            yield protocol.Rendered(question.id, text, more)
    elif isinstance(question, protocol.CountTokens):
        request = protocol.Generate(question.id, prompts.calls.apart(question.chat))
        yield protocol.TokenCount(question.id, len(prompts.prompt(request).ids))


def _tokenized(
    model: LlamaModel, question: protocol.Tokenize, prompts: Prompts
) -> Iterator[protocol.Tokenized]:
    prompts.limit.check(question.text, question.parse_special)
    ids = model.tokenize(question.text, question.add_special and model.adds_bos, question.parse_special)
    for begin in range(0, max(1, len(ids)), _PART_IDS):
        part = ids[begin : begin + _PART_IDS]
        pieces = [token_bytes(model, i).decode("latin-1") for i in part] if question.with_pieces else []
        yield protocol.Tokenized(question.id, part, pieces, begin + _PART_IDS < len(ids))


def _detokenized(model: LlamaModel, question: protocol.Detokenize, prompts: Prompts) -> str:
    known = model.n_vocab
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < known for i in question.ids):
        raise UsageError(f"token ids must be from 0 to {known - 1}")
    prompts.limit.check_size(sum(len(token_bytes(model, i)) for i in question.ids))
    return detokenize(model, question.ids, special=not question.skip_special)


def _texts(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a text, each with whether another one follows."""
    for begin in range(0, max(1, len(text)), _PART_CHARS):
        yield text[begin : begin + _PART_CHARS], begin + _PART_CHARS < len(text)


def slots(
    id_: int,
    engine: Engine,
    running: Sequence[SequenceOutput],
    decode_seconds: Sequence[tuple[int, float]] = (),
) -> protocol.Slots:
    """The state of each slot, and the number of cache cells in use. decode_seconds: see protocol.Slots."""
    states, n_used = [], 0
    by_sequence = {r.generation.seq_id: r for r in running if r.generation in engine.active}
    for slot in engine.slots:
        r = by_sequence.get(slot.seq_id)
        n_used += len(slot.ids)
        if r is None:
            states.append(protocol.SlotState(slot.seq_id, len(slot.ids), slot.scope))
            continue
        g, s = r.generation, r.generation.stats
        n_used += g.n_past
        states.append(
            protocol.SlotState(
                slot.seq_id,
                g.n_past,
                g.request.owner,
                id=r.id,
                n_prompt=g.n_prompt,
                n_decoded=s.n_predict,
                n_drafted=s.n_drafted,
                n_accept=s.n_accept,
                speculate=g.request.speculate,
            )
        )
    states_in_ram = engine.scheduler.store.state_cache
    return protocol.Slots(
        id_,
        states,
        len(engine.scheduler.waiting),
        n_used,
        engine.target.n_ctx,
        list(decode_seconds),
        len(states_in_ram.texts) + sum(1 for _ in states_in_ram.partials()),
        states_in_ram.n_bytes,
    )


def open_reasoning_tag(model: LlamaModel, ids: Sequence[int]) -> str:
    """The tag that closes the reasoning opened at the end of the prompt; "" if none is open there."""
    return closing_tag(end_of_prompt(model, ids))


def end_of_prompt(model: LlamaModel, ids: Sequence[int]) -> str:
    """The last words of a prompt, control tokens by their names."""
    return detokenize(model, ids[-_TAIL:])
