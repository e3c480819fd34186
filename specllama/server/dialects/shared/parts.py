"""Message contents of all APIs: their parts, of which the model reads the text.

Pictures, sound and files become placeholders that the model can read. Also finds reasoning that clients send
in parts, or in fields next to the content. Knows no conversation.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import Field, model_validator

from specllama.server.dialects.shared.fields import AtMost, Body, FieldError

MAX_PARTS, MAX_IMAGES = 4096, 4096
_TEXTS = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")
_THOUGHTS = ("thinking", "reasoning")
_IGNORED_TYPES = ("redacted_thinking",)
_MEDIA = {
    "image": "image", "image_url": "image", "input_image": "image", "image_file": "image",
    "computer_screenshot": "image",
    "audio": "audio", "input_audio": "audio", "audio_url": "audio",
    "video": "video", "video_url": "video", "input_video": "video",
    "file": "file", "input_file": "file", "document": "file", "container_upload": "file", "file_url": "file",
}  # fmt: skip
"""Types of parts to what they are."""
_PAYLOADS = ("source", "data", "file", "file_id", "file_data", "file_url")
"""Fields of which a part that is media has one, besides that of its type's name."""
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "thinking_blocks", "reasoning_details")
Name = Annotated[str, Field(max_length=512)]


class NamedFile(Body):
    """The name of a file."""

    unnamed = frozenset({"file_data", "file_id", "format", "detail"})

    filename: Name = ""
    name: Name = ""


class InnerText(Body):
    """A nested part, such as the text of a document; other types have no text."""

    unnamed = frozenset({"type", "source", "cache_control", "citations", "annotations"})

    text: str = ""


HasText: TypeAlias = "InnerText | ContentPart"


class Source(Body):
    """The source of a document: may itself be text, or parts."""

    unnamed = frozenset({"url", "file_id"})

    data: str = ""
    content: str | Annotated[list[InnerText], AtMost(MAX_PARTS)] = ""
    media_type: Name = ""
    type: Name = ""

    @property
    def text(self) -> str:
        return self.data if self.type == "text" else joined(self.content)


class ContentPart(Body):
    """One part of a content, of any API. Its type determines which fields count."""

    unnamed = frozenset(
        {
            "annotations", "logprobs", "cache_control", "citations", "signature", "data", "detail", "format",
            "image_url", "input_audio", "audio_url", "video_url", "file_id", "file_data", "file_url", "id",
            "index", "status", "caller", "partial", "provider_specific_fields", "extra_content",
        }
    )  # fmt: skip

    type: Annotated[str, Field(max_length=256)]
    text: str = ""
    refusal: str = ""
    thinking: str | Annotated[list[InnerText], AtMost(MAX_PARTS)] = ""
    reasoning: str = ""
    filename: Name = ""
    title: Name = ""
    name: Name = ""
    file: NamedFile | None = None
    source: str | Source | None = None
    content: str | Annotated[list[InnerText], AtMost(MAX_PARTS)] = ""

    @property
    def thought(self) -> str:
        """The reasoning in the part."""
        return joined(self.thinking) or self.reasoning or self.text

    @property
    def document(self) -> str:
        """The text of a text document or search result, "" for others."""
        return self.source.text if isinstance(self.source, Source) else joined(self.content)

    @property
    def called(self) -> str:
        """The name of a file, "" if unknown."""
        inner = self.file
        return self.filename or self.title or self.name or ((inner.filename or inner.name) if inner else "")


Content = str | Annotated[list[ContentPart], AtMost(MAX_PARTS)]
"""The annotation of a content."""


class MediaPart(NamedTuple):
    """A picture, sound or file. param: the field at fault if it cannot be used. path: of the part, ending
    in its type. kind: what it is.
    """

    param: str
    path: str
    kind: str


@dataclass(slots=True)
class ReadContent:
    """A content after reading. texts: its parts in order, with placeholders for media. thoughts: its
    reasoning. media: parts that the model cannot read.
    """

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    media: list[MediaPart] = field(default_factory=list)

    @property
    def lines(self) -> str:
        """The texts joined by line breaks."""
        return "\n".join(self.texts)

    @property
    def run(self) -> str:
        """The texts concatenated: clients return the model's output in pieces."""
        return "".join(self.texts)

    def with_more(self, other: ReadContent) -> ReadContent:
        """This content followed by another."""
        return ReadContent(self.texts + other.texts, self.thoughts + other.thoughts, self.media + other.media)


