"""`specllama doctor`: what this installation can use, and what to do where something is missing.

The other modules of this package produce the parts of the report, as plain data and problems; this one
assembles and shows them. The exit code is the one that `run` would end with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from specllama.cli import console
from specllama.cli.formatting import age, wrapped
from specllama.config.store import ENOUGH_ROWS
from specllama.json_types import JsonObject
from specllama.models.demo import called
from specllama.models.quants import size
from specllama.wording import counted

if TYPE_CHECKING:
    from specllama.cli.doctor.report import Problem

SCHEMA = "specllama.doctor/1"
_LABEL, _SHORT_LABEL = 16, 8  # columns
_MODELS = 3  # in the verdict
_NARROW = 50  # columns of a terminal in which values go below their labels
Rows = Iterator[tuple[str, str]]


def doctor(given: Mapping[str, Any]) -> int:
    """Print the verdict, or the whole report; returns 0 unless something makes `run` impossible."""
    report, problems = examine(given.get("rpc"))
    console.report(given, report, lines(report, console.width(), given.get("all", False)))
    return next((problem.exit_code for problem in problems if problem.exit_code), 0)


def examine(workers: str | None = None) -> tuple[JsonObject, list[Problem]]:
    from specllama.cli.doctor import report as parts

    problems: list[Problem] = []
    probe = parts.Probe(os.environ)  # answers while the engine starts
    started = parts.engine(problems)
    rpc = {}
    if workers is not None:
        parts.check_rpc(started, problems)  # first: `run` ends with this one
        rpc["rpc"] = parts.workers(workers, problems)
    usable = parts.calibrations()
    report = {
        "schema": SCHEMA,
        "versions": parts.versions(started),
        "machine": parts.machine(started, problems),
        "engine": started,
        "embedded_pair": parts.embedded_pair(problems),
        "demo_model": parts.demo_model(problems),
        "cache": parts.cache(usable, problems),
        "exactness": parts.exactness(usable),
        "stored": parts.stored(usable),
        "hub": parts.hub(os.environ, probe, problems),
        "config": parts.config(os.environ, problems),
        **rpc,
    }
    problems.sort(key=lambda problem: not problem.exit_code)
    ok = not any(problem.exit_code for problem in problems)
    return {**report, "problems": [asdict(p) for p in problems], "ok": ok}, problems


def lines(report: Mapping[str, Any], columns: int | None, everything: bool) -> Iterator[str]:
    """The verdict: whether it works and, if llama.cpp does, uses a GPU, texts are exact and drafts pay; with
    `everything` all that was found; then the problems and what to do about them.
    """
    works = "works" if report["ok"] else f"does not work: {report['problems'][0]['what']}"
    yield from wrapped(f"specllama {report['versions']['specllama']} {works}", columns, "", "  ")
    for label, value in _verdict(report) if report["engine"]["ok"] else ():
        yield from _row(label, value, columns, _SHORT_LABEL)
    for title, rows in _sections(report, everything):
        yield from ("", title)
        for label, value in rows:
            yield from _row(label, value, columns)
    if everything or report["problems"]:
        yield ""
        for problem in report["problems"]:
            yield from wrapped(f"problem: {problem['what']}", columns, "", "  ")
            yield from wrapped(problem["do"], columns, "  ", "  ")
        if not report["problems"]:
            yield "no problems found"
        elif report["ok"]:
            yield from wrapped("`specllama run` works all the same", columns, "", "  ")
    if not everything:
        yield ""
        yield from wrapped("specllama doctor --all shows versions, devices, caches and figures", columns)


def _sections(report: Mapping[str, Any], everything: bool) -> Iterator[tuple[str, Rows]]:
    if everything:
        yield "versions", _versions(report)
        yield "machine", _machine(report["machine"])
        yield "llama.cpp", _engine(report["engine"])
        yield "cache", _cache(report["cache"])
        yield "exactness", _exactness(report["exactness"])
        yield "stored", _stored(report["stored"])
        yield "hub", _hub(report["hub"])
        yield "configuration", _config(report["config"])
    if "rpc" in report:
        yield "RPC workers", _rpc(report["rpc"])


def _verdict(report: Mapping[str, Any]) -> Rows:
    """GPU, texts, drafting, in a sentence each."""
    machine = report["machine"]
    processor = f"the processor decodes ({machine['cpu']}, {counted(machine['physical_cores'], 'core')})"
    used = [gpu["backend"] for gpu in machine["gpus"] if gpu["usable"]]
    if used:
        yield "GPU", f"used ({', '.join(used)})"
    elif machine["gpus"]:
        yield "GPU", f"present ({machine['gpus'][0]['backend']}) and not used; {processor}"
    else:
        yield "GPU", f"none found; {processor}"
    own = (None, report["engine"]["kernels"].removesuffix("+amx"))  # AMX changes no result
    shown = [one for one in report["exactness"] if one["kernels"] in own]
    measured = list(_newest(shown))[:_MODELS]
    yield from _said("texts", [(_model(one), exactness_verdict(one)) for one in measured])
    yield from _said("drafting", [(_model(one), pays_verdict(one["pays_from"])) for one in measured])
    if not measured:
        yield "texts", "not measured yet; specllama run does it after an answer, specllama tune at once"
        yield "drafting", "not measured yet"


def _said(label: str, verdicts: Sequence[tuple[str, str]]) -> Rows:
    """Verdicts on models, those that are alike together. verdicts: (model, sentence)."""
    models: dict[str, list[str]] = {}
    for model, sentence in verdicts:
        models.setdefault(sentence, []).append(model)
    for n, (sentence, names) in enumerate(models.items()):
        which = f" ({', '.join(dict.fromkeys(names))})" if len(models) > 1 else ""
        yield "" if n else label, sentence + which


def exactness_verdict(one: Mapping[str, Any]) -> str:
    """Whether the texts of a model are the same with and without drafts. one: of the report's "exactness"."""
    if one["epsilon"] is None or one["behind"] is None:
        return "not measured yet"
    if one["epsilon"] == 0 and one["unlike"] is None:
        return "exact: the same with and without drafts, bit for bit, as far as measured"
    if one["alike"] is not None and one["alike"] >= ENOUGH_ROWS:
        return "exact: the same with and without drafts, with decodes as wide as are used"
    return "not exact: two tokens that are almost equally likely can change places; --exact prevents it"


