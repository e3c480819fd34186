"""Checks of single values that are given for loading: a UsageError names the argument and says what it must
be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from specllama.config.load import ALL_LAYERS, AUTO
from specllama.config.rpc_endpoints import endpoints
from specllama.errors import NotFoundError, UsageError

Layers = int | Literal["auto", "all"]
ModelName = str | os.PathLike[str]
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "str": ((str,), "a text"),
    "float": ((int, float), "a number"),
}


def model_name(name: ModelName, argument: str) -> str:
    """A model's name or path as text; what is given as a path is no name. Raises UsageError."""
    if not isinstance(name, (str, os.PathLike)):
        raise UsageError(f"{argument} must be the path of a GGUF file or a model's name, not {name!r}")
    path = os.fspath(name)
    if not isinstance(path, str) or not path or "\0" in path or len(path) > 4096:
        raise UsageError(f"{argument} must be the path of a GGUF file or a model's name")
    return path if isinstance(name, str) else os.path.abspath(path)


def find_file(name: ModelName, argument: str) -> str:
    """The path of a file. Raises NotFoundError, UsageError."""
    path = os.path.expanduser(model_name(name, argument))
    if not os.path.exists(path):
        raise NotFoundError(f"{argument}: there is no file {path}", "give the path of a GGUF file")
    return path


def layers(name: str, given: Layers) -> int:
    """As ModelSettings has it."""
    if given in ("auto", "all"):
        return AUTO if given == "auto" else ALL_LAYERS
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise UsageError(f'{name} must be a number of layers, "auto" or "all", not {given!r}')
    return given


def positive_int(name: str, value: int, high: int) -> None:
    """A whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise UsageError(f"{name} must be a whole number from 1 to {high}, not {value!r}")


def of_kind(name: str, value: Any, kind: str) -> Any:
    """The value; kind: "bool", "int", "str" or "float"."""
    types, words = _KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(f"{name} must be {words}, not {value!r}")
    return value


def as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    """The value of a field of ModelSettings that is a tuple."""
    if name.startswith("devices"):
        return texts(name, value)
    if name == "rpc":
        return endpoints(value if isinstance(value, str) else texts(name, value))
    try:
        if name == "tensor_split":
            return tuple(float(share) for share in value)
        if name == "lora":
            return tuple((find_file(path, name), float(scale)) for path, scale in value)
        return tuple((str(pattern), str(buffer)) for pattern, buffer in value)
    except (TypeError, ValueError):
        shape = "numbers" if name == "tensor_split" else "pairs"
        raise UsageError(f"{name} must be a list of {shape}, not {value!r}") from None


def texts(name: str, value: Any) -> tuple[str, ...]:
    """A list of names."""
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(v, str) for v in value)
    ):
        raise UsageError(f"{name} must be a list of names, not {value!r}")
    return tuple(value)
