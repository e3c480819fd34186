"""The report of `doctor` on specllama's own files: the cache, calibrations, stored figures, prompts.

Files of other versions may lack any figure; nothing is decided from them here.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from specllama.clock import running_time
from specllama.config import store
from specllama.core.replay.break_even import acceptance_needed
from specllama.errors import SpecllamaError
from specllama.json_types import JsonObject
from specllama.prefix_disk.directory import StateDirectory, default_directory

_SECONDS = 2.0  # for adding up a directory
_MIN_SAMPLES = 3  # of a width, to say what it costs
# Figures of the report, and their names in calibrations.
_COMPARED = {
    "t1": "t1", "epsilon": "epsilon", "rows": "n_rows", "behind": "reach",
    "alike": "alike", "unlike": "unlike",
}  # fmt: skip
_Kind = TypeVar("_Kind")
Calibrations = Sequence[tuple[Path, JsonObject]]  # files and their contents, the newest first


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, and the remedy. exit_code: of `run` because of it, 0 if `run` works."""

    what: str
    do: str
    exit_code: int = 0


@contextlib.contextmanager
def reported(problems: list[Problem], do: str, prefix: str = "") -> Iterator[list[str]]:
    """Add an error of the block to the problems instead of raising it.

    do: about an error without a hint. prefix: of the problem's text. Yields a list that gets the message.
    """
    messages: list[str] = []
    try:
        yield messages
    except SpecllamaError as error:
        messages.append(error.message)
        problems.append(Problem(prefix + error.message, error.hint or do, error.exit_code))


def calibrations() -> Calibrations:
    """Those of this version that are whole."""
    there = []
    for file in _calibration_files():
        with contextlib.suppress(OSError, ValueError):
            if file.suffix == ".json":
                there.append((file.stat().st_mtime, file, store.stored_object(file)))
    return [(file, data) for _, file, data in sorted(there, key=lambda one: -one[0])]


def _calibration_files() -> list[Path]:
    try:
        return sorted(file for file in (store.cache_dir() / "calibration").iterdir() if file.is_file())
    except OSError:
        return []


def cache(usable: Calibrations, problems: list[Problem]) -> JsonObject:
    """The cache's path, whether it can be written, its bytes, how many calibrations are usable and broken,
    and how many evaluated prompts are on disk.
    """
    path = store.cache_dir()
    if problem := writing_problem(path):
        what = f"nothing is remembered between runs: {path} {problem}"
        problems.append(Problem(what, "make it writable, or set SPECLLAMA_CACHE to a directory that is"))
    n_files = sum(file.suffix in (".json", ".broken") for file in _calibration_files())
    n_bytes, complete = directory_size(path)
    sizes: Mapping[str, int] = {}
    with contextlib.suppress(OSError):
        sizes = StateDirectory(default_directory()).sizes()
    return {
        "path": str(path),
        "writable": not problem,
        "bytes": n_bytes,
        "bytes_complete": complete,
        "free_disk": store.free_bytes(path),
        "calibrations": len(usable),
        "broken": n_files - len(usable),
        "prompts": {"number": len(sizes), "bytes": sum(sizes.values())},
    }


def exactness(usable: Calibrations) -> list[JsonObject]:
    """Of each calibration: model, t(1) in seconds, epsilon in logits, how many rows were compared, after how
    many tokens at most, from how many rows on batches differ, what that means, and when copied drafts pay.
    """
    shown = []
    for file, data in usable:
        figures = {name: number(data.get(stored)) for name, stored in _COMPARED.items()}
        words = meaning(*(figures[name] for name in ("epsilon", "behind", "alike", "unlike")))
        more = {"meaning": words, "pays_from": pays_from(data.get("curves")), "file": str(file)}
        shown.append({**_readable_key(data), **figures, **more})
    return shown


def pays_from(curves: Any) -> float | None:
    """The acceptance from which copied drafts of the best length pay, by the stored times of decodes; None
    where they are unknown. curves: of a calibration, each with [rows, seconds, samples].
    """
    with contextlib.suppress(AttributeError, TypeError, ValueError, KeyError, ArithmeticError):
        for curve in curves.values():
            seconds = {int(n): float(t) for n, t, count in curve["widths"] if count >= _MIN_SAMPLES and t > 0}
            needed = [acceptance_needed(n - 1, t / seconds[1]) for n, t in seconds.items() if n > 1]
            if needed:
                return min(needed)
    return None


