"""The Typer app and the one place where errors become messages and exit codes."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer

import specllama
from specllama.cli import console, options
from specllama.cli.command import misread, takes
from specllama.errors import SpecllamaError, UsageError

INTERRUPTED, TERMINATED = 130, 143

app = typer.Typer(
    name="specllama",
    help="GGUF models answer faster on your own machine, without changing a token of what they write.",
    epilog='Try: specllama run -p "What does shutil.copytree do?"',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Terminated(BaseException):
    """SIGTERM arrived."""


def _version(value: bool) -> None:
    if value:
        console.data(f"specllama {specllama.__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = None,
) -> None:
    pass


@app.command(
    epilog="Examples:\n\nspecllama run -p 'What does shutil.copytree do?'\n\n"
    "specllama run -m main.gguf -md draft.gguf -n 128 --temp 0 -f prompt.txt\n\n"
    "git diff | specllama run -m main.gguf -sys 'Summarise this diff.' --json"
)
@takes(options.RUN)
def run(given: dict[str, Any]) -> None:
    """Generate: a prompt in, the answer on stdout, what drafting gained on stderr."""
    from specllama.cli.run import run as command

    raise typer.Exit(command(given))


def run_app(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. Never raises but for --debug."""
    debug = "--debug" in arguments
    console.prepare()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        if arguments[:1] == ["run"] and (flag := misread(arguments[1:], options.RUN)):
            raise UsageError(f"no such option: {flag}", "see specllama run --help")
        result = app(list(arguments), prog_name="specllama", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SpecllamaError as error:
        if debug:
            raise
        console.error(error.message, error.hint)
        return error.exit_code
    except typer.TyperException as error:
        console.error(error.format_message(), "see specllama --help, or specllama COMMAND --help")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except console.ReaderGoneError:
        return 0
    except Exception as error:
        if debug:
            raise
        console.error(
            f"unexpected {type(error).__name__}: {error}", "run it again with --debug and report it, please"
        )
        return 1


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise Terminated
