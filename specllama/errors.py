"""Every error that specllama raises on purpose.

SpecllamaError                      1   500   anything unexpected that still has a clear message
├── UsageError                      2   400   a flag, field, file or prompt that cannot be used
│   ├── ConfigError                 2   500   a configuration file or environment variable
│   └── ContextLengthError          2   400   the prompt does not fit the context
├── NotFoundError                   3   404   no such model, file, quant or alias
├── AccessError                     4   401   gated, private or unauthorised
├── NetworkError                    5   502   the hub or an RPC worker cannot be reached
├── IntegrityError                  6   500   a wrong hash, a damaged or foreign file
│   ├── GGUFError                   6   500   names the field and the offset in the header
│   └── TemplateError               6   400   the model's chat template, or what it makes of the messages
├── IncompatiblePairError           7   400   target and draft do not share a vocabulary
├── ResourceError                   8   503   memory, disk or port
│   └── BusyError                   8   429   more is being asked than can be queued
└── EngineError                     9   500   llama.cpp refused something
    ├── EngineDiedError             9   503   the engine process ended or hangs
    └── DeadlineError               9   504   a request took longer than it may

The first number is the exit code of the command, the second the HTTP status of the server. Foreign exceptions
are mapped onto this tree where they arise (llama.py, gguf.py, models/hub.py), never in commands or routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class SpecllamaError(Exception):
    """What happened and why (`message`), what to do next (`hint`), and figures for programs (`details`)."""

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, hint: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, to cross the pipe between the engine process and its client."""
        found = {"kind": type(self).__name__, "message": self.message, "hint": self.hint}
        return {**found, "details": self.details} if self.details else found

    @staticmethod
    def from_dict(data: dict[str, Any]) -> SpecllamaError:
        """The inverse of `to_dict`; an unknown kind becomes the base class."""
        kind = _by_name().get(str(data.get("kind")), SpecllamaError)
        return kind(data["message"], data.get("hint", ""), data.get("details"))


class UsageError(SpecllamaError):
    exit_code = 2
    http_status = 400


class ConfigError(UsageError):
    http_status = 500


class ContextLengthError(UsageError):
    pass


class NotFoundError(SpecllamaError):
    exit_code = 3
    http_status = 404


class AccessError(SpecllamaError):
    exit_code = 4
    http_status = 401


class NetworkError(SpecllamaError):
    exit_code = 5
    http_status = 502


class IntegrityError(SpecllamaError):
    exit_code = 6


class GGUFError(IntegrityError):
    pass


class TemplateError(IntegrityError):
    http_status = 400


class IncompatiblePairError(SpecllamaError):
    exit_code = 7
    http_status = 400


class ResourceError(SpecllamaError):
    exit_code = 8
    http_status = 503


class BusyError(ResourceError):
    http_status = 429


class EngineError(SpecllamaError):
    exit_code = 9


class EngineDiedError(EngineError):
    http_status = 503


class DeadlineError(EngineError):
    http_status = 504


def _by_name() -> dict[str, type[SpecllamaError]]:
    found: dict[str, type[SpecllamaError]] = {}
    todo = [SpecllamaError]
    while todo:
        cls = todo.pop()
        found[cls.__name__] = cls
        todo += cls.__subclasses__()
    return found
