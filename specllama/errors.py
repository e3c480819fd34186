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
└── EngineError                     9   500   llama.cpp refused something
    └── EngineDiedError             9   503   the engine process ended or hangs

The first number is the exit code of the command, the second the HTTP status of the server. Foreign exceptions
are mapped onto this tree where they arise (llama.py, gguf.py, models/hub.py), never in commands or routes.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SpecllamaError(Exception):
    """What happened and why (`message`), and what to do next (`hint`)."""

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, to cross the pipe between the engine process and its client."""
        return {"kind": type(self).__name__, "message": self.message, "hint": self.hint}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> SpecllamaError:
        """The inverse of `to_dict`; an unknown kind becomes the base class."""
        return _by_name().get(str(data.get("kind")), SpecllamaError)(data["message"], data.get("hint", ""))


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


class EngineError(SpecllamaError):
    exit_code = 9


class EngineDiedError(EngineError):
    http_status = 503


def _by_name() -> dict[str, type[SpecllamaError]]:
    found: dict[str, type[SpecllamaError]] = {}
    todo = [SpecllamaError]
    while todo:
        cls = todo.pop()
        found[cls.__name__] = cls
        todo += cls.__subclasses__()
    return found
