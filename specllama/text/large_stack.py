"""Runs work of libraries that recurse once per character or rule on a stack that is large enough for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from specllama.errors import ResourceError

_Result = TypeVar("_Result")
_STACK = 192 * 1024 * 1024  # bytes; used only as far as needed
_START = threading.Lock()  # the stack size of new threads is a setting of the whole process


def with_large_stack(work: Callable[[], _Result]) -> _Result:
    """The result of `work`, run in a thread of its own whose stack is freed with it. Raises what it raises,
    ResourceError without memory for the stack.
    """
    results: list[_Result] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            problems.append(error)

    thread = threading.Thread(target=run, name="specllama-stack", daemon=True)
    with _START:
        before = threading.stack_size(_STACK)
        try:
            thread.start()
        except RuntimeError:
            raise ResourceError(
                f"there is no memory for a stack of {_STACK >> 20} MB, which this text or grammar needs",
                "raise the limit on virtual memory (ulimit -v), or break it up",
            ) from None
        finally:
            threading.stack_size(before)
    thread.join()
    if problems:
        raise problems[0]
    return results[0]
