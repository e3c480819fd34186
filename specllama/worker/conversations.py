"""Keeps the ids of earlier turns of a conversation, so that a next turn evaluates only the new text.

Tokenising an answer again need not give the ids that the model generated; the kept ids match the cache.
Ids that a front has kept from another engine process are used where they stand for the same bytes in
this vocabulary and the template writes the same text.
"""

from __future__ import annotations

import codecs
import functools
import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.calls.history import Messages
from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.core.decoder import context_length_error
from specllama.core.image_rows import FIRST_PLACEHOLDER, is_begin, without_images
from specllama.llama.model import LlamaModel
from specllama.text.prompt_parts import ControlTexts, PromptPart, encode
from specllama.worker.images import PromptImages

# The bytes and the text that ids stand for, control tokens by their names.


def detokenize(model: LlamaModel, ids: Sequence[int], special: bool = True) -> str:
    """The text of ids, control tokens by their names or, without `special`, left out."""
    pieces = (token_bytes(model, i) if special else model.piece(i) for i in ids)
    return b"".join(pieces).decode("utf-8", "replace")


def token_bytes(model: LlamaModel, token: int) -> bytes:
    """The bytes of a token, of a control token those of its name; of an image llama.cpp's marker."""
    if token >= FIRST_PLACEHOLDER:
        return b"<__media__>" if is_begin(token) else b""
    return model.piece(token) or model.token_text(token).encode()


# Which texts cannot fit into the context, found without tokenising them.
#
# No token has more bytes than the longest one of the vocabulary, and each text of a control token is one
# token. The first bound does not hold where the tokenizer drops text (white space next to some control
# tokens, bytes that the vocabulary lacks), which no text of that size consists of.