def pays_verdict(pays_from: float | None) -> str:
    """Whether drafts pay. pays_from: the acceptance from which copied drafts do."""
    if pays_from is None:
        return "too few decodes timed to tell"
    if pays_from >= 1:
        return "does not pay here, and none is tried for long"
    return f"copies pay from an acceptance of {max(1.0, 100 * pays_from):.0f} %, drafts of a model from more"


def _newest(measurements: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The newest measurements of each model, number of threads and kernels."""
    seen = set()
    for one in measurements:
        key = one["model"], one["quant"], str(one["threads"]), one["kernels"]
        if key not in seen:
            seen.add(key)
            yield one


def _model(one: Mapping[str, Any]) -> str:
    name = called(one["model"] or "unknown model", one["quant"])
    return " ".join(filter(None, (name, one["quant"])))


def _versions(report: Mapping[str, Any]) -> Rows:
    v = report["versions"]
    yield "specllama", v["specllama"]
    yield "Python", f"{v['python']} ({v['python_path']})"
    yield "system", v["system"]
    yield "llama-cpp-python", v["llama_cpp_python"] or "not installed"
    if v["llama_cpp"]:
        yield "llama.cpp", f"{v['llama_cpp']}, ggml {v['ggml']}"
    demo = report["demo_model"]
    yield "demo model", demo["path"] if demo["on_disk"] else "not on disk; specllama pull demo fetches it"
    pair = report["embedded_pair"]
    yield "embedded pair", f"whole, context {pair['n_ctx']}" if pair["ok"] else "cannot be used"


def _machine(m: Mapping[str, Any]) -> Rows:
    yield "processor", m["cpu"]
    yield "cores", f"{m['physical_cores']} for this process ({m['logical_cpus']} logical in the machine)"
    yield "memory", f"{size(m['memory_available'])} available of {size(m['memory_total'])}"
    for gpu in m["gpus"]:
        state = "used" if gpu["usable"] else f"not used by this build: {gpu['rebuild']}"
        yield "GPU", f"{gpu['backend']}, {state}"
    if not m["gpus"]:
        yield "GPU", "none found"


def _engine(e: Mapping[str, Any]) -> Rows:
    if not e["ok"]:
        yield "engine", f"does not start: {e['error']}"
        return
    yield "engine", f"starts in {e['start_seconds']:.1f} s"
    yield "backends", ", ".join(e["backends"])
    for device in e["devices"]:
        memory = f", {size(device['free'])} free of {size(device['total'])}" if device["total"] else ""
        yield "device", f"{device['name']}: {device['description']}{memory}"
    for backend, features in e["features"].items():
        yield "built for", f"{backend}: {' '.join(features)}"
    yield "kernels", e["kernels"] or f"llama.cpp's own: {e['kernels_reason']}"
    words = {"mmap": "mmap", "mlock": "mlock", "rpc": "RPC workers"}
    yield "supports", ", ".join(word for name, word in words.items() if e[name]) or "nothing more"


def _cache(c: Mapping[str, Any]) -> Rows:
    yield "directory", c["path"] + ("" if c["writable"] else " (cannot be written)")
    broken = f", {c['broken']} broken and not used" if c["broken"] else ""
    yield "calibrations", f"{c['calibrations']}{broken}"
    kept = c["prompts"]
    yield "prompts", f"{kept['number']}, {size(kept['bytes'])}; specllama cache lists them"
    yield "size", f"{_total(c, 'bytes')}, {size(c['free_disk'])} free on the disk"


def _exactness(measurements: Sequence[Mapping[str, Any]]) -> Rows:
    for one in _newest(measurements):
        with_ = _setting(one)
        figures = [f"t(1) {1000 * one['t1']:.2f} ms"] if one["t1"] is not None else []
        if one["epsilon"] is not None:
            figures.append(f"epsilon {one['epsilon']:.2g}")
        yield _model(one), f"{', '.join([*with_, *figures]) or 'no figures'}: {one['meaning']}"
    if not measurements:
        yield "models", "nothing measured yet; `specllama run` does it after an answer"


def _setting(one: Mapping[str, Any]) -> list[str]:
    with_ = [f"threads {'/'.join(map(str, one['threads']))}"] if one["threads"] else []
    if one["kernels"] is not None:
        with_.append(f"kernels {one['kernels']}" if one["kernels"] else "llama.cpp's own kernels")
    return with_


def _stored(report: Mapping[str, Any]) -> Rows:
    for one in report["models"]:
        lora = [f"{counted(one['lora'], 'adapter')}"] if one["lora"] else []
        widths = [f"decodes of {', '.join(map(str, one['widths']))} rows timed"] if one["widths"] else []
        compared = [f"rows compared {age(one['compared'])} ago"] if one["compared"] is not None else []
        change = [f"another number of rows costs {1000 * one['change']:.1f} ms"] if one["change"] else []
        exact = [f"--exact with {one['exact_width']:.0f} rows"] if one["exact_width"] else []
        figures = [*_setting(one), *lora, *widths, *compared, *change, *exact]
        yield _model(one), f"{', '.join(figures) or 'no figures'}; written {age(one['age'])} ago"
        for pair in one["pairs"]:
            if pair["draft"] is None and not pair["tokens"]:
                continue
            step = [f"{1000 * pair['step']:.2f} ms a token"] if pair["step"] is not None else []
            right = [
                f"{name}: {100 * pair['acceptance'][name]:.0f} % of {n:.0f} right"
                for name, n in pair["tokens"].items()
            ]
            yield "", f"drafts of {pair['draft'] or 'no model'}: {', '.join([*step, *right]) or 'no figures'}"
    if report["read_rate"] is not None:
        yield "prompts", f"read from the disk at {size(report['read_rate'])} a second"
    if not report["models"] and report["read_rate"] is None:
        yield "figures", "none yet"


def _hub(h: Mapping[str, Any]) -> Rows:
    yield "cache", h["cache"] + ("" if h["cache_writable"] else " (cannot be written)")
    yield "size", f"{_total(h, 'cache_bytes')}, {size(h['free_disk'])} free on the disk"
    if h["offline"]:
        answers = "not asked, HF_HUB_OFFLINE is set"
    else:
        answers = "answers" if h["answers"] and not h["reason"] else h["reason"]
    yield "endpoint", f"{h['endpoint']}: {answers}"
    yield "token", h["token"] if h["token"] == "not set" else f"set ({h['token']})"


def _config(c: Mapping[str, Any]) -> Rows:
    for file in c["files"]:
        sets = f"sets {', '.join(file['sets'])}" if file["sets"] else "sets nothing"
        yield "file", f"{file['path']}: {sets if file['ok'] else 'cannot be used'}"
    if not c["files"]:
        yield "files", "none"
    for path in c["models"]:
        yield "models", path
    if c["environment"]:
        yield "environment", ", ".join(c["environment"])


def _rpc(workers: Sequence[Mapping[str, Any]]) -> Rows:
    for worker in workers:
        if not worker["ok"]:
            yield worker["endpoint"], "cannot be used"
            continue
        memory = "; ".join(f"{size(d['free'])} free of {size(d['total'])}" for d in worker["devices"])
        yield worker["endpoint"], f"protocol {worker['protocol']}, {memory}"


def _total(part: Mapping[str, Any], name: str) -> str:
    return size(part[name]) if part[f"{name}_complete"] else f"at least {size(part[name])}"


def _row(label: str, value: str, columns: int | None, width: int = _LABEL) -> Iterator[str]:
    if columns is not None and columns < _NARROW:
        yield from wrapped(label, columns, "  ", "  ")
        yield from wrapped(value, columns, "    ", "    ")
    else:
        yield from wrapped(f"{label:{width}} {value}", columns, "  ", " " * (width + 3))
