"""From the texts of requests to token ids: template, conversation and tokeniser, within the context's limit.

Used by the thread that decodes for small requests, by the preparer's thread for large ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.client import protocol
from specllama.core.limits import context_length_error
from specllama.core.prefix.boundaries import GAP, Boundary
from specllama.errors import SpecllamaError, UsageError, option
from specllama.llama.model import LlamaModel
from specllama.text.control_tokens import PromptPart
from specllama.text.prompt_parts import PromptTemplate, encode
from specllama.worker.conversations import ConversationCache, prompt_digest
from specllama.worker.infill import infill_boundaries, infill_ids
from specllama.worker.pieces import token_bytes
from specllama.worker.prompt_boundaries import ChatPrompt, chat_boundaries
from specllama.worker.text_limit import TextLimit
from specllama.worker.tool_calls import ToolCalls


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of a prompt, and of the forced output, None where the model writes freely. boundaries: up
    to which later prompts may share it, () where they are not known or not needed. digest: as in
    protocol.Started.
    """

    ids: list[int]
    forced: list[int] | None
    boundaries: Sequence[Boundary] = ()
    digest: str = ""


class Prompts:
    """Makes prompts for one loaded model. problem: why its template cannot be used, None if it can. calls:
    how the model is shown tools. with_boundaries: whether boundaries of prompts are needed.
    """

    def __init__(
        self,
        model: LlamaModel,
        n_ctx: int,
        n_batch: int,
        template: PromptTemplate | None,
        problem: SpecllamaError | None,
        calls: ToolCalls,
        with_boundaries: bool = False,
    ) -> None:
        self._with_boundaries = with_boundaries
        self._model, self._n_ctx, self._n_batch = model, n_ctx, n_batch
        self._template, self._problem, self.calls = template, problem, calls
        self.limit, self.turns = TextLimit(model, n_ctx), ConversationCache()

    @property
    def template(self) -> PromptTemplate:
        """The usable template. Raises UsageError, TemplateError without one."""
        if self._template is None:
            hint = f"use {option('raw')}, or give one with {option('chat_template')}"
            raise self._problem or UsageError("the model has no chat template", hint)
        return self._template

    def check(self, message: protocol.Generate) -> None:
        """Raises ContextLengthError for a prompt that cannot fit, without tokenising it."""
        match message.prompt:
            case protocol.TokenInput(ids):
                if len(ids) >= self._n_ctx:
                    raise context_length_error(len(ids), self._n_ctx)
            case protocol.TextInput(text):
                self.limit.check(text, parse_special=True)
            case protocol.MixedInput(parts):
                self._check_parts(parts)
            case protocol.Infill() as gap:
                whole = [gap.prefix, gap.suffix, gap.prompt]
                self.limit.check_bytes([gap.prompt] if gap.extra is not None else whole)
            case protocol.ChatInput() as chat:
                self.limit.check_messages(chat.messages)
                self.limit.check_tools(chat.tools)
        if isinstance(message.forced, str):
            self.limit.check(message.forced, parse_special=False)

    def prompt(self, message: protocol.Generate) -> Prompt:
        """The ids for a request. Raises UsageError, TemplateError, ContextLengthError."""
        self.check(message)
        forced = message.forced
        if isinstance(forced, str):  # tokenised on its own, without control tokens
            forced = self._model.tokenize(forced, False, False)
        ids = self._ids(message.prompt)
        if not ids:
            raise UsageError("the prompt is empty", "give some text")
        boundaries = self._boundaries(message.prompt, ids) if self._with_boundaries else ()
        digest = self._digest(message.chat, ids) if message.chat is not None and message.show_ids else ""
        return Prompt(ids, forced, boundaries, digest)

    def _digest(self, chat: protocol.ChatInput, ids: Sequence[int]) -> str:
        """What shows that these ids are of this prompt. Raises as `_ids`."""
        text = "".join(part.text for part in self._render(chat, chat.messages))
        return prompt_digest(text, (token_bytes(self._model, i) for i in ids))

    def _render(self, chat: protocol.ChatInput, messages: Sequence[Mapping[str, Any]]) -> list[PromptPart]:
        """Messages through the template, with the variables and tools of a chat."""
        return self.calls.render(self.template, messages, chat.variables, chat.tools, chat.prefix_thought)

    def _continued(self, chat: protocol.ChatInput, parts: Sequence[PromptPart]) -> list[PromptPart]:
        """A rendered chat with the beginning of its answer."""
        return self.calls.continued(self.template, parts, chat.prefix, chat.prefix_thought)

    def rendered(self, chat: protocol.ChatInput) -> list[PromptPart]:
        """A chat through the template, with the beginning of its answer. Raises UsageError, TemplateError,
        ContextLengthError.
        """
        self.limit.check_messages(chat.messages)
        self.limit.check_tools(chat.tools)
        chat = self.calls.apart(chat)
        return self._continued(chat, self._render(chat, chat.messages))

    def _boundaries(self, prompt: protocol.PromptInput, ids: Sequence[int]) -> Sequence[Boundary]:
        """The boundaries in a chat's prompt, or in one that fills a gap. Raises as `_ids`."""
        if isinstance(prompt, protocol.Infill):
            return infill_boundaries(self._model, ids)
        if not isinstance(prompt, protocol.ChatInput) or len(ids) < GAP:
            return ()
        chat, model = prompt, self._model

        def render(messages: Sequence[Mapping[str, Any]]) -> list[PromptPart]:
            return self._render(chat, messages)

        parts = self._continued(chat, render(chat.messages))

        def ids_of(some: Sequence[PromptPart]) -> list[int]:
            return encode(some, model.tokenize, "", False)

        return chat_boundaries(ChatPrompt(chat.messages, parts, ids, render, ids_of))

    def _check_parts(self, parts: Sequence[str | list[int]]) -> None:
        n = sum(len(part) for part in parts if not isinstance(part, str))
        if n >= self._n_ctx:
            raise context_length_error(n, self._n_ctx)
        texts = [part for part in parts if isinstance(part, str)]
        self.limit.check_bytes(texts)
        for text in texts:
            self.limit.check(text, parse_special=True)

    def _ids(self, prompt: protocol.PromptInput) -> list[int]:
        model = self._model
        match prompt:
            case protocol.TokenInput(ids):
                return self._checked(ids)
            case protocol.TextInput(text):
                return self._of_text(text)
            case protocol.MixedInput(parts):
                all_ids: list[int] = []
                for i, part in enumerate(parts):
                    if isinstance(part, str):
                        all_ids += model.tokenize(part, model.adds_bos and i == 0, True)
                    else:
                        all_ids += self._checked(part)
                return all_ids
            case protocol.Infill():
                return infill_ids(model, prompt, self._n_ctx, self._n_batch)
            case protocol.ChatInput() as chat:
                return self.turns.ids(
                    lambda messages: self._render(chat, messages),
                    lambda parts: self._continued(chat, parts),
                    model,
                    chat,
                    self.limit,
                )

    def _of_text(self, text: str) -> list[int]:
        model = self._model
        ids = model.tokenize(text, model.adds_bos, True)
        if len(ids) > 1 and ids[0] == ids[1] == model.bos_id and model.adds_bos:
            del ids[0]  # the prompt has a BOS of its own
        return ids

    def _checked(self, ids: Sequence[int]) -> list[int]:
        last = self._model.n_vocab - 1
        if not all(isinstance(i, int) and 0 <= i <= last for i in ids):
            raise UsageError(f"token ids must be from 0 to {last}")
        return list(ids)
