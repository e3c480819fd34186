"""`specllama tune`: measures costs now, and predicts which draft is best."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from specllama.cli import console
from specllama.cli.answer import engine, first_interrupt, load
from specllama.cli.bench.plan import make_plan as bench_plan
from specllama.cli.bench.plan import provenance, warn_if_busy
from specllama.cli.options import resolved
from specllama.cli.progress import Progress, library, prepared
from specllama.cli.tune.results import TuneResults, lines, verdict
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.tune_messages import Tune, Tuned, TuneMeasurement, Tuning
from specllama.config import build
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.sources import Values
from specllama.errors import IncompatiblePairError, UsageError
from specllama.gguf.header import read_model
from specllama.heads import read_head, unusable_head
from specllama.heads.check import check_draft, check_model
from specllama.json_types import JsonObject
from specllama.models.foreign_drafts import foreign_candidates
from specllama.models.prepare import prepare_if_on_disk
from specllama.models.resolve import Library
from specllama.pair.check import PairVerdict, own_head
from specllama.pair.overlap import check_translated, overlap
from specllama.text.prompt_parts import reasoning_variables
from specllama.text.terminal import printable

SCHEMA = "specllama.tune/1"
# tune sets these itself: it measures with all drafters, at all lengths.
_OWN_OPTIONS = ("draft_model", "draft_max", "draft_min", "draft_p_min", "exact", "no_calibrate")
_TRANSLATED = console.as_flag("draft_vocab", "auto")


def tune(given: Mapping[str, Any]) -> int:
    """Measure, store, print the results; returns the exit code.

    Raises the SpecllamaError that ended the measurement, after the results before it are shown.
    """
    values = resolved(given)
    settings, order, unusable = make_plan(given, values)
    results = TuneResults(order.drafts, unusable, settings.copies, settings.target.path)
    with results.collecting(), engine(values) as client:
        results.info = load(client, values, settings, open_draft=False)
        _measure(client, order, results)
    if results.curves:
        text = lines(results, settings.calibrate, console.width())
        console.report(values, _object(results, settings.calibrate), text)
    else:
        results.say_nothing_measured()
    return results.exit_code()


def _measure(client: EngineClient, order: Tune, into: TuneResults) -> None:
    order = replace(order, id=client.next_id(), raw=not into.info.template_works)
    if order.raw:
        console.note("note: the model has no chat template, prompts go in as they are")
    warn_if_busy()
    console.note("measuring; Ctrl-C stores and shows what there is by then")
    with Progress(delay=1.0) as progress, first_interrupt(lambda: client.send(protocol.Cancel(order.id))):
        for event in client.generate(order):
            if isinstance(event, Tuning):
                progress.show("tuning", event.share, event.label, stage=event.label)
            elif isinstance(event, TuneMeasurement):
                into.add(event.part)
            elif isinstance(event, Tuned):
                into.seconds, into.interrupted = event.seconds, event.cancelled


def _object(results: TuneResults, stores: bool) -> JsonObject:
    """Schema specllama.tune/1: times in seconds unless named ms; unknown values are null or left out."""
    info = results.info
    return {
        "schema": SCHEMA,
        **provenance(info.n_threads),
        "target": asdict(info.target),
        "n_ctx": info.n_ctx,
        "load_ms": 1000 * info.load_seconds,
        "stored": stores and results.storable,
        **results.to_dict(),
        "verdict": verdict(results),
    }


def make_plan(given: Mapping[str, Any], values: Values) -> tuple[LoadSettings, Tune, dict[str, str]]:
    """(settings of the target, its draft the head inside it if that is one of the drafts; the request, which
    lacks its id and what the load decides; drafts that do not fit, path to reason, where the target's path
    stands for its head). given: the command line; values: the same with files and environment.

    Raises UsageError, NotFoundError, what reading a header raises, IncompatiblePairError where drafts were
    named and none fits.
    """
    shared = {name: given[name] for name in ("prompts", "workloads", "n_tokens") if name in given}
    texts = bench_plan({**shared, "temperatures": "0"}, Values())
    names = given.get("draft_models", [values.get("draft_model", "auto")])
    values = values.without(*_OWN_OPTIONS).overlaid({"no_calibrate": given.get("no_store", False)})
    settings = _prepared(values, "none")
    drafts = _drafts(names, values, settings.target.path)
    translates = settings.draft_vocab == "auto"
    unusable = _unusable(settings.target.path, [d.path for d in drafts], translates)
    named = any(name not in ("auto", "none") for name in names)
    if named and drafts and len(unusable) == len(drafts):
        reasons = "; ".join(f"{path}: {reason}" for path, reason in unusable.items())
        hint = "choose another draft, or -md none; specllama pair-check tells more"
        raise IncompatiblePairError(f"no draft fits the target: {reasons}", hint)
    usable = [d for d in drafts if d.path not in unusable]
    inside = next((d for d in usable if d.path == settings.target.path), None)
    order = Tune(
        0,
        [(case.workload, case.prompt) for case in texts.cases],
        usable,
        texts.n_tokens if "n_tokens" in given else None,
        variables=reasoning_variables(values.get("reasoning", "auto")),
        ignore_load=given.get("ignore_load", False),
    )
    return replace(settings, draft=inside), order, unusable


def _prepared(values: Values, draft: str) -> LoadSettings:
    named = values.overlaid({"draft_model": draft})
    return prepared(build.load_settings(named), values)


def _drafts(names: Sequence[str], values: Values, target: str) -> list[ModelSettings]:
    """The drafts of these names, "none" left out. Raises UsageError."""
    drafts: list[ModelSettings] = []
    for name in _with_candidates(names, values, target):
        settings = _prepared(values, name)
        if not settings.wants_draft_model and name not in ("auto", "none"):
            raise UsageError(f"--drafters leaves the draft model out, and -md gives one: {name}")
        draft = settings.draft
        if draft is None:
            continue
        if os.path.samefile(draft.path, target):
            header = read_model(target)
            if read_head(header) is None and not unusable_head(header):
                message = f"-md {name} is the target itself, which has no head"
                raise UsageError(message, "a draft is a smaller model")
            draft = replace(draft, path=target)
        if any(os.path.samefile(draft.path, other.path) for other in drafts):
            raise UsageError(f"-md {name} is given twice")
        drafts.append(draft)
    return drafts


def _with_candidates(names: Sequence[str], values: Values, target: str) -> list[str]:
    """The names of drafts to try. Where "auto" finds none, and tokens may be translated, drafts of another
    vocabulary that can draft for the target stand for it; a note names them where tokens may not.
    """
    strict = build.load_settings(values.overlaid({"draft_model": "auto", "draft_vocab": "strict"}))
    if "auto" not in names or not strict.wants_draft_model:
        return list(names)
    folder = values.get("models_dir", "")
    known = prepare_if_on_disk(Library(models_dir=folder), strict)
    if known is None or known.draft is not None:
        return list(names)
    candidates = list(foreign_candidates(library(models_dir=folder), read_model(target)))
    if values.get("draft_vocab") == "auto":
        return [*(name for name in names if name != "auto"), *candidates]
    if candidates:
        left_out = ", ".join(printable(os.path.basename(name)) for name in candidates)
        console.note(f"note: left out, as of another vocabulary: {left_out}; {_TRANSLATED} measures it")
    return list(names)


def _unusable(target: str, drafts: Sequence[str], translates: bool) -> dict[str, str]:
    """The drafts that do not fit the target, path to reason. translates: see `check_translated`."""
    if not drafts:
        return {}
    header = read_model(target)
    check_model(header)
    reasons = {}
    for path in drafts:
        if path == target:
            reason = own_head(header)[1]
        else:
            draft = read_model(path)
            check_draft(draft)
            verdict = check_translated(header, draft, translates)
            reason = "" if verdict.ok else verdict.reason
            if isinstance(verdict, PairVerdict) and not verdict.ok and not translates:
                shared = overlap(header, draft)[0]
                reason += f", or {_TRANSLATED}: {shared.label}" if shared is not None else ""
        if reason:
            reasons[path] = reason
    return reasons
