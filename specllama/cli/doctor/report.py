"""The report of `doctor`: the machine, llama.cpp, the models of the package, configuration, the hub, and
specllama's own files: the cache, calibrations, stored figures, prompts.

Files of other versions may lack any figure; nothing is decided from them here.
"""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import Any, TypeVar
from urllib.parse import urlsplit

import specllama
from specllama.client.client import EngineClient
from specllama.clock import ended, running_time, wait_until
from specllama.config import sources, store
from specllama.config.places import working_directory
from specllama.core.replay.break_even import acceptance_needed
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import EngineDiedError, EngineError, SpecllamaError
from specllama.gguf.header import read_model
from specllama.heads.check import check_model
from specllama.json_types import JsonObject
from specllama.models import manifest
from specllama.models.demo import DemoStore, called
from specllama.models.hub.env import DEFAULT_ENDPOINT, hub_cache, hub_endpoint, is_offline, token_source
from specllama.models.memory.available import UNKNOWN, available_memory, gpus_present, physical_cores
from specllama.models.memory.plan import PlanSettings, plan_memory
from specllama.prefix_disk.directory import StateDirectory, default_directory
from specllama.processor_time import of_tree, output_of, wait_while_working
from specllama.rpc import endpoints, probe_all

_CMAKE = {"cuda": "-DGGML_CUDA=ON", "metal": "-DGGML_METAL=ON", "vulkan": "-DGGML_VULKAN=ON"}
_COMPILERS = {"cuda": ("nvcc", "the CUDA toolkit"), "vulkan": ("glslc", "the Vulkan SDK")}


def versions(engine: Mapping[str, Any]) -> JsonObject:
    """Versions of specllama, Python, system and llama.cpp; None for a part that does not load."""
    return {
        "specllama": specllama.__version__,
        "python": platform.python_version(),
        "python_path": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "llama_cpp_python": engine.get("llama_cpp_python", _installed()),
        "llama_cpp": engine.get("llama_cpp"),
        "ggml": engine.get("ggml"),
    }


def machine(engine: Mapping[str, Any], problems: list[Problem]) -> JsonObject:
    """Processor, memory in bytes (None where unknown), the GPUs and whether the build uses them."""
    usable = any(device["gpu"] for device in engine.get("devices", []))
    present = gpus_present()
    for name in present:
        if engine["ok"] and not usable:
            tool, kit = _COMPILERS.get(name, ("", ""))
            missing = f" (needs {kit}; {tool} is not on the path)" if tool and not which(tool) else ""
            what = f"a GPU is present ({name}), and this build of llama.cpp cannot use it"
            problems.append(Problem(what, f"rebuild it: {rebuild(name)}{missing}"))
    available, total = available_memory(), None
    with contextlib.suppress(AttributeError, ValueError, OSError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": processor(engine),
        "physical_cores": physical_cores(),
        "logical_cpus": os.cpu_count(),
        "memory_total": total,
        "memory_available": None if available >= UNKNOWN else available,
        "gpus": [{"backend": name, "usable": usable, "rebuild": rebuild(name)} for name in present],
    }


def processor(engine: Mapping[str, Any], root: Path = Path("/")) -> str:
    """The processor's name according to llama.cpp, else to the system."""
    for device in engine.get("devices", []):
        if not device["gpu"] and device["name"] == "CPU":
            return str(device["description"])
    if platform.system() == "Darwin":
        name = output_of(["sysctl", "-n", "machdep.cpu.brand_string"], 5.0) or ""
        return name.strip() or platform.machine()
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    return platform.processor() or platform.machine()


def rebuild(backend: str) -> str:
    """The command that builds llama.cpp for a backend: this checkout's script, or pip's."""
    if (Path(specllama.__file__).parent.parent / "scripts" / "specllama").is_file():
        return f"SPECLLAMA_BACKEND={backend} scripts/specllama"
    version = _installed()
    package = f"llama-cpp-python=={version}" if version else "llama-cpp-python"
    pip = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python"
    return f"CMAKE_ARGS={_CMAKE[backend]} {pip} {package}"


def _installed() -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("llama-cpp-python")
    return None


# llama.cpp, which only an engine process may load, and the models that come with specllama.


_WITHOUT_KERNELS = (
    "small batches are slower, and beyond what was measured text with drafts may differ from text without "
    "them where tokens are almost equally likely"
)
START_SECONDS = 600.0  # of work, for an engine process to start: it may have to compile
IDLE_SECONDS = 60.0  # for which it may stand still meanwhile


def engine(problems: list[Problem]) -> JsonObject:
    """The build of llama.cpp (BuildInfo) and "start_seconds"; or "ok" False and "error"."""
    started = running_time()
    with reported(problems, "install specllama again") as messages, EngineClient() as client:
        with _time_limit(client):
            build = client.inspect()
        if not build.kernels:
            what = f"specllama's kernels are not used ({build.kernels_reason}): {_WITHOUT_KERNELS}"
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
    """Close the client if its process works for more than START_SECONDS during the block, or stands still for
    IDLE_SECONDS. Raises EngineDiedError then.
    """
    done, over = threading.Event(), [""]

    def watch() -> None:
        over[0] = wait_while_working(done.wait, of_tree(client.pid), START_SECONDS, IDLE_SECONDS)
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
    with reported(problems, "install specllama again", "the embedded pair cannot be used: ") as messages:
        headers = [read_model(str(path)) for path in (EMBEDDED_TARGET, EMBEDDED_DRAFT)]
        for header in headers:
            check_model(header)
        plan = plan_memory(headers[0], headers[1], PlanSettings(available=available_memory()))
        return {"ok": True, "n_ctx": plan.n_ctx}
    return {"ok": False, "error": messages[0]}


