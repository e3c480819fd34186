"""A conversation: its turns, the messages of a request, and its file: JSON of the schema specllama.chat/1,
written whole or not at all, checked when read. Knows no engine, and not where files are; library.py does.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from specllama import wire
from specllama.calls.history import parsed_arguments
from specllama.cli.answer import AttachedImage
from specllama.cli.options import mapped_errors
from specllama.client.protocol import EarlierTurn, Image
from specllama.config.options import CHAT
from specllama.config.store import write_whole
from specllama.config.text_file import read_text
from specllama.core.sampling.params import MAX_BIAS, SamplingParams
from specllama.errors import NotFoundError, ResourceError, UsageError
from specllama.json_types import JsonObject, without_lone_surrogates
from specllama.option import of_kind


@dataclass(slots=True)
class Turn:
    """A message and its answer.

    results: messages with the results of the calls in the answer before; there is no message then. answer:
    None before there is one; else exactly as written, so that its ids can be kept, but without its calls.
    calls: the calls of tools in the answer, as chat templates read them. n_results: how many results there
    must be. id: of the generation that wrote it, None if another engine process did. n_regenerated: how
    often it was regenerated. cut: why the answer ended early ("cancel", "length", "context"), else "".
    images: of the message.
    """

    message: str
    answer: str | None = None
    results: list[JsonObject] = field(default_factory=list)
    calls: list[JsonObject] = field(default_factory=list)
    n_results: int = 0
    id: int | None = None
    n_regenerated: int = 0
    cut: str = ""
    images: list[AttachedImage] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the results of all calls are there."""
        return len(self.results) >= self.n_results


@dataclass(slots=True)
class Conversation:
    """The system message ("" for none) and the turns, of which the last may wait for its answer.

    changed: whether there are unsaved changes. dropped: the turns before these, which the model does not see
    any more. tokens: the ids of the last answer and its prompt, None where they are not known. params: the
    sampling parameters that were set. models: with which it is held. name: under which it is saved, "" for
    none yet; options: with which it is held, by their names; both are not in a file of /save. reads_images:
    whether the model reads images.
    """

    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    changed: bool = False
    dropped: list[Turn] = field(default_factory=list)
    tokens: EarlierTurn | None = None
    params: JsonObject = field(default_factory=dict)
    models: JsonObject = field(default_factory=dict)
    name: str = ""
    options: JsonObject = field(default_factory=dict)
    reads_images: bool = False

    @property
    def waiting(self) -> bool:
        """Whether the last message has no answer."""
        return bool(self.turns) and self.turns[-1].answer is None

    def messages(self, answered: bool = True, first: int = 0) -> list[JsonObject]:
        """The messages for the template, from the turn `first` on, the last answer only if `answered`."""
        messages: list[JsonObject] = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns[first:]:
            messages += turn_messages(turn, answered or turn is not self.turns[-1], self.reads_images)
        return messages

    def images(self, first: int = 0) -> list[Image]:
        """Those of which the messages from the turn `first` on have the markers."""
        return [one.image for turn in self.turns[first:] for one in turn.images] if self.reads_images else []

    @property
    def open_calls(self) -> list[JsonObject]:
        """The calls of the last answer, whose results come next."""
        return self.turns[-1].calls if self.turns and self.turns[-1].answer is not None else []

    @property
    def follows(self) -> int | None:
        """The id of the generation that the last message follows, None for none in this engine process."""
        return self.turns[-2].id if len(self.turns) > 1 else None

    def clear(self) -> None:
        """Forget all turns; the system message and the parameters stay."""
        self.turns, self.dropped, self.tokens = [], [], None
        self.changed = False

    @property
    def target(self) -> str:
        """The name of the model that it was held with, "" where it is not known."""
        target = wire.stored(dict[str, object], self.models.get("target"), {})
        return wire.stored(str, target.get("name"), "")

    @property
    def cuts(self) -> list[int]:
        """The numbers of oldest turns that can be dropped: the last one stays, results follow their calls."""
        return [i for i in range(1, len(self.turns)) if not self.turns[i].results]

    def trim(self, n: int | None = None) -> int:
        """Move the oldest n turns to `dropped`; returns how many. None: until half of the text is left."""
        if n is None:
            sizes = [len(turn.message) + len(turn.answer or "") for turn in self.turns]
            n = 1
            while n < len(sizes) - 1 and 2 * sum(sizes[n:]) > sum(sizes):
                n += 1
        n = min(n, len(self.turns))
        while 0 < n < len(self.turns) and self.turns[n].results:  # they belong to the calls before them
            n += 1
        self.dropped += [replace(turn, images=[]) for turn in self.turns[:n] if turn.answer is not None]
        del self.turns[:n]
        self.changed = self.changed or n > 0
        self.tokens = None if n else self.tokens
        return n


