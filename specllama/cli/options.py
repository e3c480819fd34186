"""The options and arguments of the commands that load no model: pair-check, pull, models, doctor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from specllama.cli import console
from specllama.config import build, sources
from specllama.config.forms import unescaped
from specllama.config.load import MAX_THREADS
from specllama.config.options import MODELS_DIR
from specllama.config.places import near
from specllama.core.sampling.params import SamplingParams
from specllama.errors import SpecllamaError, UsageError
from specllama.json_types import JsonObject
from specllama.option import CHATS as SAVED_CHATS
from specllama.option import DOWNLOADED, GGUF, KEPT, RUNNING, Option, OptionValues, row, table


def _argument(
    name: str, metavar: str, text: str, completes: str, kind: type = str, required: bool = True
) -> Option:
    words = (completes,) if completes else ()
    return table("Arguments", row(name, "", kind, text, metavar, words, required=required))[0]


# fmt: off
_DEBUG = table("Output", row("debug", "--debug", bool, "show tracebacks"))
_OUTPUT = [*table("Output", row("json", "--json", bool, "one JSON object on stdout")), *_DEBUG]
PAIR_CHECK = [
    _argument("target", "MAIN", "the target: a file or a name", GGUF, required=False),
    _argument("draft", "DRAFT",
        "the draft, a model or a head: a file or a name (default: what run uses with MAIN)", GGUF,
        required=False),
    *table("Arguments",
        row("model", "-m --model", str, "MAIN, as with run", "MAIN", (GGUF,)),
        row("draft_model", "-md --model-draft", str, "DRAFT, as with run", "DRAFT", (GGUF,)),
        row("draft_vocab", "--draft-vocab", str,
            "as with run: with auto, a draft whose tokens can be translated can be used", "MODE",
            ("auto", "strict")),
    ),
    *_OUTPUT,
]
PULL = [
    _argument("names", "NAME...", "a name (see specllama models) or user/repo:QUANT", GGUF, list),
    *table("Download",
        row("dry_run", "--dry-run", bool, "show what would be downloaded, and download nothing"),
        row("force", "--force", bool, "download a pair although the check of its headers fails"),
        row("no_verify", "--no-verify", bool,
            "download from a mirror that gives no hashes; the hash of what comes is recorded"),
        row("no_mmproj", "--no-mmproj", bool, "leave out the projector, with which a model reads images"),
    ),
    *_OUTPUT,
]
TRIM = [
    _argument("draft", "DRAFT", "the draft or head to trim: a file or a name", GGUF),
    _argument("out", "OUT", "the file to write", GGUF),
    *table("Tokens",
        row("keep", "--keep", int,
            "how many tokens to keep (default: a quarter of the vocabulary, at most 32768)", "N"),
        row("texts", "--texts", list, "a file with texts as they are written here; may be repeated", "FILE"),
        row("seen", "--seen", list,
            "also the tokens of the prompts on disk of this model, as specllama cache names it", "MODEL",
            (KEPT,)),
    ),
    *table("File",
        row("type", "--type", str, "write the output matrix in this type (default: as it is)", "TYPE"),
        row("head", "--head", bool, "write the head inside a model, without the model"),
        row("force", "--force", bool, "overwrite OUT"),
        row("n_threads", "-t --threads", int, "threads of the comparison (0: physical cores)", "N"),
    ),
    *_OUTPUT,
]
MODELS = [*MODELS_DIR, *_OUTPUT]
CONFIG = _OUTPUT
CONFIG_PATH = _DEBUG
PS = _OUTPUT
STOP = [
    _argument("name", "SERVER", "its address, port, process, or a model in its memory", RUNNING,
        required=False),
    *table("Server",
        row("all", "--all", bool, "stop all servers of this user"),
        row("now", "--now", bool, "end running requests at once"),
    ),
    *_DEBUG,
]
MODELS_SHOW = [_argument("name", "NAME|FILE", "a name (see specllama models) or a GGUF file", GGUF), *_OUTPUT]
MODELS_ADD = [
    _argument("name", "NAME", "what the file shall be called", ""),
    _argument("file", "FILE", "the GGUF file; of a split model its first part", GGUF),
    *_DEBUG,
]
MODELS_RM = [
    _argument("names", "NAME...", "what to remove", DOWNLOADED, list),
    *table("Models",
        row("all", "--all", bool, "all models of a repository, where a name is that of several")),
    *_OUTPUT,
]
MODELS_VERIFY = [
    _argument("names", "NAME...", "what to verify (default: all)", DOWNLOADED, list, required=False),
    *_OUTPUT,
]
CACHE = _OUTPUT
CACHE_RM = [_argument("names", "NAME...", "ids of prompts, or names of models", KEPT, list), *_OUTPUT]
CHATS = _OUTPUT
CHATS_RM = [_argument("names", "NAME...", "names or ids of conversations", SAVED_CHATS, list), *_OUTPUT]
DOCTOR = [
    *table("Report", row("all", "--all", bool, "all that was found, not the verdict alone")),
    *table("Hardware", row("rpc", "--rpc", str, "also ask these RPC workers: host:port,...", "LIST")),
    *_OUTPUT,
]
# fmt: on


# Errors of the file system as errors of the program; settings from files.


@contextlib.contextmanager
def mapped_errors(kind: type[SpecllamaError], what: str, hint: str = "") -> Iterator[None]:
    """Raise an OSError or ValueError of the block as this kind of error: "`what`: the system's reason"."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise kind(f"{what}: {getattr(error, 'strerror', None) or error}", hint) from None