def meaning(
    epsilon: float | None,
    reach: float | None,
    equal_up_to: float | None = None,
    unequal_from: float | None = None,
) -> str:
    """The meaning of a comparison of rows for the texts. equal_up_to, unequal_from: see Calibration."""
    if epsilon is None or reach is None:
        return "not measured"
    after = f"after texts of up to {reach:.0f} tokens"
    most = f"batches of up to {equal_up_to or 2:.0f} rows are bit-equal to single rows {after}"
    if unequal_from is None and epsilon == 0:
        return most
    if equal_up_to is not None and equal_up_to >= store.ENOUGH_ROWS:
        return f"{most}; wider ones are not used"
    differ = f"batched and single rows differ by up to {epsilon:.2g} {after}"
    return f"{differ}; near-ties are counted, --exact makes all decodes equally wide"


def stored(usable: Calibrations) -> JsonObject:
    """All that is stored, on this machine."""
    ledger = StateDirectory(default_directory()).read_ledger()
    now = time.time()
    return {
        "models": [_profile(file, data, now) for file, data in usable],
        "read_rate": ledger.load_rate or None,
    }


def _profile(file: Path, data: JsonObject, now: float) -> JsonObject:
    at = number(part(object, data, "measured", "comparison"))
    curves = part(dict, data, "curves") or {}
    return {
        **_readable_key(data),
        "lora": len(part(list, data, "key", "lora") or ()),
        "age": max(0.0, now - file.stat().st_mtime),
        "t1": number(data.get("t1")),
        "widths": sorted({point[0] for curve in curves.values() for point in _points(curve)}),
        "compared": max(0.0, now - at) if at is not None else None,
        "change": number(data.get("change")),
        "exact_width": number(data.get("exact_width")),
        "pairs": [
            _pair(one)
            for one in part(list, data, "pairs") or ()
            if part(dict, one, "pair") is not None and part(dict, one, "learnt") is not None
        ],
        "file": str(file),
    }


def _points(curve: object) -> Iterator[list[Any]]:
    for point in part(list, curve, "widths") or ():
        if isinstance(point, list) and len(point) == 3 and isinstance(point[0], int):
            yield point


def _pair(one: object) -> JsonObject:
    """The figures that were learnt with a draft."""
    name, quant = (part(object, one, "pair", "draft", "model", i) for i in (0, 2))
    tokens, acceptance = dict[str, float](), dict[str, float]()
    for of, table in (part(dict, one, "learnt", "tables") or {}).items():
        right, seen = (
            sum(number(x) or 0.0 for x in part(list, table, name) or ()) for name in ("right", "seen")
        )
        if seen:
            tokens[of], acceptance[of] = seen, right / seen
    models = (part(dict, one, "learnt", "priced") or {}).values()
    steps = (point for model in models for point in _points(part(dict, model, "steps")))
    return {
        "draft": f"{name} {quant}" if name else None,
        "drafters": [str(x) for x in part(list, one, "pair", "drafters") or ()],
        "step": next((number(point[1]) for point in steps if point[0] == 1), None),
        "tokens": tokens,
        "acceptance": acceptance,
    }


def _readable_key(data: JsonObject) -> JsonObject:
    """Model and setting of the figures of a calibration; devices without their descriptions."""
    names = (part(str, pair, 0) for pair in part(list, data, "key", "devices") or ())
    return {
        "model": part(str, data, "key", "model", 0),
        "quant": part(str, data, "key", "model", 2),
        "devices": [name for name in names if name is not None] or None,
        "threads": part(list, data, "key", "threads"),
        "kernels": part(str, data, "kernels"),
    }


def part(kind: type[_Kind], data: object, *path: str | int) -> _Kind | None:
    """A part of stored JSON by its keys and indexes, None where it is not there or of another type."""
    for name in path:
        if isinstance(data, dict):
            data = data.get(name)
        elif isinstance(data, list) and isinstance(name, int) and name < len(data):
            data = data[name]
        else:
            return None
    return data if isinstance(data, kind) else None


def number(value: Any) -> float | None:
    """A stored number, None for anything else."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if number else None


def writing_problem(path: Path) -> str:
    """Why nothing can be written into a directory that may not exist yet; "" where it can."""
    there = next((p for p in (path, *path.parents) if os.path.lexists(p)), path)
    if not there.is_dir():
        return "is not a directory" if there == path else f"cannot be made: {there} is not a directory"
    if there != path:
        return "" if os.access(there, os.W_OK | os.X_OK) else f"cannot be made: {there} is not writable"
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
    except OSError as error:
        return f"cannot be written: {error.strerror or error}"
    return ""


def directory_size(path: Path) -> tuple[int, bool]:
    """Bytes of the files under a directory, without links; False where adding up took too long."""
    total, ends = 0, running_time() + _SECONDS
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                info = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            total += info.st_size if stat.S_ISREG(info.st_mode) else 0
        if running_time() > ends:
            return total, False
    return total, True
