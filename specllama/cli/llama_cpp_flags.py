"""Flags of llama.cpp's programs that the commands do not have: left out with a note where that changes
nothing, else refused with what to use instead.

Knows no command's options; unknown flags that are in no list are refused by Typer.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specllama.errors import UsageError
from specllama.regular_file import table_of

if TYPE_CHECKING:
    from specllama.option import Option

COMMANDS = ("run", "chat", "serve")
_OPTIONAL = {"-co": ("on", "off", "auto"), "--color": ("on", "off", "auto")}  # values that may be missing
_FLAG = re.compile(r"-(?![0-9.]+$)")  # a negative number is none
_OF_CHAT = ("-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first")


@functools.cache
def _table() -> dict[str, Any]:
    return table_of(__file__)


def hints() -> Mapping[str, str]:
    """What to use in place of flags that there are not, by flag."""
    return {flag: hint for flags, hint in _table()["instead"].items() for flag in flags.split()}


def _n_values(command: str, flag: str) -> int | None:
    """How many values a flag without effect takes, None for other arguments."""
    if command not in COMMANDS:
        return None
    if command == "chat" and flag in _OF_CHAT:
        return 0
    return next((n for n, key in enumerate(("alone", "with_value")) if flag in _table()[key].split()), None)


def without_them(
    arguments: Sequence[str], options: Iterable[Option]
) -> tuple[list[str], list[str], list[str]]:
    """(The arguments of a command without flags that have no effect, those flags, flags whose option is given
    several times, of which Typer reads the last). The first argument is the command. A flag that stands
    without a value gets an empty one. Raises UsageError for flags that have a substitute, for a flag whose
    words are missing, for a second model or draft, and for an unknown short flag, as `-pps`, which is `-p ps`
    to Typer.
    """
    by_flag = {flag: o for o in options for flag in o.flags}
    kept, dropped, times = list[str](), list[str](), Counter[str]()
    rest, command = list(arguments), arguments[0]
    while rest and rest[0] != "--":
        argument = rest.pop(0)
        flag = argument.partition("=")[0]
        if (named := by_flag.get(flag)) is not None:
            times[named.flags[0]] += not named.many and named.kind is not bool
        if (option := by_flag.get(argument)) is not None:
            if option.bare and (not rest or rest[0].startswith("-")):
                kept.append(f"{argument}=")
                continue
            kept.append(argument)
            if option.kind is not bool:
                if option.values and (not rest or _FLAG.match(rest[0])):
                    raise UsageError(f"{argument} needs a value: {option.values}")
                kept += rest[:1]
                del rest[:1]
        elif argument[:1] != "-":
            kept.append(argument)
        elif (n := _n_values(command, argument)) is not None:
            dropped.append(argument)
            if argument not in _OPTIONAL or (rest[:1] and rest[0] in _OPTIONAL[argument]):
                del rest[:n]
        elif command in COMMANDS and (hint := hints().get(flag)) is not None:
            raise UsageError(f"no such option: {flag}", hint)
        elif argument[1:2] != "-" and len(argument) > 2:
            raise UsageError(f"no such option: {argument}", f"see specllama {command} --help")
        else:
            kept.append(argument)
    for flag, n_given in times.items():
        if n_given > 1 and by_flag[flag].name in ("model", "draft_model"):
            hint = "a command has one; a server loads others by name: specllama models add NAME FILE, or "
            raise UsageError(f"{flag} is given {n_given} times", f"{hint}--models-dir FOLDER")
    return [*kept, *rest], dropped, [flag for flag, n_given in times.items() if n_given > 1]
