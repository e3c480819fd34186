"""The event loop of everything that serves or waits: its time stands still while this process does.

All timers of asyncio and uvicorn are those of the loop, so that none of them counts a pause.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from specllama.clock import running_time

if sys.platform == "win32":
    _Base = asyncio.ProactorEventLoop
else:
    _Base = asyncio.SelectorEventLoop
Result = TypeVar("Result")


class RunningLoop(_Base):
    """The system's usual loop by `running_time`."""

    def time(self) -> float:
        """Seconds in which this process has run."""
        return running_time()


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """As asyncio.run, in a RunningLoop."""
    with asyncio.Runner(loop_factory=RunningLoop) as runner:
        return runner.run(main)
