"""From the table of options to Typer commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from specllama.cli.completion import completer
from specllama.cli.options import Option


def takes(options: Iterable[Option]) -> Callable[[Callable[[dict[str, Any]], None]], Callable[..., None]]:
    """Make a Typer command of a function from what was given on the command line: option name to value."""
    table = list(options)

    def wrap(function: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            function({name: v for name, v in values.items() if v is not None and v != []})

        annotations = {o.name: _annotation(o) for o in table}
        parameters = [
            inspect.Parameter(
                o.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotations[o.name]
            )
            for o in table
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = annotations
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return command

    return wrap


def _annotation(o: Option) -> Any:
    kind: Any = list[o.kind] if o.many else o.kind  # type: ignore[name-defined]
    info = typer.Option(
        *o.flags,
        help=o.help,
        metavar=o.metavar,
        rich_help_panel=o.panel,
        show_default=False,
        autocompletion=completer(o.completes) if o.completes else None,
    )
    return Annotated[kind | None, info]


def misread(arguments: Sequence[str], options: Iterable[Option]) -> str | None:
    """The first argument that looks like one of llama.cpp's short flags and is none of ours, None without
    one.

    Typer would take `-pps` for `-p ps`, and so drop a flag silently.
    """
    takes_value = {flag: o.kind is not bool for o in options for flag in o.flags} | {"-h": False}
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            return None
        if takes_value.get(argument):
            next(rest, None)
        elif (
            argument[:1] == "-" and argument[1:2] != "-" and len(argument) > 2 and argument not in takes_value
        ):
            return argument
    return None
