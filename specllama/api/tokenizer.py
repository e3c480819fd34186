"""The tokenizer of a loaded target, under the names of Hugging Face's tokenizers."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specllama.api.prompts import Message, conversation, token_ids
from specllama.api.session import EngineSession
from specllama.calls import history
from specllama.client import protocol
from specllama.errors import SpecllamaError, UsageError
from specllama.text.prompt_parts import template_variables


class Tokenizer:
    """From texts to token ids and back. Its methods wait for the engine; threads may share one.

    bos_token, eos_token: their texts, "" where the vocabulary has none. end_ids: all tokens that end a text.
    """

    def __init__(self, engine: EngineSession) -> None:
        self._engine, info = engine, engine.info
        self.vocab_size: int = info["n_vocab"]
        self.bos_token: str = info["bos_token"]
        self.eos_token: str = info["eos_token"]
        self.end_ids: Sequence[int] = tuple(info["end_ids"])

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self._id(self.eos_token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; control tokens that it names are parsed. add_special_tokens: with the beginning
        of a text, where the model has one. Raises UsageError.
        """
        if not isinstance(text, str):
            raise UsageError(f"encode takes a text, not {type(text).__name__}")
        parts = self._ask(protocol.Tokenize(-1, text, add_special_tokens))
        return [i for part in parts if isinstance(part, protocol.Tokenized) for i in part.ids]

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ids. Raises UsageError."""
        ids = token_ids([ids] if isinstance(ids, int) else ids) if isinstance(ids, int) or len(ids) else ()
        parts = self._ask(protocol.Detokenize(-1, list(ids), skip_special_tokens))
        return "".join(part.text for part in parts if isinstance(part, protocol.Detokenized))

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str | list[int]:
        """What the chat template makes of messages and the beginning of their answer: ids, or a text with
        tokenize=False. variables: of the template. Raises UsageError and TemplateError.
        """
        if not add_generation_prompt:
            raise UsageError("messages end with the beginning of an answer", "add add_generation_prompt=True")
        given = conversation(messages).messages or []
        chat = protocol.ChatInput(given, template_variables(variables), history.tools(tools))
        parts = self._ask(protocol.Render(-1, chat))
        text = "".join(part.prompt for part in parts if isinstance(part, protocol.Rendered))
        return self.encode(text, False) if tokenize else text

    def _id(self, text: str) -> int | None:
        ids = self.encode(text, False)
        return ids[0] if len(ids) == 1 else None

    def _ask(self, question: protocol.Tokenize | protocol.Detokenize | protocol.Render) -> list[object]:
        """The parts of the answer. Raises the engine's error."""
        client, parts = self._engine.client(), list[object]()
        inbox: queue.SimpleQueue[protocol.Message | SpecllamaError] = queue.SimpleQueue()
        client.submit(replace(question, id=client.next_id()), inbox.put)
        while True:
            part = inbox.get()
            if isinstance(part, SpecllamaError):
                raise part
            parts.append(part)
            if not getattr(part, "more", False):
                return parts
