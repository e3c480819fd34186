"""The Typer app and the one place where errors become messages and exit codes."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer

import specllama
from specllama.cli import console
from specllama.cli.completion import downloaded_names, model_names
from specllama.cli.typer_options import TABLES, Group, options_of, unknown_short_flag, with_options
from specllama.errors import SpecllamaError, UsageError

INTERRUPTED, TERMINATED = 130, 143

app = typer.Typer(
    name="specllama",
    cls=Group,
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
    "specllama run -m 8B -md 1B -p 'Who was the first prime minister of Britain?'\n\n"
    "specllama run -m main.gguf -md draft.gguf -n 128 --temp 0 -f prompt.txt\n\n"
    "git diff | specllama run -m main.gguf -sys 'Summarise this diff.' --json"
)
@with_options(options_of("run"))
def run(given: dict[str, Any]) -> None:
    """Generate: a prompt in, the answer on stdout, what drafting gained on stderr."""
    from specllama.cli.run import run as command

    raise typer.Exit(command(given))


@app.command(epilog="Examples:\n\nspecllama chat\n\nspecllama chat -m main.gguf -md draft.gguf --show-draft")
@with_options(options_of("chat"))
def chat(given: dict[str, Any]) -> None:
    """Talk with a model: history, commands (/help), what drafting gained after every answer."""
    from specllama.cli.chat.command import chat as command

    raise typer.Exit(command(given))


@app.command(
    epilog="Examples:\n\nspecllama serve -m main.gguf -md draft.gguf -c 8192 --alias local\n\n"
    "specllama serve --model main.gguf --speculative-model draft.gguf --num-speculative-tokens 8\n\n"
    "specllama serve -m main.gguf --host 0.0.0.0 --port 8087 --api-key-file keys.txt\n\n"
    "curl http://127.0.0.1:8080/v1/chat/completions "
    '-d \'{"messages": [{"role": "user", "content": "Hello"}]}\''
)
@with_options(options_of("serve"))
def serve(given: dict[str, Any]) -> None:
    """Serve the model to programs: a local API like OpenAI's, many requests at once, drafted for together."""
    from specllama.cli.serve import serve as command

    raise typer.Exit(command(given))


@app.command(
    "pair-check",
    epilog="Examples:\n\nspecllama pair-check main.gguf draft.gguf\n\nspecllama pair-check 8B 1B\n\n"
    "specllama pair-check user/repo:Q4_K_M hf:user/other-repo --json\n\n"
    "Ends with 0 where the draft can be used, 7 where it cannot.",
)
def pair_check(
    target: Annotated[
        str, typer.Argument(metavar="MAIN", help="the target: a file or a name", autocompletion=model_names)
    ],
    draft: Annotated[
        str, typer.Argument(metavar="DRAFT", help="the draft: a file or a name", autocompletion=model_names)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,  # noqa: ARG001
) -> None:
    """Can this draft propose tokens for this target? Reads the headers only, on the hub too."""
    from specllama.cli.pair_check import pair_check as command

    raise typer.Exit(command(target, draft, as_json))


@app.command(
    epilog="Examples:\n\nspecllama pull 8B 1B\n\nspecllama pull user/repo:Q4_K_M --dry-run\n\n"
    "Two names are a target and its draft: their headers are compared before anything big is downloaded."
)
def pull(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="a name (specllama models) or user/repo:QUANT", autocompletion=model_names
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be downloaded, no more")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="download what the check of the headers is against")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,  # noqa: ARG001
) -> None:
    """Download models, or a pair. Goes on where an earlier attempt has stopped, whatever stopped it."""
    from specllama.cli.pull import pull as command

    raise typer.Exit(command(names, dry_run, force, as_json))


models = typer.Typer(
    invoke_without_command=True,
    no_args_is_help=False,
    rich_markup_mode=None,
    epilog="Examples:\n\nspecllama models\n\nspecllama models verify\n\nspecllama models rm 8B:Q8_0",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models, name="models")


@models.callback()
def list_models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,  # noqa: ARG001
) -> None:
    """The models on this disk and those that are known by name; rm, verify."""
    if context.invoked_subcommand is None:
        from specllama.cli.models import list_models as command

        raise typer.Exit(command(as_json))


