"""Dataclasses as JSON and back, from their type hints alone: the messages of the pipe, and stored files.

A dataclass is an object of all its fields, a NamedTuple a list, a mapping with whole numbers for keys an
object whose keys are digits. Reading is strict: an unknown or missing key, or a value of another type, is a
ValueError that names the field. Only for stored files, unknown keys of the outermost object are ignored.
"""

from __future__ import annotations

import json
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from specllama.regular_file import read_regular

T = TypeVar("T")
_Read = Callable[[Any], Any]


def _plain(value: object) -> object:
    """Dataclasses and mappings other than dict, for which JSON has no word, as dict."""
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)


def to_json(value: object) -> str:
    """One line. Raises TypeError, ValueError or RecursionError for what is no JSON."""
    return _ENCODER.encode(value)


def from_plain(hint: Any, value: object) -> Any:
    """`value`, as json.loads gives it, as the type `hint`; the inverse of `to_json`. Raises ValueError."""
    return _reader(hint)(value)


def stored(hint: type[T], value: object, default: T) -> T:
    """A stored value as the type `hint`; `default` where it is another one."""
    try:
        return cast(T, _stored(hint, value))
    except ValueError:
        return default


def from_text(hint: type[T], text: str | bytes) -> T:
    """The content of a stored file, JSON. Raises ValueError."""
    try:
        return cast(T, _stored(hint, json.loads(text)))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def from_file(hint: type[T], path: Path, max_bytes: int) -> T:
    """The content of a stored file of at most so many bytes. Raises OSError, ValueError."""
    text = read_regular(path, max_bytes + 1)
    if len(text) > max_bytes:
        raise ValueError("too long")
    return from_text(hint, text)


def _stored(hint: Any, value: object) -> Any:
    if is_dataclass(hint) and isinstance(value, dict):  # of a newer version, maybe
        value = {f.name: value[f.name] for f in fields(hint) if f.name in value}
    return _reader(hint)(value)


@cache
def _reader(hint: Any) -> _Read:
    """The function that reads this type."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return lambda value: value
    if hint in _SCALARS:
        return _scalar(hint)
    if origin is Literal:
        return _literal(args)
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin in (list, Sequence):
        return _sequence(list, args[0])
    if origin is tuple:
        return _sequence(tuple, args[0]) if args[-1] is Ellipsis else _tuple(tuple, args)
    if origin in (dict, Mapping):
        return _mapping(dict, *args)
    if origin is Counter:
        return _mapping(Counter, args[0], int)
    if is_dataclass(hint):
        return _dataclass(hint)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _tuple(hint._make, tuple(get_type_hints(hint).values()))  # type: ignore[attr-defined]
    raise TypeError(f"{hint} cannot be read from JSON")


_SCALARS: Mapping[Any, tuple[str, *tuple[type, ...]]] = {
    bool: ("true or false", bool), int: ("a whole number", int), float: ("a number", float, int),
    str: ("a text", str), type(None): ("null", type(None)),
}  # fmt: skip


def _scalar(kind: type) -> _Read:
    what, *allowed = _SCALARS[kind]

    def read(value: object) -> object:
        if type(value) not in allowed:
            raise ValueError(f"{what} expected, not {value!r:.80}")
        return value

    return read


def _literal(allowed: tuple[object, ...]) -> _Read:
    def read(value: object) -> object:
        if value not in allowed:
            raise ValueError(f"{' or '.join(map(repr, allowed))} expected, not {value!r:.80}")
        return value

    return read


def _union(args: tuple[Any, ...]) -> _Read:
    """Of several dataclasses the first one whose required keys are there is meant."""
    readers = [_reader(arg) for arg in args]
    pairs = zip(args, readers, strict=True)
    classes = [(_required(arg), reader) for arg, reader in pairs if is_dataclass(arg)]

    def read(value: object) -> object:
        if len(classes) > 1 and isinstance(value, dict):
            for required, reader in classes:
                if required <= value.keys():
                    return reader(value)
        problem = ValueError("no type is allowed")
        for reader in readers:
            try:
                return reader(value)
            except ValueError as error:
                problem = error
        raise problem

    return read


def _sequence(make: Callable[[Any], Any], item: Any) -> _Read:
    reader = _reader(item)

    def read(value: object) -> object:
        if not isinstance(value, list):
            raise ValueError(f"a list expected, not {value!r:.80}")
        return make(map(reader, value))

    return read


def _tuple(make: Callable[[Any], Any], items: tuple[Any, ...]) -> _Read:
    readers = [_reader(item) for item in items]

    def read(value: object) -> object:
        if not isinstance(value, list) or len(value) != len(readers):
            raise ValueError(f"a list of {len(readers)} expected, not {value!r:.80}")
        return make(reader(part) for reader, part in zip(readers, value, strict=True))

    return read


def _mapping(make: Callable[[Any], Any], key: Any, item: Any) -> _Read:
    read_key: _Read = int if key is int else _reader(key)
    reader = _reader(item)

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"an object expected, not {value!r:.80}")
        return make({read_key(k): reader(v) for k, v in value.items()})

    return read


def _required(kind: Any) -> set[str]:
    """The fields of a dataclass without a default."""
    own = [f for f in fields(kind) if f.init]
    return {f.name for f in own if f.default is MISSING and f.default_factory is MISSING}


def _dataclass(kind: Any) -> _Read:
    hints = get_type_hints(kind)
    readers = {f.name: _reader(hints[f.name]) for f in fields(kind) if f.init}
    required = _required(kind)

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"an object expected, not {value!r:.80}")
        if missing := required - value.keys():
            raise ValueError(f"{', '.join(sorted(missing))} is missing")
        values = {}
        for name, part in value.items():
            if (reader := readers.get(name)) is None:
                raise ValueError(f"unknown key {name!r:.80}")
            try:
                values[name] = reader(part)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return kind(**values)

    return read
