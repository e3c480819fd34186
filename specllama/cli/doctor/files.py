"""What `doctor` reports on specllama's own cache: where it is, its size, its calibrations."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specllama.cli.doctor import Problem, reported
from specllama.clock import running_time
from specllama.config import store
from specllama.core.replay.break_even import acceptance_needed
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import EngineDiedError, EngineError, SpecllamaError
from specllama.json_types import JsonObject
from specllama.models.demo import DemoStore
from specllama.prefix_disk.directory import StateDirectory, default_directory
from specllama.processor_time import of_tree, wait_while_working

if TYPE_CHECKING:
    from specllama.client.client import EngineClient


_SECONDS = 2.0  # for adding up a directory
_MIN_SAMPLES = 3  # of a width, to say what it costs


def cache(problems: list[Problem]) -> JsonObject:
    """The cache's path, whether it can be written, its bytes, how many calibrations are usable and broken."""
    path = store.cache_dir()
    if problem := writing_problem(path):
        what = f"nothing is remembered between runs: {path} {problem}"
        problems.append(Problem(what, "make it writable, or set SPECLLAMA_CACHE to a directory that is"))
    stored = list(files(path / "calibration"))
    whole = sum(calibration(file) is not None for file in stored if file.suffix == ".json")
    broken = sum(file.suffix in (".json", ".broken") for file in stored) - whole
    n_bytes, complete = directory_size(path)
    return {
        "path": str(path),
        "writable": not problem,
        "bytes": n_bytes,
        "bytes_complete": complete,
        "free_disk": free_disk(path),
        "calibrations": whole,
        "broken": broken,
        "prompts": prompts(),
    }


def prompts() -> JsonObject:
    """How many evaluated prompts are on disk, and their bytes."""
    directory = StateDirectory(default_directory())
    try:
        sizes = directory.sizes()
    except OSError:
        sizes = {}
    return {"number": len(sizes), "bytes": sum(sizes.values())}


def exactness() -> list[JsonObject]:
    """Each calibration, the newest first: model, t(1) in seconds, epsilon in logits, how many rows were
    compared, after how many tokens at most, from how many rows on batches differ, what that means, and from
    which acceptance copied drafts pay.
    """
    stored = [(file, calibration(file)) for file in files(store.cache_dir() / "calibration")]
    newest = sorted(((f.stat().st_mtime, f, data) for f, data in stored if data), key=lambda x: -x[0])
    return [
        {
            **readable_key(data),
            "t1": number(data.get("t1")),
            "epsilon": number(data.get("epsilon")),
            "rows": number(data.get("n_rows")),
            "behind": number(data.get("reach")),
            "alike": number(data.get("alike")),
            "unlike": number(data.get("unlike")),
            "meaning": meaning(*(number(data.get(name)) for name in ("epsilon", "reach", "alike", "unlike"))),
            "pays_from": pays_from(data.get("curves")),
            "file": str(file),
        }
        for _, file, data in newest
    ]


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
    """What a comparison of rows means for the texts, in words. equal_up_to, unequal_from: see Calibration."""
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


def calibration(file: Path) -> JsonObject | None:
    """The content of a file; None where it is no calibration of this version."""
    try:
        return store.stored_object(file) if file.suffix == ".json" else None
    except (OSError, ValueError):
        return None


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


def free_disk(path: Path) -> int | None:
    """Bytes free where a directory is or would be made."""
    for there in (path, *path.parents):
        try:
            return shutil.disk_usage(there).free
        except OSError:
            continue
    return None


def files(directory: Path) -> Iterator[Path]:
    """The files of a directory, by name."""
    try:
        yield from sorted(file for file in directory.iterdir() if file.is_file())
    except OSError:
        return


def readable_key(data: Mapping[str, Any]) -> JsonObject:
    """What the figures of a calibration belong to; files of other versions may lack any of it."""
    key, kernels = data.get("key"), data.get("kernels")
    key = key if isinstance(key, dict) else {}
    model, threads = key.get("model"), key.get("threads")
    name, _, quant = model[:3] if isinstance(model, list) and len(model) >= 3 else (None, None, None)
    return {
        "model": name if isinstance(name, str) else None,
        "quant": quant if isinstance(quant, str) else None,
        "devices": _names(key.get("devices")),
        "threads": threads if isinstance(threads, list) else None,
        "kernels": kernels if isinstance(kernels, str) else None,
    }


