"""From the texts of requests to token ids: template, conversation and tokeniser, within the context's limit.

Used by the thread that decodes for small requests, by the preparer's thread for large ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.client import protocol
from specllama.core.prefix.boundaries import GAP, Boundary
from specllama.core.scheduler import context_length_error
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
    """The ids of a prompt, and of the forced output, None where the model writes freely. boundaries: places
    that later prompts may share, () where they are not known or not needed. digest: as in protocol.Started.
    """

    ids: list[int]
    forced: list[int] | None
    boundaries: Sequence[Boundary] = ()
    digest: str = ""


class Prompts:
    """Makes prompts for one loaded model. problem: why its template cannot be used, None if it can. calls:
    how the model is shown tools. with_boundaries: whether the places that later prompts may share are needed.
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
        if message.ids is not None:
            if len(message.ids) >= self._n_ctx:
                raise context_length_error(len(message.ids), self._n_ctx)
        elif message.prompt is not None:
            self.limit.check(message.prompt, parse_special=True)
        elif message.parts is not None:
            self._check_parts(message.parts)
        elif (gap := message.infill) is not None:
            self.limit.check_bytes(
                [gap.prompt] if gap.extra is not None else [gap.prefix, gap.suffix, gap.prompt]
            )
        else:
            self.limit.check_messages(message.messages or [])
            self.limit.check_tools(message.tools)
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
        boundaries = self._boundaries(message, ids) if self._with_boundaries else ()
        return Prompt(ids, forced, boundaries, self._digest(message, ids) if message.show_ids else "")

    def _digest(self, message: protocol.Generate, ids: Sequence[int]) -> str:
        """What shows that these ids are of this prompt, "" without messages. Raises as `_ids`."""
        if message.messages is None:
            return ""
        text = "".join(part.text for part in self._render(message, message.messages))
        return prompt_digest(text, (token_bytes(self._model, i) for i in ids))

    def _render(self, message: protocol.Generate, messages: Sequence[Mapping[str, Any]]) -> list[PromptPart]:
        """Messages through the template, with the variables and tools of a request."""
        return self.calls.render(
            self.template, messages, message.variables, message.tools, message.prefix_thought
        )

    def _boundaries(self, message: protocol.Generate, ids: Sequence[int]) -> Sequence[Boundary]:
        """The places of a chat's prompt, or of one that fills a gap. Raises as `_ids`."""
        if message.infill is not None:
            return infill_boundaries(self._model, ids)
        if message.messages is None or len(ids) < GAP:
            return ()
        template, thought, model = self.template, message.prefix_thought, self._model

        def render(messages: Sequence[Mapping[str, Any]]) -> list[PromptPart]:
            return self._render(message, messages)

        parts = self.calls.continued(template, render(message.messages), message.prefix, thought)
        return chat_boundaries(
            ChatPrompt(
                message.messages, parts, ids, render, lambda some: encode(some, model.tokenize, "", False)
            )
        )

    def _check_parts(self, parts: Sequence[str | list[int]]) -> None:
        n = sum(len(part) for part in parts if not isinstance(part, str))
        if n >= self._n_ctx:
            raise context_length_error(n, self._n_ctx)
        texts = [part for part in parts if isinstance(part, str)]
        self.limit.check_bytes(texts)
        for text in texts:
            self.limit.check(text, parse_special=True)

    def _ids(self, message: protocol.Generate) -> list[int]:
        model = self._model
        if message.ids is not None:
            return self._checked(message.ids)
        if message.parts is not None:
            found: list[int] = []
            for i, part in enumerate(message.parts):
                if isinstance(part, str):
                    found += model.tokenize(part, model.adds_bos and i == 0, True)
                else:
                    found += self._checked(part)
            return found
        if message.infill is not None:
            return infill_ids(model, message.infill, self._n_ctx, self._n_batch)
        if message.prompt is None:
            template, thought = self.template, message.prefix_thought
            return self.turns.ids(
                lambda messages: self._render(message, messages),
                lambda parts: self.calls.continued(template, parts, message.prefix, thought),
                model,
                message,
                self.limit,
            )
        ids = model.tokenize(message.prompt, model.adds_bos, True)
        if len(ids) > 1 and ids[0] == ids[1] == model.bos_id and model.adds_bos:
            del ids[0]  # the prompt has a BOS of its own
        return ids

    def _checked(self, ids: Sequence[int]) -> list[int]:
        last = self._model.n_vocab - 1
        if not all(isinstance(i, int) and 0 <= i <= last for i in ids):
            raise UsageError(f"token ids must be from 0 to {last}")
        return list(ids)
