"""What `doctor` says of RPC workers, where it is asked to (--rpc)."""

from __future__ import annotations

from typing import Any

from specllama.cli.doctor.words import Problem
from specllama.client.rpc_probe import probe_all
from specllama.config.rpc_endpoints import endpoints
from specllama.errors import SpecllamaError


def workers(given: str, problems: list[Problem]) -> list[dict[str, Any]]:
    """Each worker with version and memory in bytes, or why it cannot be used. Raises UsageError for what is
    no list of workers.
    """
    found = []
    for endpoint, answer in probe_all(endpoints(given)):
        if isinstance(answer, SpecllamaError):
            problems.append(Problem(answer.message, answer.hint, answer.exit_code))
            found.append({"endpoint": endpoint, "ok": False, "error": answer.message})
        else:
            devices = [{"free": free, "total": total} for free, total in answer.devices]
            about = {"address": answer.address, "protocol": answer.protocol, "devices": devices}
            found.append({"endpoint": endpoint, "ok": True, **about})
    return found
