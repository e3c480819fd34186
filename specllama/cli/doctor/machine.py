"""The report of `doctor` on the machine, llama.cpp, the models of the package, configuration and the hub."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import urlsplit

import specllama
from specllama.cli.doctor.files import Problem, directory_size, reported, writing_problem
from specllama.client.client import EngineClient
from specllama.clock import ended, running_time, wait_until
from specllama.config import sources
from specllama.config.places import working_directory
from specllama.config.store import free_bytes
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import EngineDiedError, EngineError, SpecllamaError
from specllama.gguf.header import read_model
from specllama.heads.check import check_model
from specllama.json_types import JsonObject
from specllama.models import manifest
from specllama.models.demo import DemoStore
from specllama.models.hub.env import DEFAULT_ENDPOINT, hub_cache, hub_endpoint, is_offline, token_source
from specllama.models.memory.available import UNKNOWN, available_memory, gpus_present, physical_cores
from specllama.models.memory.plan import PlanSettings, plan_memory
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
    "text with drafts may differ from text without them where tokens are almost equally likely, and small "
    "batches are slower"
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
        "environment": sorted(v for v in environ if v.startswith(sources.PREFIX)),
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
    if problem := writing_problem(path):
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
        "free_disk": free_bytes(path),
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
