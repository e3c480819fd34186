"""The report of `doctor` for people: sections of labels and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specllama.cli.formatting import wrapped
from specllama.models.sizes import size

_LABEL = 16  # columns
_NARROW = 50  # columns of a terminal in which values go below their labels
Rows = Iterator[tuple[str, str]]


def lines(report: Mapping[str, Any], columns: int | None) -> Iterator[str]:
    """The report, then the problems and what to do about them."""
    sections = {
        "versions": _versions(report),
        "machine": _machine(report["machine"]),
        "llama.cpp": _engine(report["engine"]),
        "cache": _cache(report["cache"]),
        "exactness": _exactness(report["exactness"]),
        "hub": _hub(report["hub"]),
        "configuration": _config(report["config"]),
        **({"RPC workers": _rpc(report["rpc"])} if "rpc" in report else {}),
    }
    for title, rows in sections.items():
        yield title
        for label, value in rows:
            yield from _row(label, value, columns)
        yield ""
    for problem in report["problems"]:
        yield from wrapped(f"problem: {problem['what']}", columns, "", "  ")
        yield from wrapped(problem["do"], columns, "  ", "  ")
    if not report["problems"]:
        yield "no problems found"
    elif report["ok"]:
        yield from wrapped("`specllama run` works all the same", columns, "", "  ")


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
        yield (
            "GPU",
            f"{gpu['backend']}, {'used' if gpu['usable'] else 'not used by this build: ' + gpu['rebuild']}",
        )
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


def _exactness(found: Sequence[Mapping[str, Any]]) -> Rows:
    for one in found:
        name = " ".join(filter(None, (one["model"] or "unknown model", one["quant"])))
        with_ = [f"threads {'/'.join(map(str, one['threads']))}"] if one["threads"] else []
        figures = [f"t(1) {1000 * one['t1']:.2f} ms"] if one["t1"] is not None else []
        if one["epsilon"] is not None:
            figures.append(f"epsilon {one['epsilon']:.2g}")
        yield name, f"{', '.join([*with_, *figures]) or 'no figures'}: {one['meaning']}"
    if not found:
        yield "models", "nothing measured yet; `specllama run` does it after an answer"


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


def _row(label: str, value: str, columns: int | None) -> Iterator[str]:
    if columns is not None and columns < _NARROW:
        yield from wrapped(label, columns, "  ", "  ")
        yield from wrapped(value, columns, "    ", "    ")
    else:
        yield from wrapped(f"{label:{_LABEL}} {value}", columns, "  ", " " * (_LABEL + 3))
