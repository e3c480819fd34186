"""Converts the turns of a request, in any API, to messages for chat templates.

Each API adds its turns in order. Here calls and results are paired, results are sorted by their calls,
arguments that were cut off are completed, and content that the model cannot read is replaced or
refused. Differences between templates are handled when the prompt is rendered (calls/history.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field, model_validator

from specllama.calls.history import cut_off_arguments, in_call_order, text_of
from specllama.errors import UsageError
from specllama.images import LEFT_OUT
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import MAX_NAMED, AtMost, Body, FieldError
from specllama.server.dialects.shared.image_parts import (
    GivenImage,
    ImageFields,
    images_of_field,
    numbers_in,
    refusal,
    replaced,
    unusable,
)
from specllama.server.http.body import MAX_CONTAINERS, MAX_VALUES, check_depth, containers, parse

# Contents of messages of all APIs: their parts, of which the model reads texts and images. Sound and files
# become placeholders; reasoning is found in parts, and in fields next to the content.


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
    """The source of a document, which may itself be text, or parts, or of an image."""

    url: str = ""
    file_id: Name = ""
    data: str = ""
    content: str | Annotated[list[InnerText], AtMost(MAX_PARTS)] = ""
    media_type: Name = ""
    type: Name = ""

    @property
    def text(self) -> str:
        return self.data if self.type == "text" else joined(self.content)


class ContentPart(ImageFields):
    """One part of a content, of any API. Its type determines which fields count."""

    unnamed = frozenset(
        {
            "annotations", "logprobs", "cache_control", "citations", "signature", "format",
            "input_audio", "audio_url", "video_url", "file_data", "file_url", "id",
            "index", "status", "caller", "partial", "provider_specific_fields", "extra_content",
        }
    )  # fmt: skip

    defaults: ClassVar[Mapping[str, Any]] = {"detail": "auto"}

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


@dataclass(slots=True)
class ReadContent:
    """A content after reading. texts: its parts in order, with placeholders for media and marks for images.
    thoughts: its reasoning. media: sound and files, which no model here can read: (the field at fault, the
    path of the part, ending in its type, what it is). images: in order.
    """

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    media: list[tuple[str, str, str]] = field(default_factory=list)
    images: list[GivenImage] = field(default_factory=list)

    @property
    def lines(self) -> str:
        return "\n".join(self.texts)

    @property
    def run(self) -> str:
        """The texts concatenated: clients return the model's output in pieces."""
        return "".join(self.texts)

    def with_more(self, other: ReadContent) -> ReadContent:
        return ReadContent(
            self.texts + other.texts,
            self.thoughts + other.thoughts,
            self.media + other.media,
            self.images + other.images,
        )


def as_result(value: Any, known: Collection[str] = ()) -> Any:
    """The content of a tool's result in the forms of `Content`: what is neither a text nor parts, such as the
    value that a function returned, as its JSON text. known: further types of parts.
    """
    if value is None or isinstance(value, str) or value == []:
        return value
    if _is_part(value, known):
        return [value]
    if isinstance(value, list) and any(_is_part(one, known) for one in value):
        return [one if _is_part(one, known) else {"type": "text", "text": text_of(one)} for one in value]
    return text_of(value)


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


def placeholder(kind: str, name: str = "") -> str:
    """The text that replaces an image, sound or a file for the model."""
    shown = " ".join(name.split())[:200]
    return LEFT_OUT.replace("image", f"{kind} {shown}".rstrip(), 1)


def read(
    content: str | ContentPart | Sequence[ContentPart] | None,
    path: str,
    read_one: Callable[[Any, str, ReadContent], None] | None = None,
) -> ReadContent:
    """Read a content. path: its field. read_one: used in place of `read_part`, whose errors it raises."""
    reading = ReadContent([content] if isinstance(content, str) and content else [])
    if isinstance(content, ContentPart):
        (read_one or read_part)(content, path, reading)
    elif not isinstance(content, str):
        for i, part in enumerate(content or ()):
            (read_one or read_part)(part, f"{path}[{i}]", reading)
    return reading


