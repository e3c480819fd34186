"""Calls of earlier answers: which result belongs to which call, and what their arguments are."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

from specllama.calls.definitions import cut_off_arguments
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import FieldError
from specllama.server.http.body import MAX_CONTAINERS, MAX_VALUES, check_depth, parse


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
