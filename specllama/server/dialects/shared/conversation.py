"""The one reading of conversations: from the turns of a request, in any API, to messages for chat templates.

Each API hands its turns over in their order. Here calls and results are paired, results get the order of
their calls, arguments that were cut off are completed, and what the model cannot read is replaced or
refused. What one template accepts and another does not is settled where it is rendered (calls/turns.py).
Knows no API.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specllama.calls.definitions import cut_off_arguments
from specllama.calls.history import in_call_order
from specllama.errors import UsageError
from specllama.server.dialects.shared.fields import MAX_NAMED, FieldError
from specllama.server.dialects.shared.parts import Content, MediaPart, Read, read
from specllama.server.http.body import MAX_CONTAINERS, MAX_VALUES, check_values, parse

MAX_MESSAGES = 4096
_SHOWN = 80  # characters of an id in an error


@dataclass(frozen=True, slots=True)
class GivenCall:
    """A call of an earlier answer. id: None where it has none; results then belong to the calls in order.
    path: of the arguments in the body. incomplete: whether it is known to be cut off; it
    is then left out if its arguments cannot be read.
    """

    id: str | None
    name: str
    arguments: str | Mapping[str, Any] | None
    path: str
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class ReadConversation:
    """messages: as chat templates read them. prefix, thought: the text and the reasoning of the answer that
    is continued, "" where none is. left_out: what the model does not see, by its type.
    """

    messages: list[dict[str, Any]]
    prefix: str = ""
    thought: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """What is left out, as a line for the log; "" for nothing."""
        kinds = [f"{n} {kind[:_SHOWN]!r}" for kind, n in list(self.left_out.items())[:MAX_NAMED]]
        return f"left out of the conversation: {', '.join(kinds)}" if kinds else ""


class ConversationReader:
    """Reads one conversation, turn by turn. The methods that add turns raise FieldError."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._arguments, self._calls = CallArguments(), _Calls()
        self._left_out: Counter[str] = Counter()
        self._gone = set[str]()  # ids of calls that are left out
        self._media: list[MediaPart] = []  # of the last message

    @property
    def n_messages(self) -> int:
        """Messages so far."""
        return len(self._messages)

    def say(self, role: str, content: Content | Read | None, path: str, name: str | None = None) -> None:
        """Add a message of the system or the user. path: of the content in the body."""
        found = content if isinstance(content, Read) else read(content, path)
        message = {"role": role, "content": found.lines} | ({"name": name} if name else {})
        self._add(message, found)

    def answer(
        self,
        content: Content | Read | None,
        path: str,
        thought: str = "",
        calls: Sequence[GivenCall] = (),
        name: str | None = None,
    ) -> None:
        """Add an answer. thought: reasoning besides that in the content."""
        found = content if isinstance(content, Read) else read(content, path)
        self._calls.begin_turn()
        more = {
            "name": name,
            "reasoning_content": thought or "".join(found.thoughts),
            "tool_calls": [made for call in calls if (made := self._call(call)) is not None],
        }
        fields = {name: value for name, value in more.items() if value}
        if found.run or fields or not calls:  # of calls that were left out nothing remains
            self._add({"role": "assistant", "content": found.run, **fields}, found)

    def result(
        self,
        id_: str | None,
        content: Content | Read | None,
        path: str,
        name: str | None = None,
        failed: bool = False,
        id_path: str = "",
    ) -> None:
        """Add the result of a call. id_: of the call, None where it has none; id_path: its path in the body.
        name: of the tool, where there is no id. failed: whether the text should say so.
        """
        if id_ in self._gone:
            return
        found = content if isinstance(content, Read) else read(content, path)
        call = self._calls.answered(id_, name)
        if call is None:
            what = "calls a tool" if id_ is None else f"has a call {id_[:_SHOWN]!r}"
            raise FieldError(f"{id_path}: no message before it {what}", id_path)
        text = found.lines
        if failed and not text.lower().startswith("error"):
            text = f"Error: {text}" if text else "Error"
        message = {"role": "tool", "content": text, "tool_call_id": call[0]}
        self._add(message | ({"name": call[1]} if call[1] else {}), Read())

    def leave_out(self, kind: str, *ids: str | None) -> None:
        """Count something that the model does not see. ids: its own, if it is a call; the result is left out
        too.
        """
        self._left_out[kind] += 1
        self._gone.update(filter(None, ids))

    def read(
        self, continues: bool = True, open_calls: bool = False, path: str = "messages"
    ) -> ReadConversation:
        """The conversation. continues: whether an answer at its end goes on. open_calls: whether its calls
        may lack results. path: of the turns in the body. Raises FieldError for a picture or file that is new,
        since nobody has seen it yet: earlier ones, and those that follow a result, have placeholders.
        """
        messages = self._messages
        if self._media and len(messages) > 1 and messages[-2]["role"] == "tool":
            self._media = []
        if self._media:
            first = self._media[0]
            raise FieldError(f"{first.path}: {_NEW_MEDIA.format(kind=first.kind)}", first.param)
        last = messages[-1] if messages and continues else {}
        if last.get("role") != "assistant" or (open_calls and last.get("tool_calls")):
            return self._found(messages)
        if last.get("tool_calls"):
            raise FieldError(f"{path}: the calls of the last message have no results", path)
        if all(message["role"] == "assistant" for message in messages):
            raise FieldError(f"{path}: there is nothing to answer", path)
        return self._found(messages[:-1], last["content"], last.get("reasoning_content", ""))

    def _found(self, messages: list[dict[str, Any]], prefix: str = "", thought: str = "") -> ReadConversation:
        return ReadConversation(in_call_order(messages), prefix, thought, dict(self._left_out))

    def _add(self, message: dict[str, Any], found: Read) -> None:
        self._messages.append(message)
        self._media = found.media if message["role"] == "user" else []

    def _call(self, call: GivenCall) -> dict[str, Any] | None:
        try:
            arguments = self._arguments.parse(call.arguments, call.path)
        except FieldError:
            if not call.incomplete:
                raise
            self.leave_out("function_call", call.id)
            return None
        function = {"name": call.name, "arguments": arguments}
        return {"id": self._calls.add(call.id, call.name), "type": "function", "function": function}


