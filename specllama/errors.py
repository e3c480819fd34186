"""All errors that specllama raises.

SpecllamaError                      1   500   the base class
├── UsageError                      2   400   a flag, field, file or prompt that cannot be used
│   ├── ConfigError                 2   500   a configuration file or environment variable
│   ├── ContextLengthError          2   400   the prompt does not fit the context
│   └── NotSupportedError           2   501   the loaded model, or this server, cannot do that
├── NotFoundError                   3   404   no such model, file, quant or alias
├── AccessError                     4   401   gated, private or unauthorised
├── NetworkError                    5   502   the hub or an RPC worker cannot be reached
├── IntegrityError                  6   503   a wrong hash, a damaged file, or one of another format
│   ├── GGUFError                   6   503   a bad GGUF header: names the field and its offset
│   └── TemplateError               6   400   the model's chat template fails, or refuses the messages
├── IncompatiblePairError           7   400   target and draft do not share a vocabulary
├── ResourceError                   8   503   memory, disk or port
│   └── BusyError                   8   429   more requests than the queue holds
└── EngineError                     9   500   llama.cpp or the engine failed
    ├── EngineDiedError             9   503   the engine process ended or hangs
    └── DeadlineError               9   504   a request exceeded its time limit

The first number is the exit code of the command, the second the HTTP status of the server. Exceptions of
other libraries are converted where they arise (llama/, gguf/, models/hub/), never in commands or routes.

Messages refer to options by `option("n_ctx")`, the name in config/options.py. A front replaces these by its
own names with `with_option_names`: `-c` on the command line, `max_model_len` in Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from specllama.json_types import JsonObject

_OPEN, _CLOSE = "\ue000", "\ue001"  # private-use characters
_REFERENCE = re.compile(f"{_OPEN}([a-z0-9_]+)(?:=([^{_CLOSE}]*))?{_CLOSE}")
_MAX_SHOWN = 80  # characters of a value in a message
OptionNames = Callable[[str, str | None], str]
"""From an option's name and a value (None for no value) to how a front writes both."""


def option(name: str, value: object = None) -> str:
    """A reference to an option inside a message, with a value if one is recommended or mentioned."""
    return f"{_OPEN}{name}{'' if value is None else f'={value}'}{_CLOSE}"


def quoted(value: Any) -> str:
    """A value for a message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # a number with too many digits
        return "a number with thousands of digits"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


_reference = option  # for functions with a parameter of that name


def with_option_names(text: str, names: OptionNames) -> str:
    """The text with each reference to an option as a front writes it."""
    return _REFERENCE.sub(lambda match: names(match[1], match[2]), text) if _OPEN in text else text


def by_name(name: str, value: str | None) -> str:
    """The default: the option's own name, as in a TOML file."""
    return name if value is None else f"{name}={value}"


@dataclass(frozen=True, slots=True)
class Note:
    """A message for the user that is not an error. A warning calls for action; str() puts "warning: " before
    it. The message may refer to options.
    """

    message: str
    severity: Literal["note", "warning"] = "note"

    def __str__(self) -> str:
        text = with_option_names(self.message, by_name)
        return f"warning: {text}" if self.severity == "warning" else text

    def with_option_names(self, names: OptionNames) -> Note:
        """The same note with options as a front writes them."""
        return replace(self, message=with_option_names(self.message, names))


def warning(message: str) -> Note:
    """A note that calls for action."""
    return Note(message, "warning")


_KINDS: dict[str, type[SpecllamaError]] = {}


class SpecllamaError(Exception):
    """What happened and why (`message`), what to do next (`hint`), and data for programs (`details`).

    option: the option at fault, "" if none: with it the message starts, or it is put before that. Both texts
    may refer to options.
    """

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init_subclass__(cls) -> None:
        _KINDS[cls.__name__] = cls

    def __init__(
        self, message: str, hint: str = "", details: Mapping[str, Any] | None = None, *, option: str = ""
    ) -> None:
        if option:
            message = f"{_reference(option)}{'' if message.startswith(':') else ' '}{message}"
        super().__init__(with_option_names(message, by_name))
        self._message, self._hint = message, hint
        at_fault = _REFERENCE.match(message)
        self.option = at_fault[1] if at_fault and at_fault[2] is None else ""
        self.details = dict(details or {})

    @property
    def message(self) -> str:
        """What happened and why, with options by their own names."""
        return with_option_names(self._message, by_name)

    @property
    def hint(self) -> str:
        """What to do next, with options by their own names; may be empty."""
        return with_option_names(self._hint, by_name)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def with_option_names(self, names: OptionNames) -> Self:
        """The same error with options as a front writes them."""
        return self._changed(with_option_names(self._message, names), with_option_names(self._hint, names))

    def renamed(self, option: str) -> Self:
        """The same error with another option at fault: the draft's instead of the target's."""
        changed = self.with_option_names(
            lambda n, value: _reference(option if n == self.option else n, value)
        )
        changed.option = option
        return changed

    def prefixed(self, prefix: str) -> Self:
        """The same error with a prefix to its message, such as file and line, or the number of the prompt."""
        return self._changed(prefix + self._message, self._hint)

    def to_dict(self) -> JsonObject:
        """The error as plain data, to be sent from the engine process to its client."""
        data: JsonObject = {"kind": type(self).__name__, "message": self._message, "hint": self._hint}
        more = {"option": self.option, "details": self.details}
        return data | {name: value for name, value in more.items() if value}

    @staticmethod
    def from_dict(data: JsonObject) -> SpecllamaError:
        """The inverse of `to_dict`; an unknown kind becomes the base class."""
        kind = _KINDS.get(str(data.get("kind")), SpecllamaError)
        error = kind(data["message"], data.get("hint", ""), data.get("details"))
        error.option = data.get("option", "")
        return error

    def _changed(self, message: str, hint: str) -> Self:
        new = type(self).__new__(type(self), with_option_names(message, by_name))
        new.__dict__ |= self.__dict__
        new._message, new._hint = message, hint
        return new


class UsageError(SpecllamaError):
    exit_code = 2
    http_status = 400


class ConfigError(UsageError):
    http_status = 500


class ContextLengthError(UsageError):
    pass


class NotSupportedError(UsageError):
    http_status = 501


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
    http_status = 503


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