def with_images(content: ReadContent, images: Sequence[Any] | None, path: str) -> ReadContent:
    """A content after the images of its message, which stand before it as in Ollama. path: of the message."""
    given = images_of_field(images, f"{path}.images")
    return ReadContent([image.mark for image in given], images=given).with_more(content)


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
    elif (kind := _MEDIA.get(part.type)) == "image":
        content.images.append(image := part.image_at(path, part.type, part.source))
        content.texts.append(image.mark)
    elif kind is not None:
        content.texts.append(placeholder(kind, part.called))
        content.media.append((f"{path}.type", f"{path}.{part.type}", kind))
    else:
        texts = "text", "input_text", "output_text", "refusal", "thinking"
        types = ", ".join(filter(None, (*texts, "image_url", "input_image", known)))
        raise FieldError(f"{path}.type must be one of {types}, not {part.type[:80]!r}", f"{path}.type")


def joined(given: str | HasText | Iterable[HasText] | None) -> str:
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


# Calls of earlier answers: which result belongs to which call, and what their arguments are.


class EarlierCalls:
    """The calls so far. Missing ids are generated from a counter: 9 letters and digits."""

    def __init__(self) -> None:
        self._n = 0
        self._turn = 0
        self._turns: dict[str, int] = {}  # of the latest call with an id
        self._names: dict[str, str] = {}  # of the latest call with an id
        self._open: dict[int, tuple[str, str]] = {}  # calls without a result by number: id and name
        self._by_id: defaultdict[str, deque[int]] = defaultdict(deque)
        # Numbers of calls by name; None: of all.
        self._all: defaultdict[str | None, deque[int]] = defaultdict(deque)
        self._without_id: defaultdict[str | None, deque[int]] = defaultdict(deque)

    def begin_turn(self) -> None:
        """Begin another answer: clients may restart their ids with each."""
        self._turn += 1

    def add(self, id_: str | None, name: str) -> str:
        call_id = self._new_id(id_)
        if self._turns.get(call_id) != self._turn:
            self._by_id[call_id].clear()
        self._turns[call_id], self._names[call_id] = self._turn, name
        self._open[self._n] = call_id, name
        self._by_id[call_id].append(self._n)
        for queues in (self._all, self._without_id) if id_ is None else (self._all,):
            queues[name].append(self._n)
            queues[None].append(self._n)
        return call_id

    def answered(self, id_: str | None, name: str | None) -> tuple[str, str] | None:
        """The id and name of the call that a result belongs to: the first open call with that id, otherwise
        with that name, otherwise, for a result without a name, the first one; a result with an id matches by
        name only calls without an id, and one without an id matches those first. A result without an id that
        matches none stands for itself if there are any calls. None: no such call.
        """
        if id_ is not None:
            call = self._first(self._by_id[id_]) or self._first(self._without_id[name])
            return call or ((id_, self._names[id_]) if id_ in self._names else None)
        call = self._first(self._without_id[name], self._all[name])
        return call or ((self._new_id(None), name or "") if self._names else None)

    def _first(self, *queues: deque[int]) -> tuple[str, str] | None:
        """Take the first call of the queues that has no result yet."""
        for numbers in queues:
            while numbers:
                if call := self._open.pop(numbers.popleft(), None):
                    return call
        return None

    def _new_id(self, id_: str | None) -> str:
        self._n += 1
        return id_ or f"call{self._n:05d}"


