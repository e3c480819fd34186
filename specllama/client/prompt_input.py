"""What a generation goes on from: one of five forms of a prompt, as messages to the engine carry them."""

from __future__ import annotations

from dataclasses import dataclass, field

from specllama.calls.tools import Tools
from specllama.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class InfillChunk:
    """A text, or a part of one, that may help to fill a gap in another."""

    text: str
    filename: str = "tmp"


@dataclass(frozen=True, slots=True)
class Infill:
    """A text with a gap. prefix, suffix: what is before and after it. prompt: the beginning of what fills it.
    extra: other texts, the most important ones last; all texts but `prompt` are then cut to what fits. None
    for prefix and suffix alone, uncut. suffix_first: for models that were trained on that order.
    """

    prefix: str
    suffix: str
    prompt: str = ""
    extra: list[InfillChunk] | None = None
    suffix_first: bool = False


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """A generation of another engine process, whose ids are kept (Generate.show_ids in protocol.py).

    n_messages: that it answered. ids: of its prompt and its text, the prompt's first. digest: as in
    protocol.Started. prefix: the beginning of the answer that was part of its prompt (ChatInput.prefix).
    """

    n_messages: int
    n_prompt: int
    ids: list[int]
    digest: str
    prefix: str = ""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Image:
    """A decoded image. digest: SHA-256 of its size and its pixels, hexadecimal. path: a file with width *
    height * 3 bytes, red, green and blue of each pixel, row by row; it need not outlast the answer Started,
    Failed, QueriedText or TokenCount.
    """

    digest: str
    width: int
    height: int
    path: str

    @property
    def marker(self) -> str:
        """Stands for the image in a text."""
        return f"<__media_{self.digest[:32]}__>"


@dataclass(frozen=True, slots=True)
class ChatInput:
    """Messages, which the chat template renders.

    variables: of the template. tools: what the model may call in its answer, None for nothing. prefix: text
    after the rendered messages that the answer continues; control tokens in it are not parsed.
    prefix_thought: reasoning of the answer before `prefix`; without a prefix it goes on itself. follows: id
    of an earlier generation whose prompt and answer these messages begin with; its ids are kept where the
    template writes the same text for them. earlier: in place of `follows`, a generation of another engine
    process, of these messages or of the first of them. images: of the messages, whose contents have their
    markers.
    """

    messages: list[JsonObject]
    variables: JsonObject = field(default_factory=dict)
    tools: Tools | None = None
    prefix: str = ""
    prefix_thought: str = ""
    follows: int | None = None
    earlier: EarlierTurn | None = None
    images: list[Image] = field(default_factory=list)

    @property
    def is_begun(self) -> bool:
        """Whether the answer goes on with what is there of it."""
        return bool(self.prefix or self.prefix_thought)


@dataclass(frozen=True, slots=True)
class TextInput:
    """A text as it is; control tokens in it are parsed. images: whose markers it has."""

    text: str
    images: list[Image] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TokenInput:
    """Token ids."""

    ids: list[int]


@dataclass(frozen=True, slots=True)
class MixedInput:
    """Texts and ids in turn; each text is tokenised on its own."""

    parts: list[str | list[int]]


PromptInput = ChatInput | TextInput | TokenInput | MixedInput | Infill
