"""Which texts cannot fit into the context, found without tokenising them.

No token has more bytes than the longest one of the vocabulary, and each text of a control token is one token.
The first bound does not hold where the tokenizer drops text (white space next to some control tokens, bytes
that the vocabulary lacks), which no text of that size consists of.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from specllama.calls.tools import Tools
from specllama.core.limits import context_length_error
from specllama.llama.model import LlamaModel
from specllama.text.control_tokens import ControlTexts


class TextLimit:
    """The limit on texts of a model with a context of n_ctx tokens."""

    def __init__(self, model: LlamaModel, n_ctx: int) -> None:
        self._model, self._n_ctx = model, n_ctx

    @functools.cached_property
    def max_bytes(self) -> int:
        """Bytes of a text beyond which it cannot fit."""
        return self._n_ctx * self._model.longest_token

    def check(self, text: str, parse_special: bool) -> None:
        """Raises ContextLengthError for a text that cannot fit. parse_special: as for tokenising it."""
        self.check_bytes([text])
        if parse_special and len(text) > 2 * self._n_ctx:  # ControlTexts ignores texts of one character
            n = sum(1 for _ in itertools.islice(self._control.find(text), self._n_ctx + 1))
            if n > self._n_ctx:
                raise context_length_error(n, self._n_ctx, at_least=True)

    def check_messages(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """Raises ContextLengthError for messages that cannot fit. Those of the assistant are not counted:
        templates may leave out parts of them.
        """
        contents = (m.get("content") for m in messages if m.get("role") != "assistant")
        self.check_bytes(text for text in contents if isinstance(text, str))

    def check_tools(self, tools: Tools | None) -> None:
        """Raises ContextLengthError for tools that cannot fit: templates show all of them."""
        if tools is not None:
            self.check_bytes(
                text for tool in tools.tools for text in (tool.name, tool.description, str(tool.parameters))
            )

    def check_bytes(self, texts: Iterable[str]) -> None:
        """Raises ContextLengthError for texts that cannot fit together."""
        all_texts = list(texts)
        if 4 * sum(map(len, all_texts)) <= self._n_ctx:
            return
        n_bytes = sum(len(text) if text.isascii() else _utf8_bytes(text) for text in all_texts)
        if n_bytes > self._n_ctx:  # otherwise it fits even at a byte a token
            self.check_size(n_bytes)

    def check_size(self, n_bytes: int) -> None:
        """Raises ContextLengthError for a text of so many bytes."""
        if n_bytes > self.max_bytes:
            least = -(-n_bytes // self._model.longest_token)
            raise context_length_error(least, self._n_ctx, at_least=True)

    @functools.cached_property
    def _control(self) -> ControlTexts:
        return ControlTexts(self._model.control_texts)


def _utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