class CallArguments:
    """Parses the arguments of all earlier calls, with the limits of a body for all of them together."""

    def __init__(self) -> None:
        self._n_values = self._n_containers = 0

    def parse(self, arguments: str | Mapping[str, Any] | None, field: str) -> JsonObject:
        """The arguments as an object. Empty text and null mean no arguments; a truncated object, as of a
        call that was cut off, is completed. field: their path. Raises FieldError.
        """
        if arguments is None or isinstance(arguments, Mapping):
            return dict(arguments or {})
        if arguments.strip() in ("", "null"):
            return {}
        try:
            parsed = parse(arguments.encode(), field)
        except UsageError as error:
            cut_off = cut_off_arguments(arguments)
            if cut_off is None:
                raise FieldError(error.message, field) from None
            try:
                check_depth(cut_off, field)
            except UsageError as deep:
                raise FieldError(deep.message, field) from None
            parsed = cut_off
        self._count(parsed, field)
        return parsed

    def _count(self, arguments: JsonObject, field: str) -> None:
        for one, _ in containers(arguments):
            self._n_containers += 1
            self._n_values += len(one)
        if self._n_containers > MAX_CONTAINERS or self._n_values > MAX_VALUES:
            raise FieldError(f"{field}: the arguments of all calls have too many values together", field)


MAX_MESSAGES = 4096
_SHOWN = 80  # characters of an id in an error


@dataclass(frozen=True, slots=True)
class GivenCall:
    """A call in an earlier answer. id: None without one; results then belong to the calls in order. path:
    of the arguments in the body. incomplete: known to be cut off; such a call is dropped if its arguments
    cannot be read.
    """

    id: str | None
    name: str
    arguments: str | Mapping[str, Any] | None
    path: str
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class ReadConversation:
    """messages: for chat templates. prefix, thought: text and reasoning of the answer to continue, "" for
    none. left_out: number of dropped items by type. images: in order; the messages have their marks.
    new_images: those that a model which reads text only must refuse.
    """

    messages: list[JsonObject]
    prefix: str = ""
    thought: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)
    images: Sequence[GivenImage] = ()
    new_images: Sequence[GivenImage] = ()

    def placed(self, texts: Mapping[int, str]) -> ReadConversation:
        """The same with these texts in place of the images' marks, by number."""
        other = placeholder("image")
        messages = [{**m, "content": replaced(m["content"], texts, other)} for m in self.messages]
        return replace(self, messages=messages, images=(), new_images=())

    def without_images(self, how: str) -> ReadConversation:
        """The same with words in place of the images, for a model that reads text. how: see BodyImages.
        Raises FieldError for images in the last turn; earlier ones, and those after a result, have words.
        """
        for image in self.new_images[:1]:
            raise unusable(image, how)
        return self.placed({})

    @property
    def note(self) -> str:
        """A log line about dropped items, "" for none."""
        kinds = [f"{n} {kind[:_SHOWN]!r}" for kind, n in list(self.left_out.items())[:MAX_NAMED]]
        return f"left out of the conversation: {', '.join(kinds)}" if kinds else ""


