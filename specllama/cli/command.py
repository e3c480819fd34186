"""From the table of options to Typer commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

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
    info = typer.Option(*o.flags, help=o.help, metavar=o.metavar, rich_help_panel=o.panel, show_default=False)
    return Annotated[kind | None, info]
