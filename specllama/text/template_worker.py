"""The process that renders chat templates, `python -m specllama.text.template_worker`.

It reads JSON lines from stdin and answers on stdout. The first one compiles the template, each of the others
renders messages with it.

The system bounds each of them: it ends the process after some processor time, in the middle of any operation,
and gives it no more than some memory. The parent (template_process.py) reports that, and starts another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypedDict

from specllama.errors import SpecllamaError
from specllama.json_types import JsonObject
from specllama.text.chat_template import ChatTemplate
from specllama.text.prompt_parts import nested_too_deeply
from specllama.text.template_process import MAX_BYTES, OUT_OF_MEMORY

_CHECK_SECONDS = 0.02
_KILOBYTE = 1 if sys.platform == "darwin" else 1024  # bytes in the unit of ru_maxrss

RenderedPart = tuple[str, bool]  # text, parse_special


class TemplateAnswer(TypedDict, total=False):
    """A line that answers one: the parts, or the fields of a SpecllamaError."""

    parts: list[RenderedPart]
    error: JsonObject


def main() -> None:
    """Serve until stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
    reader, writer = os.fdopen(0, "rb", closefd=False), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _restrict()
    template: ChatTemplate | None = None

    def compiled(given: JsonObject) -> list[RenderedPart]:
        nonlocal template
        template = ChatTemplate(**given)
        return []

    def rendered(given: JsonObject) -> list[RenderedPart]:
        assert template is not None
        parts = template.render(given["messages"], **given["variables"])
        return [(part.text, part.parse_special) for part in parts]

    for line in reader:
        answer = _answer(line, compiled if template is None else rendered)
        writer.write(json.dumps(answer).encode() + b"\n")
        writer.flush()


def _answer(line: bytes, work: Callable[[JsonObject], list[RenderedPart]]) -> TemplateAnswer:
    try:
        request = json.loads(line)
        with _limited(request["seconds"]):
            return {"parts": work(request["given"])}
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except RecursionError:
        return {"error": nested_too_deeply().to_dict()}
    except SpecllamaError as error:
        return {"error": error.to_dict()}


def _restrict() -> None:
    """No core dump, which would hold users' texts, and no files: a template writes nothing."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Within the block the system ends the process after `seconds` of the processor, even inside an operation
    that Python could not interrupt. Raises MemoryError, or ends with OUT_OF_MEMORY, beyond MAX_BYTES.
    """
    with _limited_memory():
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends a process
        try:
            yield
        finally:
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_PROF, 0)


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    import resource

    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
        before, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = used + MAX_BYTES if hard == resource.RLIM_INFINITY else min(hard, used + MAX_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (before, hard))
        return
    done = threading.Event()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTE + MAX_BYTES

    def watch() -> None:
        while not done.is_set():
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KILOBYTE > most:
                os._exit(OUT_OF_MEMORY)
            time.sleep(_CHECK_SECONDS)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


if __name__ == "__main__":
    main()