def refuse_stdout(name: str, what: str) -> None:
    """Raise UsageError for a file to write that is -, a standard stream elsewhere. what: what names it."""
    if name == "-":
        raise UsageError(f"{what} must be the path of a file: - for standard output is not possible here")


def checked_threads(given: Mapping[str, Any]) -> int:
    """The value of -t. Raises UsageError."""
    n = int(given.get("n_threads", 0))
    if not 0 <= n <= MAX_THREADS:
        raise UsageError(f"-t must be from 1 to {MAX_THREADS}, or 0 for the physical cores, not {n}")
    return n


def resolved(given: Mapping[str, Any]) -> sources.Values:
    """The merged values of flags, environment and files, after a note that names the project's file; escapes
    in the flags' texts are processed. Raises ConfigError, UsageError.
    """
    values = sources.resolve(_with_escapes(given))
    if values.ignored:
        others = f" and {len(values.ignored) - 1} more" if len(values.ignored) > 1 else ""
        console.note(f"note: {values.ignored[0]}{others} are of a service of that name, and no settings")
    if values.left_out:
        console.note(f"note: {values.left_out} is left out, as it goes with the model that is named there")
    if values.project is not None:
        console.note(f"settings: {near(values.project)}")
    return values


def sampling(values: Mapping[str, Any]) -> JsonObject:
    """The sampling parameters, with a schema or grammar that can be used. Raises UsageError."""
    params = build.sampling(values)
    for idle in SamplingParams.merge(params).without_effect([*params]):
        console.note(f"note: {idle}")
    schema, grammar = params.get("json_schema"), params.get("grammar")
    if schema is not None or grammar is not None:
        from specllama.text.grammar import check  # needs numpy

        check(schema, grammar)
    return params


def _with_escapes(given: Mapping[str, Any]) -> OptionValues:
    """Texts as llama.cpp takes them from a command line: a shell has no easy way to write a newline."""
    if given.get("escape") and given.get("no_escape"):
        raise UsageError("-e and --no-escape are both given")
    values = dict(given)
    if not given.get("no_escape"):
        if "prompt" in given:
            values["prompt"] = unescaped(given["prompt"], "prompt")
        for name in ("words", "stop", "dry_sequence_breakers"):
            if name in given:
                values[name] = [unescaped(text, name) for text in given[name]]
    return values