def turn_messages(turn: Turn, answered: bool = True, reads_images: bool = False) -> list[JsonObject]:
    """The messages of a turn, with its answer if `answered`. reads_images: with markers of its images."""
    markers = "".join(one.image.marker for one in turn.images) if reads_images else ""
    messages = list(turn.results) or [{"role": "user", "content": markers + turn.message}]
    if turn.answer is not None and answered:
        calls = {"tool_calls": turn.calls} if turn.calls else {}
        messages.append({"role": "assistant", "content": turn.answer, **calls})
    return messages


SCHEMA = "specllama.chat/1"
MAX_BYTES = 64 * 1024 * 1024
MAX_IMAGE_BYTES = 40_000_000  # of all images, which take up a third more in the file
_SCHEMA = re.compile(r"specllama\.chat/([0-9]{1,9})")
_IDS = re.compile(r"([0-9]{1,10}( [0-9]{1,10})*)?")
_NOT_ONE = f"it is no conversation ({SCHEMA})"
_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Image:
    name: str
    data: str  # of the image's file, in base64

    def attached(self, where: str) -> AttachedImage:
        """Raises ValueError."""
        name = without_lone_surrogates(self.name)
        try:
            return AttachedImage(name, base64.b64decode(self.data, validate=True))
        except ValueError:
            raise ValueError(f"{where}: images: data must be base64") from None


@dataclass(frozen=True, slots=True)
class _User:
    role: Literal["user"]
    content: str
    images: list[_Image] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Assistant:
    role: Literal["assistant"]
    content: str
    tool_calls: object = None
    finish_reason: Literal["", "cancel", "length", "context"] = ""
    n_regenerated: int = 0


@dataclass(frozen=True, slots=True)
class _Tool:
    role: Literal["tool"]
    content: str
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class _File:
    schema: str
    messages: list[object]
    name: str = ""
    system: str = ""
    dropped: list[object] = field(default_factory=list)
    params: JsonObject = field(default_factory=dict)
    models: JsonObject = field(default_factory=dict)
    options: dict[str, str | int] = field(default_factory=dict)
    tokens: JsonObject | None = None


def write(name: str, conversation: Conversation) -> Path:
    """Write the file, readable by its owner alone. Only a file that is a conversation is overwritten.

    Raises UsageError, ResourceError.
    """
    path = _path(name)
    if path.exists() or path.is_symlink():
        try:
            read(name)
        except (UsageError, NotFoundError) as error:
            raise UsageError(f"{error.message}; it is not overwritten", "save under another name") from None
    with mapped_errors(ResourceError, f"{path} cannot be written"):
        write_whole(path, as_text(conversation), 0o600)
    return path


def rescue(conversation: Conversation) -> Path | None:
    """Write to a new file in the system's temporary directory; None where that is not possible."""
    name = time.strftime(f"chat-%Y%m%d-%H%M%S-{secrets.token_hex(4)}.json")
    with contextlib.suppress(OSError, ResourceError, UsageError):
        return write(str(Path(tempfile.gettempdir()) / name), conversation)
    return None


def as_text(conversation: Conversation, in_library: bool = False) -> str:
    """The text of a file. in_library: with its name, its options and the ids of its tokens."""
    params = dict(conversation.params)
    if "logit_bias" in params:  # JSON has no infinity
        params["logit_bias"] = {str(i): max(b, -MAX_BIAS) for i, b in params["logit_bias"].items()}
    content: JsonObject = {
        "schema": SCHEMA,
        "name": conversation.name if in_library else "",
        "system": conversation.system,
        "dropped": _messages(conversation.dropped),
        "messages": _messages(conversation.turns),
        "params": params,
        "models": conversation.models,
        "options": conversation.options if in_library else {},
    }
    if in_library and conversation.tokens is not None:
        tokens = asdict(conversation.tokens)
        content["tokens"] = {**tokens, "ids": " ".join(map(str, tokens["ids"]))}
    content = {k: v for k, v in content.items() if v or k not in ("name", "dropped", "options")}
    return json.dumps(content, indent=1) + "\n"


def _messages(turns: Sequence[Turn]) -> list[JsonObject]:
    messages = list[JsonObject]()
    for turn in turns:
        messages += turn_messages(turn)
        if turn.images:
            shown = [{"name": i.name, "data": base64.b64encode(i.data).decode()} for i in turn.images]
            messages[-1 if turn.answer is None else -2]["images"] = shown
        if turn.answer is not None and turn.cut:
            messages[-1]["finish_reason"] = turn.cut
        if turn.answer is not None and turn.n_regenerated:
            messages[-1]["n_regenerated"] = turn.n_regenerated
    return messages


def read(name: str) -> Conversation:
    """The conversation in a file. Raises NotFoundError, UsageError, each in one line."""
    path = _path(name)
    with mapped_errors(UsageError, f"{path} cannot be read"):
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no file")
    return from_text(read_text(str(path), "", MAX_BYTES), path)