_NEW_MEDIA = (
    "this model reads text only and could not process {kind} input. The {kind} data you provided does not "
    "represent a valid {kind} for it: send the message without. Those of earlier messages may stay"
)
"""With the path, the words by which Claude Code (2.1.332) and Codex (0.169) know what to leave out before
they ask again.
"""


class _Calls:
    """The calls so far. Ids that are missing are numbered: 9 letters and digits."""

    def __init__(self) -> None:
        self._n = 0
        self._turn = 0
        self._turns: dict[str, int] = {}  # of the latest call with an id
        self._names: dict[str, str] = {}  # of the latest call with an id
        self._open: dict[int, tuple[str, str]] = {}  # calls without a result by number: id and name
        self._by_id: defaultdict[str, deque[int]] = defaultdict(deque)
        self._all, self._without_id = _Queues(), _Queues()

    def begin_turn(self) -> None:
        """The next calls are of another answer: clients may begin to count their ids again."""
        self._turn += 1

    def add(self, id_: str | None, name: str) -> str:
        """Add a call; returns its id."""
        found = self._new_id(id_)
        if self._turns.get(found) != self._turn:
            self._by_id[found].clear()
        self._turns[found], self._names[found] = self._turn, name
        self._open[self._n] = found, name
        self._by_id[found].append(self._n)
        for queues in (self._all, self._without_id) if id_ is None else (self._all,):
            queues.add(self._n, name)
        return found

    def answered(self, id_: str | None, name: str | None) -> tuple[str, str] | None:
        """The id and name of the call that a result belongs to: the first with that id, else the first with
        that name, else, for a result without a name, the first; a result with an id of its own belongs to
        calls without one only. A result without an id that nothing fits stands for itself, if there are calls
        at all. None: there is no such call.
        """
        if id_ is not None:
            found = self._first(self._by_id[id_]) or self._first(*self._without_id.of(name))
            return found or ((id_, self._names[id_]) if id_ in self._names else None)
        found = self._first(*self._all.of(name))
        return found or ((self._new_id(None), name or "") if self._names else None)

    def _first(self, *queues: deque[int]) -> tuple[str, str] | None:
        """The first call of the queues that has no result; it has one now."""
        for numbers in queues:
            while numbers:
                if call := self._open.pop(numbers.popleft(), None):
                    return call
        return None

    def _new_id(self, id_: str | None) -> str:
        self._n += 1
        return id_ or f"call{self._n:05d}"


class _Queues:
    """Numbers of calls, in order and by the names of their tools."""

    def __init__(self) -> None:
        self._in_order = deque[int]()
        self._by_name: defaultdict[str | None, deque[int]] = defaultdict(deque)

    def add(self, number: int, name: str) -> None:
        self._in_order.append(number)
        self._by_name[name].append(number)

    def of(self, name: str | None) -> list[deque[int]]:
        """Where to look for the call of a result with this name."""
        return [self._by_name[name], *([self._in_order] if name is None else [])]


class CallArguments:
    """Parses the arguments of all calls in a request's earlier messages; together they are bounded as a body
    is.
    """

    def __init__(self) -> None:
        self._n_values = self._n_containers = 0

    def parse(self, arguments: str | Mapping[str, Any] | None, field: str) -> dict[str, Any]:
        """The arguments as an object. An empty text and null mean none; the beginning of an object, as of a
        call that was cut off, is completed. field: their path. Raises FieldError.
        """
        if arguments is None or isinstance(arguments, Mapping):
            return dict(arguments or {})
        if arguments.strip() in ("", "null"):
            return {}
        try:
            found = parse(arguments.encode("utf-8", "surrogatepass"), field)
        except UsageError as error:
            cut_off = cut_off_arguments(arguments)
            if cut_off is None:
                raise FieldError(error.message, field) from None
            found = self._checked(cut_off, field)
        self._count(found, field)
        return found

    def _checked(self, arguments: dict[str, Any], field: str) -> dict[str, Any]:
        try:
            check_values(arguments, True, field)
        except UsageError as error:
            raise FieldError(error.message, field) from None
        return arguments

    def _count(self, arguments: dict[str, Any], field: str) -> None:
        todo: list[Any] = [arguments]
        while todo:
            one = todo.pop()
            self._n_containers += 1
            self._n_values += len(one)
            inside = one.values() if isinstance(one, dict) else one
            todo += [value for value in inside if isinstance(value, (dict, list))]
        if self._n_containers > MAX_CONTAINERS or self._n_values > MAX_VALUES:
            raise FieldError(f"{field}: the arguments of all calls have too many values together", field)
