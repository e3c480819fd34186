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
from specllama.cli.completion import model_names
from specllama.errors import SpecllamaError, UsageError

INTERRUPTED, TERMINATED = 130, 143
_TABLES = {"run": options.RUN, "chat": options.CHAT, "bench": options.BENCH}

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


@app.command(epilog="Examples:\n\nspecllama chat\n\nspecllama chat -m main.gguf -md draft.gguf --show-draft")
@takes(options.CHAT)
def chat(given: dict[str, Any]) -> None:
    """Talk with a model: history, commands (/help), what drafting gained after every answer."""
    from specllama.cli.chat import chat as command

    raise typer.Exit(command(given))


@app.command(
    "pair-check",
    epilog="Example:\n\nspecllama pair-check main.gguf draft.gguf\n\n"
    "Ends with 0 where the draft can be used, 7 where it cannot.",
)
def pair_check(
    target: Annotated[
        str, typer.Argument(metavar="MAIN", help="the target: a GGUF file", autocompletion=model_names)
    ],
    draft: Annotated[
        str, typer.Argument(metavar="DRAFT", help="the draft: a GGUF file", autocompletion=model_names)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,  # noqa: ARG001
) -> None:
    """Can this draft propose tokens for this target? Reads the headers only."""
    from specllama.cli.pair_check import pair_check as command

    raise typer.Exit(command(target, draft, as_json))


@app.command(
    epilog="Examples:\n\nspecllama bench --runs 1\n\n"
    "specllama bench -m main.gguf -md draft.gguf --workloads edit,json --report bench.html\n\n"
    "specllama bench -m main.gguf -md draft.gguf --prompts mine.json -n 128 --json > bench.json\n\n"
    "specllama bench -m main.gguf -md none --text edited.py -n 500\n\n"
    "Ctrl-C shows what was measured by then."
)
@takes(options.BENCH)
def bench(given: dict[str, Any]) -> None:
    """Measure plain against speculative decoding on this machine with this pair."""
    from specllama.cli.bench import bench as command

    raise typer.Exit(command(given))


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,  # noqa: ARG001
) -> None:
    """What this installation can use: versions, devices, memory, caches, exactness."""
    from specllama.cli.doctor import doctor as command

    raise typer.Exit(command(as_json))


def run_app(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. Never raises but for --debug."""
    debug = "--debug" in arguments
    console.prepare()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        name = arguments[0] if arguments else ""
        if name in _TABLES and (flag := misread(arguments[1:], _TABLES[name])):
            raise UsageError(f"no such option: {flag}", f"see specllama {name} --help")
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
