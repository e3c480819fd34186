"""`specllama rpc-worker`: lends this machine's devices to a model that runs elsewhere."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specllama import rpc
from specllama.cli import console
from specllama.cli.answer import engine_log
from specllama.cli.options import checked_threads
from specllama.client.client import EngineClient
from specllama.client.tune_messages import Serve, Serving
from specllama.config.store import cache_dir
from specllama.errors import UsageError
from specllama.models.quants import size

SCHEMA = "specllama.rpc-worker/1"
_OF_DEVICE = ("name", "description", "free", "total")


def rpc_worker(given: Mapping[str, Any]) -> int:
    """Serve until something ends it. Raises SpecllamaError."""
    request = _request(given)
    host, _, port = request.address.rpartition(":")
    if not ipaddress.ip_address(host).is_loopback:
        console.warning(
            f"anyone who reaches {request.address} can use this machine and perhaps take it over: the "
            "protocol has no password and no encryption. Listen in a network that you trust, or at "
            f"127.0.0.1 through a tunnel (ssh -N -L {port}:127.0.0.1:{port} THIS_MACHINE)"
        )
    with EngineClient(engine_log(None, request.verbose), console.note) as client:
        serving = client.serve(request)
        for line in _lines(serving):
            console.note(line)
        devices = [{name: getattr(d, name) for name in _OF_DEVICE} for d in serving.devices]
        report = {"schema": SCHEMA, **asdict(serving), "devices": devices}
        # Last: a program that waits for it may then end this process.
        console.report(given, report, [serving.endpoint])
        client.wait()


def _request(given: Mapping[str, Any]) -> Serve:
    """The request of a command line. Raises UsageError, ResourceError."""
    n_threads, memory = checked_threads(given), given.get("memory", 0.0)
    if "memory" in given and not (math.isfinite(memory) and 0 < memory < 1e9):
        raise UsageError(f"--memory must be some GB above 0, not {memory:g}")
    devices = [name.strip() for name in given.get("devices", "").split(",") if name.strip()]
    host, port = rpc.listen_address(given.get("host", "127.0.0.1"), given.get("port", rpc.PORT))
    cache = str(cache_dir() / "rpc" / f"{host}-{port}") if given.get("cache") else ""
    address = f"{host}:{port}"
    return Serve(address, devices, n_threads, int(memory * 1e9), cache, given.get("verbose", False))


def _lines(serving: Serving) -> list[str]:
    lines = [f"RPC worker at {serving.endpoint}, protocol {serving.protocol}; Ctrl-C ends it"]
    for d in serving.devices:
        memory = f"{size(d.free)} free of {size(d.total)}"
        threads = f", threads {serving.n_threads}" if d.name == "CPU" else ""
        lines.append(f"{d.name}: {d.description}, {memory}{threads}")
    if serving.cache:
        lines.append(f"tensors are kept in {serving.cache}")
    lines.append(f"to use it: specllama run --rpc {serving.endpoint} -m main.gguf -p '...'")
    return lines