def config(environ: Mapping[str, str], problems: list[Problem]) -> JsonObject:
    """Configuration files as they are read, with their keys; names of variables; files models.toml."""
    files: list[JsonObject] = []
    user = _or_problem(lambda: sources.user_file(environ), problems)
    cwd = working_directory()
    if cwd is None:
        problems.append(Problem("the working directory is gone", "change to another directory"))
    project = None if cwd is None else _or_problem(lambda: sources.project_file(cwd, user), problems)
    for path in (user, project):
        if path is not None:
            reader = (
                sources.read_file if path is user else partial(sources.read_project_file, environ=environ)
            )
            values = _or_problem(partial(reader, path), problems)
            files.append({"path": str(path), "ok": values is not None, "sets": sorted(values or {})})
    _or_problem(lambda: sources.read_environment(environ), problems)
    known = _or_problem(lambda: manifest.load(environ), problems)
    models = [] if known is None else [str(path) for path in (known.user, known.project) if path is not None]
    return {
        "files": files,
        "models": models,
        "environment": sorted(v for v in environ if v.startswith((sources.PREFIX, "LLAMA_CPP_LIB_PATH"))),
    }


def _or_problem(read: Callable[[], Any], problems: list[Problem]) -> Any:
    """The result of `read`, None after an error, which is reported."""
    with reported(problems, "correct it or remove it"):
        return read()


def workers(given: str, problems: list[Problem]) -> list[JsonObject]:
    """Each RPC worker with version and memory in bytes, or why it cannot be used.

    given: the value of --rpc. Raises UsageError if it is not a list of workers.
    """
    workers: list[JsonObject] = []
    for endpoint, answer in probe_all(endpoints(given)):
        if isinstance(answer, SpecllamaError):
            problems.append(Problem(answer.message, answer.hint, answer.exit_code))
            workers.append({"endpoint": endpoint, "ok": False, "error": answer.message})
        else:
            devices = [{"free": free, "total": total} for free, total in answer.devices]
            about = {"address": answer.address, "protocol": answer.protocol, "devices": devices}
            workers.append({"endpoint": endpoint, "ok": True, **about})
    return workers


# The Hugging Face hub: its cache on this disk, whether it answers and a token is set.
#
# No token gets into the report, and none is sent.


NO_ADDRESS = "is not an http or https address"
SECONDS = 3.0
_NO_ANSWER = f"gave no answer within {SECONDS:g} s"


class Probe:
    """Sends the hub a request in a thread of its own: resolving its name or a proxy may take any time."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.endpoint = hub_endpoint(environ)
        self.status: int | None = None
        self.problem = ""
        self._ends = running_time() + SECONDS
        self._thread: threading.Thread | None = None
        if is_offline(environ):
            return
        try:
            parts = urlsplit(self.endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1:
                raise ValueError
        except ValueError:
            self.problem = NO_ADDRESS
            return
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until there is an answer, or its time is over."""
        if self._thread is None or wait_until(ended(self._thread), self._ends - running_time()):
            return
        self.problem = _NO_ANSWER

    def _ask(self) -> None:
        import httpx2

        try:
            self.status = httpx2.head(f"{without_secrets(self.endpoint)}/", timeout=SECONDS).status_code
        except httpx2.TimeoutException:
            self.problem = _NO_ANSWER
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, OSError, ImportError) as error:
            self.problem = f"cannot be reached: {str(error) or type(error).__name__}"


def hub(environ: Mapping[str, str], probe: Probe, problems: list[Problem]) -> JsonObject:
    """The cache (links not followed), free bytes there, the endpoint; "answers" is None when offline."""
    path, offline = hub_cache(environ), is_offline(environ)
    if problem := store.writing_problem(path):
        do = "make it writable, or set HF_HUB_CACHE to a directory that is"
        problems.append(Problem(f"models cannot be downloaded: {path} {problem}", do))
    probe.wait()
    failing = probe.problem or (f"answers {probe.status}" if (probe.status or 0) >= 500 else "")
    if failing:
        do = f"set HF_ENDPOINT to one, as {DEFAULT_ENDPOINT}"
        if probe.problem != NO_ADDRESS:
            do = "check the network and the proxy variables; models that are on disk work without it"
        problems.append(Problem(f"the hub {without_secrets(probe.endpoint)} {failing}", do))
    n_bytes, complete = directory_size(path)
    return {
        "cache": str(path),
        "cache_writable": not problem,
        "cache_bytes": n_bytes,
        "cache_bytes_complete": complete,
        "free_disk": store.free_bytes(path),
        "endpoint": without_secrets(probe.endpoint),
        "offline": offline,
        "answers": None if offline else not probe.problem,
        "status": probe.status,
        "reason": failing,
        "token": token_source(environ),
    }


def without_secrets(url: str) -> str:
    """An address without user, password and query."""
    try:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(no address)"
    return f"{parts.scheme}://{host}{port}{parts.path}" if parts.scheme and host else "(no address)"


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
    if problem := store.writing_problem(path):
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
        "draft": f"{called(str(name), str(quant))} {quant}" if name else None,
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
