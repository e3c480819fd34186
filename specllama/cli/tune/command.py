"""`specllama tune`: measures costs now, and predicts which draft is best."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specllama.cli import console
from specllama.cli.answer import engine_log, first_interrupt, load, log_file
from specllama.cli.formatting import columns, rough_duration
from specllama.cli.measuring import LONG, provenance, warn_if_busy
from specllama.cli.options import resolved
from specllama.cli.progress import Progress
from specllama.cli.tune.plan import TunePlan, make_plan
from specllama.cli.tune.results import TuneResults, lines, verdict
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.tune_messages import Tune, TuneAgenda, Tuned, TuneMeasurement, Tuning
from specllama.json_types import JsonObject
from specllama.text.prompt_parts import reasoning_variables

EXAMPLES = """
Examples:
  specllama tune
  specllama tune -m main.gguf -md small.gguf -md smaller.gguf
  specllama tune -m main.gguf -md draft.gguf --prompts mine.json --json > tune.json

Ctrl-C stores and shows what has been measured by then.
"""
SCHEMA = "specllama.tune/1"


def tune(given: Mapping[str, Any]) -> int:
    """Measure, store, print the results; returns the exit code.

    Raises the SpecllamaError that ended the measurement, after the results before it are shown.
    """
    values = resolved(given)
    plan = make_plan(given, values)
    variables, log = reasoning_variables(values.get("reasoning", "auto")), log_file(values)
    settings = plan.settings
    results = TuneResults(plan.drafts, plan.unusable, settings.copies, settings.target.path)
    with log or contextlib.nullcontext():
        verbose = values.get("verbose", False) or log is not None
        client = EngineClient(engine_log(log, verbose))
        with results.collecting(), client:
            _measure(client, plan, variables, verbose, results)
    if results.curves:
        _show(results, plan, values.get("json", False))
    else:
        results.say_nothing_measured()
    return results.exit_code()


def _measure(
    client: EngineClient, plan: TunePlan, variables: JsonObject, verbose: bool, into: TuneResults
) -> None:
    into.info = info = load(client, plan.settings, verbose, open_draft=False)
    for note in info.notes:
        console.show(note)
    raw = not info.template_works
    if raw:
        console.note("note: the model has no chat template, prompts go in as they are")
    warn_if_busy()
    request = Tune(
        client.next_id(), plan.prompts, list(plan.drafts), plan.n_tokens, raw, variables, plan.ignore_load
    )
    with Progress(delay=1.0) as progress, first_interrupt(lambda: client.send(protocol.Cancel(request.id))):
        for event in client.tune(request):
            _receive(event, progress, into)


def _receive(event: protocol.Message, progress: Progress, into: TuneResults) -> None:
    if isinstance(event, Tuning):
        left = f"{event.label}, about {rough_duration(event.left)} left"
        progress.show("tuning", event.share, left, stage=event.label)
    elif isinstance(event, TuneMeasurement):
        into.add(event.part)
        if isinstance(event.part, TuneAgenda):
            _announce(event.part.seconds)
    elif isinstance(event, Tuned):
        into.seconds, into.interrupted = event.seconds, event.cancelled


def _announce(seconds: float) -> None:
    text = f"measuring takes about {rough_duration(seconds)}"
    text += "; Ctrl-C stores and shows what there is by then"
    shorter = "; fewer -md and --workloads, or -n, make it shorter" if seconds > LONG else ""
    console.note(text + shorter)


def _show(results: TuneResults, plan: TunePlan, as_json: bool) -> None:
    if as_json:
        console.data(json.dumps(_object(results, plan)) + "\n")
        return
    report_lines = lines(results, plan.settings.calibrate, columns(sys.stdout))
    console.data("".join(f"{line}\n" for line in report_lines))


def _object(results: TuneResults, plan: TunePlan) -> JsonObject:
    """Schema specllama.tune/1: times in seconds unless named ms; unknown values are null or left out."""
    info = results.info
    return {
        "schema": SCHEMA,
        **provenance(info.n_threads),
        "target": asdict(info.target),
        "n_ctx": info.n_ctx,
        "load_ms": 1000 * info.load_seconds,
        "stored": plan.settings.calibrate and results.storable,
        **results.to_dict(),
        "verdict": verdict(results),
    }