class ConversationReader:
    """Reads one conversation, turn by turn. Methods that add turns raise FieldError."""

    def __init__(self) -> None:
        self._messages: list[JsonObject] = []
        self._arguments, self._calls = CallArguments(), EarlierCalls()
        self._left_out: Counter[str] = Counter()
        self._gone = set[str]()  # ids of calls that are left out
        self._media: list[tuple[str, str, str]] = []  # of the last message
        self._new_images: list[GivenImage] = []  # of the last message
        self._images: list[GivenImage] = []

    @property
    def n_messages(self) -> int:
        return len(self._messages)

    def say(
        self, role: str, content: Content | ReadContent | None, path: str, name: str | None = None
    ) -> None:
        """Add a message of the system or the user. path: of the content in the body."""
        parsed = content if isinstance(content, ReadContent) else read(content, path)
        message: JsonObject = {"role": role, "content": parsed.lines}
        if name:
            message["name"] = name
        self._add(message, parsed)

    def answer(
        self,
        content: Content | ReadContent | None,
        path: str,
        thought: str = "",
        calls: Sequence[GivenCall] = (),
        name: str | None = None,
    ) -> None:
        """Add an answer. thought: reasoning in addition to that in the content."""
        parsed = content if isinstance(content, ReadContent) else read(content, path)
        self._calls.begin_turn()
        message: JsonObject = {"role": "assistant", "content": parsed.run}
        if name:
            message["name"] = name
        if reasoning := thought or "".join(parsed.thoughts):
            message["reasoning_content"] = replaced(reasoning, {}, placeholder("image"))
        if made := [one for call in calls if (one := self._call(call)) is not None]:
            message["tool_calls"] = made
        if parsed.run or len(message) > 2 or not calls:  # of calls that were left out nothing remains
            self._add(message, ReadContent(images=parsed.images))

    def result(
        self,
        id_: str | None,
        content: Content | ReadContent | None,
        path: str,
        name: str | None = None,
        failed: bool = False,
        id_path: str = "",
    ) -> None:
        """Add the result of a call. id_: of the call, None without one; id_path: its path in the body.
        name: of the tool, for a result without an id. failed: mark the text as an error.
        """
        if id_ in self._gone:
            return
        parsed = content if isinstance(content, ReadContent) else read(content, path)
        call = self._calls.answered(id_, name)
        if call is None:
            what = "calls a tool" if id_ is None else f"has a call {id_[:_SHOWN]!r}"
            raise FieldError(f"{id_path}: no message before it {what}", id_path)
        text = parsed.lines
        if failed and not text.lower().startswith("error"):
            text = f"Error: {text}" if text else "Error"
        message: JsonObject = {"role": "tool", "content": text, "tool_call_id": call[0]}
        if call[1]:
            message["name"] = call[1]
        self._add(message, ReadContent(images=parsed.images))

    def leave_out(self, kind: str, *ids: str | None) -> None:
        """Count a dropped item. ids: those of a call, whose result is dropped too."""
        self._left_out[kind] += 1
        self._gone.update(filter(None, ids))

    def read(
        self, continues: bool = True, open_calls: bool = False, path: str = "messages"
    ) -> ReadConversation:
        """The conversation. continues: an answer at the end is continued. open_calls: the calls of that
        answer may lack results. path: of the turns in the body. Raises FieldError for sound or a file in the
        last turn; earlier ones, and those after a result, have placeholders.
        """
        messages = self._messages
        if len(messages) > 1 and messages[-2]["role"] == "tool":
            self._media, self._new_images = [], []
        if self._media:
            raise refusal(*self._media[0], "only texts and images are read here; send the message without it")
        last = messages[-1] if messages and continues else None
        if last is None or last["role"] != "assistant" or (open_calls and last.get("tool_calls")):
            return self._conversation(messages)
        if last.get("tool_calls"):
            raise FieldError(f"{path}: the calls of the last message have no results", path)
        if all(message["role"] == "assistant" for message in messages):
            raise FieldError(f"{path}: there is nothing to answer", path)
        return self._conversation(messages[:-1], last["content"], last.get("reasoning_content", ""))

    def _conversation(
        self, messages: list[JsonObject], prefix: str = "", thought: str = ""
    ) -> ReadConversation:
        in_order = in_call_order([dict(message) for message in messages])
        gone = numbers_in(prefix)
        images = [image for image in self._images if image.number not in gone]
        prefix = replaced(prefix, {}, placeholder("image"))
        return ReadConversation(in_order, prefix, thought, dict(self._left_out), images, self._new_images)

    def _add(self, message: JsonObject, content: ReadContent) -> None:
        self._messages.append(message)
        said = message["role"] == "user"
        self._media, self._new_images = (content.media, content.images) if said else ([], [])
        self._images += content.images

    def _call(self, call: GivenCall) -> JsonObject | None:
        try:
            arguments = self._arguments.parse(call.arguments, call.path)
        except FieldError:
            if not call.incomplete:
                raise
            self.leave_out("function_call", call.id)
            return None
        function: JsonObject = {"name": call.name, "arguments": arguments}
        return {"id": self._calls.add(call.id, call.name), "type": "function", "function": function}