def as_result(value: Any, known: Collection[str] = ()) -> Any:
    """The content of a tool's result in the forms of `Content`: what is neither a text nor parts, such as the
    value that a function returned, as its JSON text. known: further types of parts.
    """
    if value is None or isinstance(value, str) or value == []:
        return value
    if _is_part(value, known):
        return [value]
    if isinstance(value, list) and any(_is_part(one, known) for one in value):
        return [one if _is_part(one, known) else {"type": "text", "text": _json_text(one)} for one in value]
    return _json_text(value)


def _is_part(value: Any, known: Collection[str]) -> bool:
    """Whether a value in a result is a part of a content, not data that has a type too."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str):
        return False
    if kind in _TEXTS or kind in _THOUGHTS:
        return any(isinstance(value.get(name), str) for name in ("text", "refusal", kind))
    if kind in _MEDIA:
        inside = (*_PAYLOADS, kind, *(["content"] if kind == "document" else []))
        return kind.startswith("input_") or any(name in value for name in inside)
    return kind in _IGNORED_TYPES or kind == "search_result" or kind in known


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def placeholder(kind: str, name: str = "") -> str:
    """The text that replaces a picture, sound or file for the model."""
    shown = " ".join(name.split())[:200]
    return f"[{kind}{f' {shown}' if shown else ''} left out: this model reads text only]"


def read(content: str | Sequence[ContentPart] | None, path: str) -> ReadContent:
    """Read a content. path: its field. Raises FieldError for parts of unknown types."""
    if content is None or isinstance(content, str):
        return ReadContent([content] if content else [])
    reading = ReadContent()
    for i, part in enumerate(content):
        read_part(part, f"{path}[{i}]", reading)
    return reading


def with_images(content: ReadContent, images: Sequence[Any] | None, path: str) -> ReadContent:
    """A content with the images of its message. path: of the message."""
    field = f"{path}.images"
    for _ in images or ():
        content.texts.append(placeholder("image"))
        content.media.append(MediaPart(field, field, "image"))
    return content


def read_part(part: ContentPart, path: str, content: ReadContent, known: str = "") -> None:
    """Add a part to `content`. path: its field. known: more types for the error. Raises FieldError."""
    if part.type in _TEXTS:
        content.texts.append(part.text or part.refusal)
    elif part.type in _THOUGHTS:
        content.thoughts.append(part.thought)
    elif part.type in _IGNORED_TYPES:
        pass
    elif part.type == "search_result" or (part.type in _MEDIA and part.document):
        content.texts.append("\n".join(filter(None, (part.called, part.document))))
    elif part.type in _MEDIA:
        kind = _MEDIA[part.type]
        content.texts.append(placeholder(kind, part.called))
        content.media.append(MediaPart(f"{path}.type", f"{path}.{part.type}", kind))
    else:
        raise unknown_type(part.type, path, known)


def unknown_type(kind: str, path: str, known: str = "") -> FieldError:
    """The error for a part of a type that is not allowed there."""
    types = ", ".join(filter(None, ("text", "input_text", "output_text", "refusal", "thinking", known)))
    return FieldError(f"{path}.type must be one of {types}, not {kind[:80]!r}", f"{path}.type")


def joined(given: str | HasText | Iterable[HasText] | None) -> str:
    """The text of a content in any of its forms."""
    if given is None or isinstance(given, str):
        return given or ""
    return given.text if isinstance(given, Body) else "".join(part.text for part in given)


class MessageFields(Body):
    """Fields of messages besides the content in some APIs: reasoning, under any of the names that APIs
    and clients use, and Ollama's images.
    """

    reasoning_content: str | None = None
    images: Annotated[list[Any], AtMost(MAX_IMAGES)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _find_thought(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not any(name in data for name in _THOUGHT_FIELDS):
            return data
        rest = {name: value for name, value in data.items() if name not in _THOUGHT_FIELDS}
        return rest | {"reasoning_content": data.get("reasoning_content") or thought_of(data)}


def thought_of(message: Mapping[str, Any]) -> str | None:
    """The reasoning in the fields of a message: the first that is not empty."""
    for name in _THOUGHT_FIELDS:
        value = message.get(name)
        if isinstance(value, list):
            blocks = (one for one in value[:MAX_PARTS] if isinstance(one, Mapping))
            texts = (one.get("thinking") or one.get("text") or one.get("summary") for one in blocks)
            value = "".join(text for text in texts if isinstance(text, str))
        if isinstance(value, str) and value:
            return value
    return None
