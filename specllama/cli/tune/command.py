"""`specllama tune`: measures now what a run goes by, and predicts which draft is best."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specllama.cli import console
from specllama.cli.answer import INTERRUPTED, first_interrupt, log_file, template_variables
from specllama.cli.bench.text import duration
from specllama.cli.progress import Progress
from specllama.cli.provenance import provenance
from specllama.cli.tune import text as tune_text
from specllama.cli.tune.found import TuneResults
from specllama.cli.tune.plan import TunePlan, plan
from specllama.cli.tune.verdict import verdict
from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.config import build
from specllama.errors import SpecllamaError

EXAMPLES = """
Examples:
  specllama tune
  specllama tune -m main.gguf -md small.gguf -md smaller.gguf
  specllama tune -m main.gguf -md draft.gguf --prompts mine.json --json > tune.json

Ctrl-C stores and shows what has been measured by then.
"""
SCHEMA = "specllama.tune/1"
_LONG = 60.0  # seconds; how to make it shorter is said then


def tune(given: Mapping[str, Any]) -> int:
    """Measure, store, print what was found; the exit code. Raises SpecllamaError, once what was measured
    before it has been shown.
    """
    values = build.resolved(given)
    wanted = plan(given, values)
    variables, log = template_variables(values), log_file(values)
    found = TuneResults(wanted.drafts, wanted.unusable, "copy" in wanted.settings.drafters)
    with log or contextlib.nullcontext():
        verbose = values.get("verbose", False) or log is not None
        try:
            with EngineClient(log or (sys.stderr if verbose else None)) as client:
                _measure(client, wanted, variables, verbose, found)
        except KeyboardInterrupt:
            found.interrupted = True
        except SpecllamaError as error:
            found.failure = error
    if found.curves:
        _show(found, wanted, values.get("json", False))
    if found.failure is not None:
        raise found.failure
    return INTERRUPTED if found.interrupted else 0


def _measure(
    client: EngineClient, wanted: TunePlan, variables: dict[str, Any], verbose: bool, into: TuneResults
) -> None:
    progress = Progress(delay=1.0)
    try:
        into.info = info = client.load(
            wanted.settings, lambda name, share: progress.show(f"loading the {name}", share), verbose
        )
    finally:
        progress.clear()
    for note in info.notes:
        console.show(note)
    raw = not info.template_works
    if raw:
        console.note("note: the model has no chat template, prompts go in as they are")
    if (load := _load()) >= (os.cpu_count() or 1):
        console.warning(f"other programs keep the machine busy (load {load:.1f}): figures will be off")
    drafts = [asdict(draft) for draft in wanted.drafts]
    order = m.Tune(client.next_id(), wanted.prompts, drafts, wanted.n_tokens, raw, variables)
    progress = Progress(delay=1.0)
    try:
        with first_interrupt(lambda: client.send(m.Cancel(order.id))):
            for event in client.tune(order):
                _take(event, progress, into)
    finally:
        progress.clear()


def _load() -> float:
    """Programs that ran or waited for a processor in the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def _take(event: m.Message, progress: Progress, into: TuneResults) -> None:
    if isinstance(event, m.Tuning):
        left = f"{event.label}, {duration(event.left)} left"
        progress.show("tuning", event.share, left, stage=event.label)
    elif isinstance(event, m.TuneMeasurement):
        into.take(event.part, event.found)
        if event.part == "plan":
            _announce(event.found)
    elif isinstance(event, m.Tuned):
        into.seconds, into.interrupted = event.seconds, event.cancelled


def _announce(found: Mapping[str, Any]) -> None:
    text = f"measuring takes {duration(found['seconds'])}; Ctrl-C stores and shows what there is by then"
    shorter = "; fewer -md and --workloads, or -n, make it shorter" if found["seconds"] > _LONG else ""
    console.note(text + shorter)


def _show(found: TuneResults, wanted: TunePlan, as_json: bool) -> None:
    if as_json:
        console.data(json.dumps(_object(found, wanted)) + "\n")
        return
    width = max(40, shutil.get_terminal_size((80, 24)).columns)
    console.data("".join(f"{line}\n" for line in tune_text.lines(found, wanted.settings.calibrate, width)))


def _object(found: TuneResults, wanted: TunePlan) -> dict[str, Any]:
    """Schema specllama.tune/1: times in seconds unless named ms; what is not known is null or left out."""
    info = found.info
    return {
        "schema": SCHEMA,
        **provenance(info.n_threads),
        "target": asdict(info.target),
        "n_ctx": info.n_ctx,
        "load_ms": 1000 * info.load_seconds,
        "stored": wanted.settings.calibrate,
        **found.to_dict(),
        "verdict": verdict(found),
    }