def from_text(text: str, path: Path) -> Conversation:
    """The conversation in the text of a file. Raises UsageError, in one line."""
    data = _object(text, path)
    try:
        file: _File = wire.from_plain(_File, data)
        used = SamplingParams.merge(file.params)
        for option in CHAT:
            if option.name in file.options:
                option.checked(of_kind(file.options[option.name], option.name, option.kind))
        return Conversation(
            without_lone_surrogates(file.system),
            _turns(file.messages, "messages"),
            dropped=_turns(file.dropped, "dropped"),
            tokens=_earlier(file.tokens) if file.tokens is not None else None,
            params={name: getattr(used, name) for name, value in file.params.items() if value is not None},
            models=file.models,
            name=without_lone_surrogates(file.name),
            options=file.options,
        )
    except UsageError as error:
        raise UsageError(f"{path}: {error.message[:300]}", error.hint) from None
    except ValueError as error:
        raise UsageError(f"{path}: {str(error)[:300]}") from None


def _path(name: str) -> Path:
    try:
        if name and "\0" not in name and len(os.fsencode(name)) <= 4096:
            return Path(name).expanduser()
    except (RuntimeError, UnicodeError):  # no such home; no such characters in this locale
        pass
    raise UsageError(f"{name[:60]!r} is not a usable path")


def _object(text: str, path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: {_NOT_ONE}, or it is damaged: {_damage(text, error)}") from None
    except (ValueError, RecursionError):  # a number of too many digits; too deeply nested
        raise UsageError(f"{path}: {_NOT_ONE}") from None
    if not isinstance(data, dict) or not isinstance(data.get("schema"), str):
        raise UsageError(f"{path}: {_NOT_ONE}")
    if data["schema"] != SCHEMA:
        why = f"its schema is {data['schema'][:60]!r}, not {SCHEMA!r}"
        newer = "a newer specllama wrote it: " if _SCHEMA.fullmatch(data["schema"]) else ""
        raise UsageError(f"{path}: {newer}{why}")
    return data


def _damage(text: str, error: json.JSONDecodeError) -> str:
    """The reason why a text is no JSON, in a clause."""
    if not text.strip():
        return "it is empty"
    is_cut = error.msg.startswith("Unterminated") or not text[error.pos :].strip()
    return "its end is missing" if is_cut else f"line {error.lineno} is not valid JSON"


def _turns(messages: Sequence[object], key: str) -> list[Turn]:
    """Turns from messages: the user's, or the results of all calls before, and the assistant's in turn; the
    last answer may be missing. Raises UsageError, ValueError.
    """
    turns: list[Turn] = []
    for i, message in enumerate(messages):
        calls = turns[-1].calls if turns and turns[-1].answer is not None else []
        answers = bool(turns) and turns[-1].answer is None and turns[-1].complete
        results = calls or (turns and not turns[-1].complete)
        try:
            read = wire.from_plain(_Assistant if answers else _Tool if results else _User, message)
        except ValueError as error:
            raise ValueError(f"{key}[{i}]: {error}") from None
        text = without_lone_surrogates(read.content)
        if answers:
            turns[-1].answer, turns[-1].calls = text, _calls(f"{key}[{i}]", message)
            turns[-1].cut, turns[-1].n_regenerated = read.finish_reason, _count(read.n_regenerated)
        elif results:
            if calls:
                turns.append(Turn("", n_results=len(calls)))
            turns[-1].results.append({**wire.stored(dict[str, object], message, {}), "content": text})
        else:
            assert isinstance(read, _User)
            turns.append(Turn(text, images=[one.attached(f"{key}[{i}]") for one in read.images]))
    if turns and not turns[-1].complete:
        raise ValueError(f"there are calls without results at the end of {key}")
    return turns


def _calls(where: str, message: Any) -> list[JsonObject]:
    """The calls in an answer, their arguments as objects. Raises UsageError, ValueError."""
    try:
        calls: list[JsonObject] = parsed_arguments([message])[0].get("tool_calls") or []
    except UsageError as error:
        raise UsageError(f"{where}: {error.message.removeprefix('messages[0].')}") from None
    if not all(isinstance(call.get("id"), str) for call in calls):
        raise ValueError(f"{where}: each of tool_calls must have an id")
    return calls


def _earlier(tokens: JsonObject) -> EarlierTurn:
    """The ids of the last answer and its prompt: in one text, since there are many. Raises ValueError."""
    ids: str = wire.from_plain(str, tokens.get("ids"))
    if not _IDS.fullmatch(ids):
        raise ValueError("tokens: ids must be numbers")
    earlier: EarlierTurn = wire.from_plain(EarlierTurn, {**tokens, "ids": list(map(int, ids.split()))})
    _count(earlier.n_messages)
    _count(earlier.n_prompt)
    return earlier


def _count(n: int) -> int:
    """Raises ValueError."""
    if not 0 <= n <= _MAX_COUNT:
        raise ValueError(f"{n} is no number of messages or tokens")
    return n
