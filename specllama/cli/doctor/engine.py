"""What `doctor` reports on llama.cpp, which only an engine process may load, and on specllama's models."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypedDict

from specllama.cli.doctor import Problem, reported
from specllama.clock import running_time
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import EngineDiedError, EngineError, SpecllamaError
from specllama.json_types import JsonObject
from specllama.models.demo import DemoStore
from specllama.processor_time import of_tree, wait_while_working

if TYPE_CHECKING:
    from specllama.client.client import EngineClient

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


class DemoReport(TypedDict):
    """The demo model and where it is stored."""

    name: str
    path: str
    on_disk: bool


class EmbeddedPairReport(TypedDict, total=False):
    """The embedded pair: its context with `ok`, else what is wrong."""

    ok: bool
    n_ctx: int
    error: str


def demo_model(problems: list[Problem]) -> DemoReport:
    """Where the demo model is stored, and whether it is there; it may be absent."""
    store = DemoStore()
    if store.path.exists() and not store.is_on_disk():
        what = f"{store.path} is incomplete, so that the embedded pair answers where no model is named"
        problems.append(Problem(what, "specllama pull demo fetches it again"))
    return {"name": store.model.name, "path": str(store.path), "on_disk": store.is_on_disk()}


def embedded_pair(problems: list[Problem]) -> EmbeddedPairReport:
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