def _names(devices: Any) -> list[str] | None:
    """The names of devices, without their descriptions."""
    pairs = devices if isinstance(devices, list) else []
    names = [pair[0] for pair in pairs if isinstance(pair, list) and pair and isinstance(pair[0], str)]
    return names or None


def number(value: Any) -> float | None:
    """A stored number, None for anything else."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if number else None


# What `doctor` reports on llama.cpp, which only an engine process may load, and on specllama's models.


_WITHOUT_KERNELS = (
    "text with drafts may differ from text without them where tokens are almost equally likely, and small "
    "batches are slower"
)
SECONDS = 600.0  # of work, for an engine process to start: it may have to compile
IDLE_SECONDS = 60.0  # for which it may stand still meanwhile


def engine(problems: list[Problem]) -> JsonObject:
    """The build of llama.cpp (BuildInfo) and "start_seconds"; or "ok" False and "error"."""
    from specllama.client.client import EngineClient

    started = running_time()
    with reported(problems, "install specllama again") as messages, EngineClient() as client:
        with _time_limit(client):
            build = client.inspect()
        if not build.kernels:
            what = f"specllama's kernels are not used, {build.kernels_reason}: {_WITHOUT_KERNELS}"
            problems.append(Problem(what, "docs/exactness.md says what the kernels need"))
        return {"ok": True, "start_seconds": round(running_time() - started, 3), **asdict(build)}
    return {"ok": False, "error": messages[0]}


def check_rpc(started: Mapping[str, Any], problems: list[Problem]) -> None:
    """Add a problem if the build of llama.cpp, as `engine` reports it, cannot use RPC workers."""
    if started["ok"] and not started["rpc"]:
        what = "this build of llama.cpp has no RPC backend, which --rpc needs"
        problems.append(Problem(what, "docs/install.md has the command that adds it", EngineError.exit_code))


@contextlib.contextmanager
def _time_limit(client: EngineClient) -> Iterator[None]:
    """Close the client if its process works for more than SECONDS during the block, or stands still for
    IDLE_SECONDS. Raises EngineDiedError then.
    """
    done, over = threading.Event(), [""]

    def watch() -> None:
        over[0] = wait_while_working(done.wait, of_tree(client.pid), SECONDS, IDLE_SECONDS)
        if over[0]:
            client.close()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    except SpecllamaError as error:
        if not over[0]:
            raise
        what = f"the engine process did not start: it {over[0]}"
        raise EngineDiedError(what, error.hint) from None
    finally:
        done.set()
        thread.join()


def demo_model(problems: list[Problem]) -> JsonObject:
    """Where the demo model is stored, and whether it is there; it may be absent."""
    store = DemoStore()
    if store.path.exists() and not store.is_on_disk():
        what = f"{store.path} is incomplete, so that the embedded pair answers where no model is named"
        problems.append(Problem(what, "specllama pull demo fetches it again"))
    return {"name": store.model.name, "path": str(store.path), "on_disk": store.is_on_disk()}


def embedded_pair(problems: list[Problem]) -> JsonObject:
    """Whether the models that come with specllama are intact and fit into memory."""
    from specllama.gguf.header import read_model
    from specllama.heads.check import check_model
    from specllama.models.memory.available import available_memory
    from specllama.models.memory.plan import PlanSettings, plan_memory

    with reported(problems, "install specllama again", "the embedded pair cannot be used: ") as messages:
        headers = [read_model(str(path)) for path in (EMBEDDED_TARGET, EMBEDDED_DRAFT)]
        for header in headers:
            check_model(header)
        plan = plan_memory(headers[0], headers[1], PlanSettings(available=available_memory()))
        return {"ok": True, "n_ctx": plan.n_ctx}
    return {"ok": False, "error": messages[0]}
