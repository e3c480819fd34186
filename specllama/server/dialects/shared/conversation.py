"""Converts the turns of a request, in any API, to messages for chat templates.

Each API adds its turns in order. Here calls and results are paired, results are sorted by their calls,
arguments that were cut off are completed, and content that the model cannot read is replaced or
refused. Differences between templates are handled when the prompt is rendered (calls/history.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specllama.calls.history import cut_off_arguments, in_call_order
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import MAX_NAMED, FieldError
from specllama.server.dialects.shared.parts import Content, MediaPart, ReadContent, read
from specllama.server.http.body import MAX_CONTAINERS, MAX_VALUES, check_depth, parse

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
        self._all, self._without_id = _Queues(), _Queues()

    def begin_turn(self) -> None:
        """Begin another answer: clients may restart their ids with each."""
        self._turn += 1

    def add(self, id_: str | None, name: str) -> str:
        """Add a call; returns its id."""
        call_id = self._new_id(id_)
        if self._turns.get(call_id) != self._turn:
            self._by_id[call_id].clear()
        self._turns[call_id], self._names[call_id] = self._turn, name
        self._open[self._n] = call_id, name
        self._by_id[call_id].append(self._n)
        for queues in (self._all, self._without_id) if id_ is None else (self._all,):
            queues.add(self._n, name)
        return call_id

    def answered(self, id_: str | None, name: str | None) -> tuple[str, str] | None:
        """The id and name of the call that a result belongs to: the first open call with that id, otherwise
        with that name, otherwise, for a result without a name, the first one; a result with an id matches by
        name only calls without an id, and one without an id matches those first. A result without an id that
        matches none stands for itself if there are any calls. None: no such call.
        """
        if id_ is not None:
            call = self._first(self._by_id[id_]) or self._first(*self._without_id.of(name))
            return call or ((id_, self._names[id_]) if id_ in self._names else None)
        call = self._first(*self._without_id.of(name), *self._all.of(name))
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


class _Queues:
    """Numbers of calls, in order and by tool name."""

    def __init__(self) -> None:
        self._in_order = deque[int]()
        self._by_name: defaultdict[str | None, deque[int]] = defaultdict(deque)

    def add(self, number: int, name: str) -> None:
        self._in_order.append(number)
        self._by_name[name].append(number)

    def of(self, name: str | None) -> list[deque[int]]:
        """The queues to search for the call of a result with this name."""
        return [self._by_name[name], *([self._in_order] if name is None else [])]


class CallArguments:
    """Parses the arguments of all calls in a request's earlier messages, with the limits of a body for
    all of them together.
    """

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
            parsed = self._checked(cut_off, field)
        self._count(parsed, field)
        return parsed

    def _checked(self, arguments: JsonObject, field: str) -> JsonObject:
        try:
            check_depth(arguments, field)
        except UsageError as error:
            raise FieldError(error.message, field) from None
        return arguments

    def _count(self, arguments: JsonObject, field: str) -> None:
        todo: list[Any] = [arguments]
        while todo:
            one = todo.pop()
            self._n_containers += 1
            self._n_values += len(one)
            inside = one.values() if isinstance(one, dict) else one
            todo += [value for value in inside if isinstance(value, (dict, list))]
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
    none. left_out: number of dropped items by type.
    """

    messages: list[JsonObject]
    prefix: str = ""
    thought: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)

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
        self._media: list[MediaPart] = []  # of the last message

    @property
    def n_messages(self) -> int:
        """Messages so far."""
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
            message["reasoning_content"] = reasoning
        if made := [one for call in calls if (one := self._call(call)) is not None]:
            message["tool_calls"] = made
        if parsed.run or len(message) > 2 or not calls:  # of calls that were left out nothing remains
            self._add(message, parsed)

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
        self._add(message, ReadContent())

    def leave_out(self, kind: str, *ids: str | None) -> None:
        """Count a dropped item. ids: those of a call, whose result is dropped too."""
        self._left_out[kind] += 1
        self._gone.update(filter(None, ids))

    def read(
        self, continues: bool = True, open_calls: bool = False, path: str = "messages"
    ) -> ReadConversation:
        """The conversation. continues: an answer at the end is continued. open_calls: the calls of that
        answer may lack results. path: of the turns in the body. Raises FieldError for a picture or file in
        the last turn; earlier ones, and those after a result, have placeholders.
        """
        messages = self._messages
        if self._media and len(messages) > 1 and messages[-2]["role"] == "tool":
            self._media = []
        if self._media:
            first = self._media[0]
            raise FieldError(f"{first.path}: {_NEW_MEDIA.format(kind=first.kind)}", first.param)
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
        return ReadConversation(in_order, prefix, thought, dict(self._left_out))

    def _add(self, message: JsonObject, content: ReadContent) -> None:
        self._messages.append(message)
        self._media = content.media if message["role"] == "user" else []

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


_NEW_MEDIA = (
    "this model reads text only and could not process {kind} input. The {kind} data you provided does not "
    "represent a valid {kind} for it: send the message without. Those of earlier messages may stay"
)
"""With the path, the words by which Claude Code (2.1.332) and Codex (0.169) know what to leave out before
they ask again.
"""
