"""From the texts of requests to token ids: template, conversation and tokeniser, within the context's limit.

Used by the thread that decodes for small requests, by the preparer's thread for large ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from specllama.client import protocol
from specllama.core.scheduler import context_length_error
from specllama.errors import SpecllamaError, UsageError, option
from specllama.llama.model import LlamaModel
from specllama.text.chat_template import ChatTemplate
from specllama.worker.conversations import ConversationCache
from specllama.worker.text_limit import TextLimit


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of a prompt, and of the forced output, None where the model writes freely."""

    ids: list[int]
    forced: list[int] | None


class Prompts:
    """Makes prompts for one loaded model. problem: why its template cannot be used, None if it can."""

    def __init__(
        self, model: LlamaModel, n_ctx: int, template: ChatTemplate | None, problem: SpecllamaError | None
    ) -> None:
        self._model, self._n_ctx = model, n_ctx
        self._template, self._problem = template, problem
        self.limit, self.turns = TextLimit(model, n_ctx), ConversationCache()

    @property
    def template(self) -> ChatTemplate:
        """The usable template. Raises UsageError, TemplateError without one."""
        if self._template is None:
            hint = f"use {option('raw')}, or give one with {option('chat_template')}"
            raise self._problem or UsageError("the model has no chat template", hint)
        return self._template

    def check(self, message: protocol.Generate) -> None:
        """Raises ContextLengthError for a prompt that cannot fit, without tokenising it."""
        if message.ids is not None:
            if len(message.ids) >= self._n_ctx:
                raise context_length_error(len(message.ids), self._n_ctx)
        elif message.prompt is not None:
            self.limit.check(message.prompt, parse_special=True)
        else:
            self.limit.check_messages(message.messages or [])
        if isinstance(message.forced, str):
            self.limit.check(message.forced, parse_special=False)

    def prompt(self, message: protocol.Generate) -> Prompt:
        """The ids for a request. Raises UsageError, TemplateError, ContextLengthError."""
        self.check(message)
        forced = message.forced
        if isinstance(forced, str):  # tokenised on its own, without control tokens
            forced = self._model.tokenize(forced, False, False)
        ids = self._ids(message)
        if not ids:
            raise UsageError("the prompt is empty", "give some text")
        return Prompt(ids, forced)

    def _ids(self, message: protocol.Generate) -> list[int]:
        model = self._model
        if message.ids is not None:
            if not all(isinstance(i, int) and 0 <= i < model.n_vocab for i in message.ids):
                raise UsageError(f"token ids must be from 0 to {model.n_vocab - 1}")
            return list(message.ids)
        if message.prompt is None:
            return self.turns.ids(self.template, model, message, self.limit)
        ids = model.tokenize(message.prompt, model.adds_bos, True)
        if len(ids) > 1 and ids[0] == ids[1] == model.bos_id and model.adds_bos:
            del ids[0]  # the prompt has a BOS of its own
        return ids
