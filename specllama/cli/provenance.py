"""Where and when figures were measured, as all reports of them begin."""

from __future__ import annotations

import datetime
import platform
from typing import Any

import specllama
from specllama.models.memory.available import physical_cores


def provenance(n_threads: int) -> dict[str, Any]:
    """Version, time and machine. n_threads: that decoded."""
    return {
        "version": specllama.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": physical_cores(),
            "n_threads": n_threads,
        },
    }
