"""Flags of llama.cpp's programs that the commands do not have: left out with a note where that changes
nothing, else refused with what to use instead.

Knows no command's options; unknown flags that are in no list are refused by Typer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from specllama.errors import UsageError

if TYPE_CHECKING:
    from specllama.config.option import Option

COMMANDS = ("run", "chat", "serve")
# Flags that change neither texts nor speed here, and how many values each takes.
_ALONE = """
--display-prompt --no-display-prompt --perf --no-perf --show-timings --no-show-timings --warmup --no-warmup
-st --single-turn --jinja -cb --cont-batching -kvu --kv-unified --no-context-shift --no-mmproj
--no-mmproj-auto --cache-prompt --metrics --props --slots --repack -kvo --kv-offload --op-offload
--log-disable --log-prefix
--log-timestamps
"""
_WITH_VALUE = "-co --color --log-colors -lv --verbosity --log-verbosity"
_WITHOUT_EFFECT: Mapping[str, int] = {
    **dict.fromkeys(_ALONE.split(), 0),
    **dict.fromkeys(_WITH_VALUE.split(), 1),
}
_OPTIONAL = {"-co": ("on", "off", "auto"), "--color": ("on", "off", "auto")}  # values that may be missing
_CHAT = "specllama chat is the interactive command"
_INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first"], _CHAT),
    **dict.fromkeys(["-mli", "--multiline-input"], f'{_CHAT}; """ begins and ends several lines there'),
    **dict.fromkeys(["-sysf", "--system-prompt-file"], '-sys "$(cat FILE)" gives the text of a file'),
    **dict.fromkeys(["-hff", "--hf-file"], "-m user/repo/FILE.gguf names a file of a repository"),
    **dict.fromkeys(["-mu", "--model-url"], "-m takes the URL of a file on the hub"),
    "--no-jinja": "--chat-template NAME takes llama.cpp's name of a template",
    "--context-shift": "a text ends where the context is full; -c makes it larger",
    "--samplers": "--sampling-seq takes their letters",
    **dict.fromkeys(["-lm", "--load-mode"], "--no-mmap and --mlock are the options for that"),
    "--prompt-cache": "evaluated prompts are kept on disk (--cache-disk)",
    "--list-devices": "specllama doctor lists them",
}
_NEGATIVE = re.compile(r"-[0-9.]+")
_OF_CHAT = ("-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first")


def without_them(arguments: Sequence[str], options: Iterable[Option]) -> tuple[list[str], list[str]]:
    """(The arguments of a command without flags that have no effect, those flags). The first argument is the
    command. A flag that stands without a value gets an empty one. Raises UsageError for flags that have a
    substitute, and for a flag whose words are missing.
    """
    by_flag = {flag: o for o in options for flag in o.flags}
    kept, dropped = list[str](), list[str]()
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*kept, argument, *rest], dropped
        if (option := by_flag.get(argument)) is not None:
            if option.bare and (not rest or rest[0].startswith("-")):
                kept.append(f"{argument}=")
                continue
            kept.append(argument)
            if option.kind is not bool:
                _check_value(argument, option, rest)
                kept += rest[:1]
                del rest[:1]
        elif arguments[0] not in COMMANDS:
            kept.append(argument)
        elif argument in _WITHOUT_EFFECT or (arguments[0] == "chat" and argument in _OF_CHAT):
            dropped.append(argument)
            n = _WITHOUT_EFFECT.get(argument, 0)
            if argument not in _OPTIONAL or (rest[:1] and rest[0] in _OPTIONAL[argument]):
                del rest[:n]
        elif argument in _INSTEAD:
            raise UsageError(f"no such option: {argument}", _INSTEAD[argument])
        else:
            kept.append(argument)
    return kept, dropped


def _check_value(flag: str, option: Option, rest: Sequence[str]) -> None:
    """Raises UsageError for a flag whose value, one of some words, is missing. A negative number is a value,
    which its reader judges.
    """
    if option.values and (not rest or (rest[0].startswith("-") and not _NEGATIVE.fullmatch(rest[0]))):
        raise UsageError(f"{flag} needs a value: {option.values}")
