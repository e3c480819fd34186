"""From tables of options to Typer commands. Knows Typer, and no command.

A command's file is imported when it runs. Its table of options is read when it is called, so that
`specllama --help` and a shell's completion stay quick.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from specllama.cli import console
from specllama.cli.formatting import wrapped
from specllama.regular_file import table_of

if TYPE_CHECKING:
    from specllama.option import Option

PLAIN: Mapping[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
OFTEN = "Often used"
_NARROW = 60  # columns; in fewer, the description of an option goes below its flags


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command of the program.

    code: "module:function" within specllama.cli; the function takes the given options, name to value, and
    returns the exit code; its text in examples.toml, or that of the module, ends the help. options: tables of
    options.toml, or "module:TABLE" within specllama. often: names of options that come first in the help.
    """

    code: str
    options: str
    help: str
    commands: dict[str, CommandEntry] = field(default_factory=dict)
    often: Sequence[str] = ()

    def table(self) -> Sequence[Option]:
        if ":" not in self.options:
            from specllama.cli.options import own_options

            return own_options(self.options)
        options: Sequence[Option] = _named(self.options)
        return options

    def function(self) -> Callable[[Mapping[str, Any]], int | None]:
        command: Callable[[Mapping[str, Any]], int | None] = _named(f"cli.{self.code}")
        return command

    def examples(self) -> str:
        texts = table_of(__file__, "examples.toml")
        return str(texts.get(self.code) or texts.get(self.code.partition(":")[0], "")).strip("\n")


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"specllama.{module}"), name)


class _Reader:
    """Reads the values of an option, for Typer. Its own readers are made by pydantic, one for each option of
    a command, given or not, which takes longer than all else that a command does before it starts.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 - Typer's signature
        read = param.type_descriptor.parameter_info.parser
        if param.multiple or param.nargs == -1:
            return list(value or ()) if read is None else [read(one) for one in value or ()]
        return value if value is None or read is None else read(value)


class _Help:
    """What commands and groups of them share, before Typer's class: help and usage as wide as the terminal,
    and errors that name the command, also those that Typer's parser raises without it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for parameter in ctx.command.get_params(ctx):
            if not parameter.type_descriptor.is_choice:
                parameter._runtime_param = _Reader()
        try:
            parsed: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except typer.TyperException as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise
        return parsed

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.width = max(18, min(shutil.get_terminal_size().columns, 100) - 2)
        super().format_help(ctx, formatter)  # type: ignore[misc]

    def format_usage(self: Any, ctx: Any, formatter: Any) -> None:
        text = " ".join(["Usage:", ctx.command_path, *self.collect_usage_pieces(ctx)])
        formatter.write("".join(f"{line}\n" for line in wrapped(text, formatter.width, more="  ")))


class CommandGroup(_Help, typer.core.TyperGroup):
    """Commands from a table; a command gets its options when it is resolved."""

    entries: Mapping[str, CommandEntry]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and build(str(name), self.entries[str(name)]), rest


class _OptionHelp(_Help):
    """The help of a command from a table: its options in groups, then its examples."""

    entry: CommandEntry

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        often: Sequence[str] = self.entry.often
        groups: dict[str, list[tuple[str, str]]] = {}
        parameters = {parameter.name: parameter for parameter in self.get_params(ctx)}
        for name in sorted(parameters, key=lambda name: often.index(name) if name in often else len(often)):
            parameter = parameters[name]
            title = OFTEN if name in often else getattr(parameter, "rich_help_panel", None) or "Options"
            if (record := parameter.get_help_record(ctx)) is not None:
                if isinstance(parameter, typer.core.TyperArgument):
                    record = str(parameter.metavar), str(parameter.help)
                groups.setdefault(title, []).append(record)
        groups["Options"] = groups.pop("Options", [])  # --help: last
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    if formatter.width >= _NARROW:
                        formatter.write_dl(records)
                        continue
                    for flags, text in records:
                        formatter.write_text(flags)
                        with formatter.indentation():
                            formatter.write_text(text)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - Typer's signature
        """The examples: indented lines as they are, to be copied, others as paragraphs."""
        lines = self.entry.examples().splitlines()
        if lines:
            formatter.write_paragraph()
        for verbatim, group in itertools.groupby(lines, lambda line: line[:1] in ("", " ")):
            part = list(group)
            formatted = part if verbatim else wrapped(" ".join(part), formatter.width)
            formatter.write("".join(f"{line}\n" for line in formatted))


class OptionCommand(_OptionHelp, typer.core.TyperCommand):
    """A command from a table."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer's signature
        arguments = [o for o in self.entry.table() if not o.flags]
        return ["[OPTIONS]", *(str(o.metavar) if o.required else f"[{o.metavar}]" for o in arguments)]


class OptionGroup(_OptionHelp, CommandGroup):
    """An OptionCommand that has commands of its own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def application(entries: Mapping[str, CommandEntry], **settings: Any) -> typer.Typer:
    """A Typer app with a placeholder for each command. settings: arguments of typer.Typer."""
    app = typer.Typer(
        cls=type("RootGroup", (CommandGroup,), {"entries": entries}),
        context_settings={"help_option_names": ["-h", "--help"]},
        **{**PLAIN, **settings},
    )
    for name, entry in entries.items():
        app.command(name, help=entry.help)(lambda: None)
    return app


def build(name: str, entry: CommandEntry) -> Any:
    settings: Any = {"help": entry.help, "context_settings": {"help_option_names": ["-h", "--help"]}}
    if not entry.commands:
        alone = typer.Typer(add_completion=False, **PLAIN)
        cls = type("Command", (OptionCommand,), {"entry": entry})
        alone.command(name, cls=cls, **settings)(_callback(entry))
        return typer.main.get_command(alone)
    group = application(entry.commands, name=name, add_completion=False)
    cls = type("Group", (OptionGroup,), {"entry": entry, "entries": entry.commands})
    group.callback(cls=cls, invoke_without_command=True, **settings)(_callback(entry))
    return typer.main.get_command(group)


def _callback(entry: CommandEntry) -> Callable[..., None]:
    """A function with the signature that Typer reads options from."""

    def command(context: typer.Context, **values: Any) -> None:
        if context.invoked_subcommand is None:
            from specllama.config.places import missing

            given = {name: value for name, value in values.items() if value is not None and value != []}
            console.be_quiet(bool(given.get("quiet")))
            if note := missing(os.environ):  # there is no home or working directory
                console.note(f"note: {note}")
            raise typer.Exit(entry.function()(given) or 0)

    annotations = {o.name: _annotation(o) for o in entry.table()}
    keyword, required = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    parameters += [
        inspect.Parameter(
            o.name, keyword, default=required if o.required else None, annotation=annotations[o.name]
        )
        for o in entry.table()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {"context": typer.Context, **annotations}
    return command


def _annotation(o: Option) -> Any:
    kind: Any = list[o.kind] if o.many else o.kind  # type: ignore[name-defined]
    shared: dict[str, Any] = {"help": o.help, "metavar": o.metavar, "rich_help_panel": o.panel}
    shared["show_default"] = False
    if o.completes:
        from specllama.cli.completion import completer

        shared["autocompletion"] = completer(o.completes)
    if o.is_number:
        shared["parser"] = _number(o)
    if o.flags:
        return Annotated[kind | None, typer.Option(*o.flags, **shared)]
    return Annotated[kind if o.required else kind | None, typer.Argument(**shared)]


def _number(o: Option) -> Callable[[str], Any]:
    """The reader of a number, with a message in the words of the other errors."""

    def read(text: str) -> Any:
        try:
            return o.number(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read