@models.command("rm", epilog="Example:\n\nspecllama models rm 8B:Q8_0 user/repo")
def remove_models(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="what to remove", autocompletion=downloaded_names)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,  # noqa: ARG001
) -> None:
    """Remove downloaded models; without a quantisation all of a repository, unfinished downloads too."""
    from specllama.cli.models import remove as command

    raise typer.Exit(command(names, as_json))


@models.command("verify", epilog="Ends with 6 where a file is not what the hub said it was.")
def verify_models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...", help="what to verify (default: all)", autocompletion=downloaded_names
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,  # noqa: ARG001
) -> None:
    """Hash downloaded models again."""
    from specllama.cli.models import verify as command

    raise typer.Exit(command(names or [], as_json))


@app.command(
    epilog="Examples:\n\nspecllama bench --runs 1\n\n"
    "specllama bench -m main.gguf -md draft.gguf --workloads edit,json --report bench.html\n\n"
    "specllama bench -m main.gguf -md draft.gguf --prompts mine.json -n 128 --json > bench.json\n\n"
    "specllama bench -m main.gguf -md none --text edited.py -n 500\n\n"
    "specllama bench --server http://127.0.0.1:8080 --concurrency 1,4,8 --report serving.html\n\n"
    "Ctrl-C shows what was measured by then."
)
@with_options(options_of("bench"))
def bench(given: dict[str, Any]) -> None:
    """Measure plain against speculative decoding on this machine with this pair, or a server (--server)."""
    from specllama.cli.bench.command import bench as command

    raise typer.Exit(command(given))


@app.command(
    epilog="Examples:\n\nspecllama tune\n\n"
    "specllama tune -m main.gguf -md small.gguf -md smaller.gguf\n\n"
    "specllama tune -m main.gguf -md draft.gguf --prompts mine.json --json > tune.json\n\n"
    "Ctrl-C stores and shows what was measured by then."
)
@with_options(options_of("tune"))
def tune(given: dict[str, Any]) -> None:
    """Measure now what a run goes by, and say from which acceptance drafts pay and which draft is best."""
    from specllama.cli.tune.command import tune as command

    raise typer.Exit(command(given))


@app.command(
    "rpc-worker",
    epilog="Examples:\n\nspecllama rpc-worker\n\n"
    "specllama rpc-worker --host 192.168.1.20 --memory 12 --cache\n\n"
    "and on the machine that asks: specllama run --rpc 192.168.1.20 -m main.gguf -md draft.gguf -p '...'\n\n"
    "There is neither a password nor encryption: listen in a network that you trust, or through a tunnel, "
    "ssh -N -L 50052:127.0.0.1:50052 worker, then --rpc 127.0.0.1:50052. Ctrl-C ends it.",
)
@with_options(options_of("rpc-worker"))
def rpc_worker(given: dict[str, Any]) -> None:
    """Lend this machine's memory and processor to a model that another machine runs (--rpc there)."""
    from specllama.cli.rpc_worker import rpc_worker as command

    raise typer.Exit(command(given))


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object on stdout")] = False,
    workers: Annotated[
        str | None, typer.Option("--rpc", metavar="LIST", help="also ask these RPC workers: host:port,...")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,  # noqa: ARG001
) -> None:
    """What this installation can use: versions, devices, memory, caches, exactness."""
    from specllama.cli.doctor.command import doctor as command

    raise typer.Exit(command(as_json, workers))


def run_app(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. Never raises but for --debug."""
    debug = "--debug" in arguments
    console.prepare()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        name = arguments[0] if arguments else ""
        if name in TABLES and (flag := unknown_short_flag(arguments[1:], options_of(name)())):
            raise UsageError(f"no such option: {flag}", f"see specllama {name} --help")
        result = app(list(arguments), prog_name="specllama", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SpecllamaError as error:
        if debug:
            raise
        from specllama.config.options import as_flag

        shown = error.spelled(as_flag)
        console.error(shown.message, shown.hint)
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
    finally:
        console.leave()


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise Terminated
