"""What an option is, and rows of tables of them. Knows no option."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

GGUF, DOWNLOADED, RUNNING, KEPT, CHATS = "*.gguf", "downloaded", "running", "kept", "chats"  # in `completes`
LIST = ","
OptionValues = dict[str, Any]
"""Values of options by name, each of its option's kind; checked when settings are made of them."""


class Scope(Enum):
    """Who may set an option that is stored.

    PROJECT: a project's specllama.toml too, which anyone may have written: nothing that names a file, a
    model, a host or a key, or opens the server further. USER: flags, the environment and the user's own file.
    MODEL: the same; and as it makes sense for one model alone, a server that has it loads no other model.
    """

    PROJECT = "project"
    USER = "user"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command.

    flags: () for a positional argument. kind: the type of its value. panel: its group in --help. many: may be
    given several times. stored: allowed in files and environment. completes: the completions of its value:
    words, GGUF for files and model names, DOWNLOADED for names of downloaded models, KEPT for prompts on disk
    and their models, CHATS for names of saved conversations, LIST first for a comma-separated list of the
    words; () leaves it to the shell, which completes file names. argument: its name in Python. bare: may
    stand without a value, which is then "".
    """

    name: str
    flags: tuple[str, ...]
    kind: type
    help: str
    panel: str = ""
    metavar: str | None = None
    many: bool = False
    stored: bool = True
    completes: tuple[str, ...] = ()
    argument: str = ""
    required: bool = False
    bare: bool = False
    scope: Scope = Scope.USER

    @property
    def values(self) -> str:
        """All values in words, where they are some words, or numbers and words; else ""."""
        if not self.completes or not all(word.isalpha() and word.islower() for word in self.completes):
            return ""
        words = [*(["a number"] if self.metavar == "N" else []), *self.completes]
        return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def row(
    name: str,
    flags: str,
    kind: type,
    text: str,
    metavar: str | None = None,
    completes: tuple[str, ...] = (),
    argument: str = "",
    scope: Scope = Scope.USER,
) -> Option:
    """One option of a table; the kind `list` means a text that may be given several times."""
    many = kind is list
    return Option(
        name,
        tuple(flags.split()),
        str if many else kind,
        text,
        metavar=metavar,
        many=many,
        completes=completes,
        argument=argument,
        scope=scope,
    )


def table(panel: str, *rows: Option, stored: bool = True) -> list[Option]:
    """The options of one panel in --help."""
    return [replace(option, panel=panel, stored=stored) for option in rows]
