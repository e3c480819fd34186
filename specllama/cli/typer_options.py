"""From the table of options to Typer commands."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from specllama.cli.completion import completer

if TYPE_CHECKING:
    from specllama.config.options import Option

Command = Callable[[dict[str, Any]], None]
TABLES = {
    "run": "options.RUN",
    "chat": "options.CHAT",
    "serve": "options.SERVE",
    "bench": "options_measuring.BENCH",
    "tune": "options_measuring.TUNE",
    "rpc-worker": "options_measuring.RPC_WORKER",
}


class Group(typer.core.TyperGroup):
    """Commands that get their options when they are called: a list of commands shows none of the hundreds."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        complete = getattr(command and command.callback, "complete", None)
        if complete is None or command is None:
            return name, command, rest
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        alone.command(name, epilog=command.epilog)(complete())
        return name, typer.main.get_command(alone), rest


def options_of(command: str) -> Callable[[], list[Option]]:
    """How to come by the options of a command: they are made when it is called."""
    module, _, name = TABLES[command].partition(".")
    return lambda: getattr(importlib.import_module(f"specllama.config.{module}"), name)


def with_options(options: Callable[[], Iterable[Option]]) -> Callable[[Command], Callable[[], None]]:
    """Make a Typer command of a function from what was given on the command line: option name to value.

    options: gives the table; called when the command is (Group).
    """

    def wrap(function: Command) -> Callable[[], None]:
        def command() -> None:
            raise AssertionError("a command without its options: is its group a Group?")

        command.__doc__, command.__name__ = function.__doc__, function.__name__
        command.complete = lambda: _with_options(function, options())  # type: ignore[attr-defined]
        return command

    return wrap


def _with_options(function: Command, options: Iterable[Option]) -> Callable[..., None]:
    def command(**values: Any) -> None:
        function({name: v for name, v in values.items() if v is not None and v != []})

    annotations = {o.name: _annotation(o) for o in options}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in annotations.items()
        ]
    )
    command.__annotations__ = annotations
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    return command


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


def unknown_short_flag(arguments: Sequence[str], options: Iterable[Option]) -> str | None:
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
