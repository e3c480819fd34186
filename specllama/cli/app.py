"""The program: its commands, from app.toml, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import difflib
import errno
import signal
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer

import specllama
from specllama.cli import console
from specllama.cli.typer_options import CommandEntry, application
from specllama.errors import ResourceError, SpecllamaError, UsageError
from specllama.regular_file import table_of

USAGE, INTERRUPTED = 2, 130
READER_GONE = 141  # as of a program that SIGPIPE ends


def _commands() -> dict[str, CommandEntry]:
    commands = dict[str, CommandEntry]()
    for words, (code, options, help_text, *often) in table_of(__file__).items():
        group, _, name = words.rpartition(" ")
        entries = commands[group].commands if group else commands
        entries[name] = CommandEntry(code, options, help_text, often=often)
    return commands


COMMANDS = _commands()


class Terminated(BaseException):
    """SIGTERM arrived, or SIGHUP: the terminal was closed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


app = application(
    COMMANDS,
    name="specllama",
    help="GGUF models answer faster on your own machine, without changing a token of what they write.",
    epilog='Try: specllama run -p "What does shutil.copytree do?"',
    no_args_is_help=True,
)


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


def run_app(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. With --debug errors are shown with their tracebacks."""
    console.prepare()
    signal.signal(signal.SIGTERM, _terminated)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, _terminated)
    try:
        arguments = _understood(arguments)
        result = app(arguments or ["--help"], prog_name="specllama", standalone_mode=False)
        console.end_of_data()
        return result if isinstance(result, int) else 0
    except BaseException as error:  # noqa: BLE001 - each has a message or an exit code
        code, message, hint = outcome(error)
        if "--debug" in arguments and isinstance(error, Exception) and code not in (0, USAGE, INTERRUPTED):
            console.traceback(error)
            return 1
        if message:
            console.error(message, hint)
        return code
    finally:
        console.discard_unwritten()


def outcome(error: BaseException) -> tuple[int, str, str]:
    """How the program ends after an exception: exit code, message and hint, "" for none."""
    match error:
        case SpecllamaError():
            shown = error.with_option_names(console.as_flag)
            return error.exit_code, shown.message, shown.hint
        case typer.TyperException():
            command = getattr(getattr(error, "ctx", None), "command_path", "specllama")
            message = error.format_message()
            if hasattr(error, "possibilities"):  # of an unknown option; Typer sorts them by name
                near = _nearest_flags(error)
                return USAGE, message.partition(" (Possible")[0], f"{near}see {command} --help"
            return USAGE, message, _usage_hint(command, message)
        case KeyboardInterrupt() | typer.Abort():
            return INTERRUPTED, "", ""
        case Terminated():
            return error.exit_code, "", ""
        case console.ReaderGoneError():
            return READER_GONE, "", ""
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG | errno.EROFS):
            what = error.filename or "standard output"
            return ResourceError.exit_code, f"{what} cannot be written: {error.strerror}", ""
        case Exception():
            what = f"unexpected {type(error).__name__}: {error}"
            return 1, what, "run it again with --debug and report it, please"
    raise error


def _nearest_flags(error: Any) -> str:
    """ "did you mean --temp? ", the nearest first, for an option that Typer does not know; "" for none."""
    flags = [flag for parameter in error.ctx.command.params for flag in parameter.opts]
    near = difflib.get_close_matches(error.option_name[:60], flags, n=2, cutoff=0.8)
    return f"did you mean {' or '.join(near)}? " if near else ""


def _usage_hint(command: str, message: str) -> str:
    """What to do about a usage error that Typer found."""
    name = command.rpartition(" ")[2]
    if "unexpected extra argument" in message and name in ("chat", "serve", "bench", "tune"):
        answer = "; specllama run TEXT answers one message" if name == "chat" else ""
        return f"-m names a model: specllama {name} -m NAME{answer}"
    return f"see {command} --help"


def _understood(arguments: Sequence[str]) -> list[str]:
    """The arguments without flags of llama.cpp that have no effect, after a note that names them. Raises
    UsageError as `without_them` does.
    """
    entry = COMMANDS.get(arguments[0]) if arguments else None
    if entry is None:
        _refuse_words(arguments)
        return list(arguments)
    from specllama.cli.llama_cpp_flags import without_them

    kept, dropped, repeated = without_them(arguments, entry.table())
    if not {"-q", "--quiet"} & set(kept):
        if dropped:
            console.note(f"note: {', '.join(dict.fromkeys(dropped))} of llama.cpp: not needed here, left out")
        if repeated:
            console.note(f"note: {', '.join(repeated)}: given several times, the last one counts")
    return kept


def _refuse_words(arguments: Sequence[str]) -> None:
    """Raises UsageError, with the command that is meant, for words and flags that are typed in its place."""
    first = arguments[0] if arguments else ""
    rest = "".join(f" {a}" if a.isprintable() and " " not in a else " …" for a in arguments[1:4])
    if first in COMMANDS["models"].commands:
        raise UsageError(f"no such command: {first}", f"it is: specllama models {first}{rest}")
    if first in ("version", "-v", "-V"):
        raise UsageError(f"no such command: {first}", "it is: specllama --version")
    run = COMMANDS["run"]
    if first.partition("=")[0] in {flag for o in run.table() for flag in o.flags}:
        raise UsageError(f"{first} is an option of a command", f"it is: specllama run {first}{rest}")


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise Terminated(number)