class TextLimit:
    """The limit on texts of a model with a context of n_ctx tokens."""

    def __init__(self, model: LlamaModel, n_ctx: int) -> None:
        self._model, self._n_ctx = model, n_ctx

    def check(self, text: str, parse_special: bool) -> None:
        """Raises ContextLengthError for a text that cannot fit. parse_special: as for tokenising it."""
        self.check_bytes([text])
        if parse_special and len(text) > 2 * self._n_ctx:  # ControlTexts ignores texts of one character
            n = sum(1 for _ in itertools.islice(self._control.find(text), self._n_ctx + 1))
            if n > self._n_ctx:
                raise context_length_error(n, self._n_ctx, True, self._model.n_ctx_train)

    def check_messages(self, messages: Iterable[Mapping[str, Any]]) -> None:
        """As `check_bytes`; without the assistant's, of which templates may leave out parts."""
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
        n_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in all_texts)
        if n_bytes > self._n_ctx:  # otherwise it fits even at a byte a token
            self.check_size(n_bytes)

    def check_size(self, n_bytes: int) -> None:
        """Raises ContextLengthError for a text of so many bytes."""
        if n_bytes > self._n_ctx * self._model.longest_token:
            least = -(-n_bytes // self._model.longest_token)
            raise context_length_error(least, self._n_ctx, True, self._model.n_ctx_train)

    @functools.cached_property
    def _control(self) -> ControlTexts:
        return ControlTexts(self._model.control_texts)


_KEPT = 32  # turns
Render = Callable[[Sequence[Mapping[str, Any]]], list[PromptPart]]


@dataclass(frozen=True, slots=True)
class _Turn:
    messages: Messages
    ids: list[int]  # of prompt and answer
    n_prompt: int
    prefix: str = ""  # the beginning of the answer that is part of the prompt


class ConversationCache:
    """The most recent turns, by the id of their request."""

    def __init__(self) -> None:
        self._turns: OrderedDict[int, _Turn] = OrderedDict()

    def keep(self, id_: int, messages: Messages, ids: Sequence[int], n_prompt: int, prefix: str = "") -> None:
        """Store a turn: the messages that it answers, and the ids of its prompt and answer. prefix: the
        beginning of the answer that is part of the prompt.
        """
        self._turns[id_] = _Turn(messages, list(ids), n_prompt, prefix)
        while len(self._turns) > _KEPT:
            self._turns.popitem(last=False)

    def ids(
        self,
        render: Render,
        continued: Callable[[list[PromptPart]], list[PromptPart]],
        model: LlamaModel,
        chat: protocol.ChatInput,
        limit: TextLimit,
        images: PromptImages,
    ) -> list[int]:
        """Ids of the prompt of a chat. Starts with the ids of the turn that they follow if the text
        is the same. render: messages with the request's variables and tools; continued: adds the beginning of
        the answer. Raises TemplateError, UsageError, ContextLengthError.
        """
        rendered = render(chat.messages)
        limit.check_bytes(part.text for part in rendered)
        parts = continued(rendered)
        earlier = self._turns.get(chat.follows) if chat.follows is not None else None
        if earlier is None and chat.earlier is not None:
            earlier = _turn_of(chat.earlier, chat.messages, render, model)
        ids = _continued(render, model, earlier, chat, parts, images) if earlier is not None else None
        if ids is not None and images.knows(ids):
            return ids
        return encode(parts, images.tokenize, model.token_text(model.bos_id), model.adds_bos)


def prompt_digest(text: str, pieces: Iterable[bytes]) -> str:
    """A hash of a rendered prompt, without the beginning of an answer, and of the bytes of its tokens."""
    digest = hashlib.blake2b(digest_size=16, person=b"prompt ids")
    for part in (text.encode("utf-8", "surrogatepass"), *pieces):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _turn_of(
    earlier: protocol.EarlierTurn, messages: Sequence[Mapping[str, Any]], render: Render, model: LlamaModel
) -> _Turn | None:
    """The turn of another engine process; None if its ids are not those of this text in this vocabulary."""
    n, ids = earlier.n_prompt, earlier.ids
    first = [dict(message) for message in messages[: earlier.n_messages]]
    if not 0 < n < len(ids) or not all(0 <= i < model.n_vocab for i in without_images(ids)):
        return None
    if not first or len(first) != earlier.n_messages or first[-1].get("role") == "assistant":
        return None
    text = "".join(part.text for part in render(first))
    if prompt_digest(text, (token_bytes(model, i) for i in ids[:n])) != earlier.digest:
        return None
    return _Turn(first, ids, n, earlier.prefix)


def _continued(
    render: Render,
    model: LlamaModel,
    earlier: _Turn,
    chat: protocol.ChatInput,
    parts: Sequence[PromptPart],
    images: PromptImages,
) -> list[int] | None:
    """The ids of the earlier turn, then those of the text after its answer, or those of its prompt alone
    where the messages are the same; None if the template now renders the earlier turn differently (some drop
    its reasoning, or white space around an answer).
    """
    messages, n = chat.messages, len(earlier.messages)
    if messages == earlier.messages and chat.prefix == earlier.prefix:
        return earlier.ids[: earlier.n_prompt]
    if list(messages[:n]) != earlier.messages or len(messages) <= n or messages[n].get("role") != "assistant":
        return None
    ended = earlier.ids[-1] in model.end_ids
    generated = earlier.ids[earlier.n_prompt : -1 if ended else None]
    # As in detokenizer.py, an incomplete character at the end is not part of the text.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    answer = decoder.decode(b"".join(map(model.piece, generated)))
    answer = earlier.prefix + answer
    if answer != messages[n].get("content"):  # it was edited, or ended by a stop string
        return None
    before = "".join(part.text for part in render(earlier.messages))
    rest = _without_prefix(parts, before + answer)
    if rest is None:
        return None
    kept = earlier.ids[:-1] if ended else earlier.ids  # the template writes the end of the turn itself
    return [*kept, *encode([part for part in rest if part.text], images.tokenize, "", False)]


def _without_prefix(parts: Sequence[PromptPart], prefix: str) -> list[PromptPart] | None:
    """The parts of the text after `prefix`; None if the text does not start with it."""
    done = 0
    for i, part in enumerate(parts):
        size = min(len(part.text), len(prefix) - done)
        if part.text[:size] != prefix[done : done + size]:
            return None
        done += size
        if done == len(prefix):
            return [PromptPart(part.text[size:], part.parse_special), *parts[i + 1 :]]
    return None
