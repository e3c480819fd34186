"""What `doctor` learns from an engine process, which alone may load llama.cpp, and whether the embedded pair
could be loaded.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from typing import Any

from specllama.cli.doctor import Problem
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import SpecllamaError

SECONDS = 60.0  # for an engine process to start


def engine(problems: list[Problem]) -> dict[str, Any]:
    """The build of llama.cpp (protocol.BuildInfo) and "start_seconds"; or "ok" False and "error"."""
    from specllama.client.client import EngineClient

    started, late = time.monotonic(), threading.Event()
    try:
        with EngineClient() as client:

            def give_up() -> None:
                late.set()
                client.close()

            timer = threading.Timer(SECONDS, give_up)
            timer.start()
            try:
                found = client.inspect()
            finally:
                timer.cancel()
            return {"ok": True, "start_seconds": round(time.monotonic() - started, 3), **asdict(found)}
    except SpecllamaError as error:
        what = f"the engine process did not start within {SECONDS:g} s" if late.is_set() else error.message
        problems.append(Problem(what, error.hint or "install specllama again", error.exit_code))
        return {"ok": False, "error": what}


def embedded_pair(problems: list[Problem]) -> dict[str, Any]:
    """Whether the models that come with specllama are whole and fit into memory."""
    from specllama.gguf.check import check_model
    from specllama.gguf.header import read_model
    from specllama.models.memory.available import available_memory
    from specllama.models.memory.plan import PlanSettings, plan_memory

    try:
        headers = [read_model(str(path)) for path in (EMBEDDED_TARGET, EMBEDDED_DRAFT)]
        for header in headers:
            check_model(header)
        plan = plan_memory(headers[0], headers[1], PlanSettings(available=available_memory()))
        return {"ok": True, "n_ctx": plan.n_ctx}
    except SpecllamaError as error:
        do = error.hint or "install specllama again"
        problems.append(Problem(f"the embedded pair cannot be used: {error.message}", do, error.exit_code))
        return {"ok": False, "error": error.message}
