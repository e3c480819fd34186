"""`specllama trim`: a copy of a draft or a head with the tokens that are said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specllama.cli import console
from specllama.cli.answer import engine_log
from specllama.cli.formatting import wrapped
from specllama.cli.options import checked_threads, refuse_stdout
from specllama.cli.progress import Progress, library
from specllama.client.client import EngineClient
from specllama.client.tune_messages import Trim, Trimmed
from specllama.config.store import temporary
from specllama.config.text_file import read_text
from specllama.errors import UsageError
from specllama.models.prepare import find_draft
from specllama.models.quants import size
from specllama.models.trim import seen_tokens
from specllama.text.terminal import printable

SCHEMA = "specllama.trim/1"
MAX_TEXT_BYTES = 64 << 20  # of one file


def trim(given: Mapping[str, Any]) -> int:
    """Write the file and say what it has; returns 0. Raises SpecllamaError, after which it is not there."""
    request = _request(given)
    try:
        with EngineClient(engine_log(None, False), console.note) as client, Progress(delay=1.0) as progress:
            trimmed = client.trim(request, lambda what, share: progress.show(what, share, "", stage=what))
    finally:
        Path(request.temporary).unlink(missing_ok=True)
    report = {"schema": SCHEMA, "source": request.source, "path": request.out, **asdict(trimmed)}
    lines = (part for line in _lines(request, trimmed) for part in wrapped(line, console.width()))
    return console.report(given, report, lines)


def _request(given: Mapping[str, Any]) -> Trim:
    """The request of a command line. Raises UsageError, NotFoundError."""
    known = library()
    source = find_draft(known, given["draft"], "DRAFT")
    if not source.path:
        raise UsageError(f"{given['draft']} is not on this disk", f"specllama pull {given['draft']}")
    out = os.path.expanduser(given["out"])
    refuse_stdout(out, "OUT")
    if not out:
        raise UsageError("OUT is empty", "name the file to write")
    if os.path.isdir(out) or not os.path.basename(out):
        raise UsageError(f"{out} is a folder", "name the file to write")
    if not os.path.isdir(os.path.dirname(out) or "."):
        raise UsageError(f"{os.path.dirname(out)}: no such folder", "create it first")
    if os.path.exists(out):
        if os.path.samefile(out, source.path):
            raise UsageError(f"{out} is the draft itself", "write to another file")
        if not given.get("force"):
            raise UsageError(f"{out} is there already", "write to another file, or overwrite it with --force")
    return Trim(
        source=source.path,
        out=out,
        temporary=str(temporary(Path(out))),
        inside=given.get("head", False),
        keep=given.get("keep"),
        texts=[(path, read_text(path, "texts", MAX_TEXT_BYTES)) for path in given.get("texts", ())],
        seen=seen_tokens(given.get("seen", ()), console.note),
        type=given.get("type", "").lower(),
        n_threads=checked_threads(given),
    )


def _lines(request: Trim, trimmed: Trimmed) -> list[str]:
    """The file that was written, and how it compares with its source."""
    name = printable(request.out)
    lines = [
        f"{name}: {trimmed.n_kept} of {trimmed.n_vocab} tokens; a step reads {size(trimmed.step_bytes)} "
        f"instead of {size(trimmed.source_step_bytes)} of weights"
    ]
    if trimmed.coverage is not None:
        lines.append(f"its tokens are {100 * trimmed.coverage:.1f} % of those in the given texts")
    lines.append(_verified(request, trimmed))
    if not trimmed.exact_context and request.type == "":
        lines.append("tokens that it lacks are replaced by others in what it reads")
    lines.append(f"to use it: specllama run -m MAIN -md {name} -p '...'")
    return lines


def _verified(request: Trim, trimmed: Trimmed) -> str:
    if trimmed.difference is None:
        return "compared with its source: the same weights; llama.cpp loads it"
    rows = f"compared with its source: {trimmed.verified} rows of logits are"
    if request.type:
        return f"{rows} within {trimmed.difference:.2g}, as the output matrix is {request.type} now"
    return (
        f"{rows} equal, bit for bit" if trimmed.difference == 0 else f"{rows} within {trimmed.difference:.2g}"
    )
