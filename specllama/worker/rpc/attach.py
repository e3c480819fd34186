"""Attaches the RPC workers of a load: probes them, adds them to llama.cpp's devices, and detects their loss.

The target is placed on them; the draft stays on this machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from specllama.client import protocol
from specllama.config.load import LoadSettings
from specllama.errors import EngineDiedError, NetworkError, Note, SpecllamaError, UsageError, option
from specllama.llama.library import devices
from specllama.llama.rpc import add_worker, on_abort, require_rpc
from specllama.rpc.probe import PROBE_SECONDS, Worker, find_workers
from specllama.worker.rpc import serve

Send = Callable[[protocol.Message], None]


def attach(settings: LoadSettings, send: Send) -> LoadSettings:
    """Add the workers of the settings to llama.cpp's devices. Returns the settings with the draft's devices.

    By default the target uses all workers and GPUs, and the draft the local GPUs, or else the CPU. If a
    worker is lost later, ggml aborts the process, after `send` has received the reason. Raises NetworkError,
    UsageError, EngineError if llama.cpp was built without RPC.
    """
    require_rpc()
    workers = find_workers(settings.rpc)
    on_abort(lambda message: send(protocol.Failed(_lost(workers, message).to_dict())))
    for worker in workers:
        _add(worker)
    for sock in serve.connections_to({worker.address for worker in workers}):
        serve.keep_alive(sock)
    local = tuple(d.name for d in devices() if d.gpu and not d.remote) or ("none",)
    draft = settings.draft
    if draft is not None and not draft.devices:
        draft = replace(draft, devices=local)
    settings = replace(settings, draft=draft)
    _check_use(settings)
    return settings


def placement_notes(settings: LoadSettings, n_gpu_layers: int, n_layer: int) -> list[Note]:
    """A note about the devices that hold the target's layers."""
    target = settings.target
    if not n_gpu_layers or target.devices == ("none",):
        return []
    used = [d for d in devices() if d.gpu and (not target.devices or d.name in target.devices)]
    if target.split_mode == "none":
        used = used[target.main_gpu :][:1]
    names = [f"{d.name} ({d.description})" if d.remote else d.name for d in used]
    return [Note(f"{n_gpu_layers} of {n_layer + 1} layers of the target are on {', '.join(names)}")]


def _add(worker: Worker) -> None:
    """Add a worker. In a thread: ggml waits forever if another client has connected since the probe."""
    errors: list[SpecllamaError] = []

    def add() -> None:
        try:
            add_worker(worker.address)
        except SpecllamaError as error:
            errors.append(error)

    thread = threading.Thread(target=add, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    if thread.is_alive():
        raise NetworkError(
            f"the RPC worker {worker.endpoint} is busy: another client has connected to it",
            "try again later",
        )
    if errors:
        raise errors[0]


def _check_use(settings: LoadSettings) -> None:
    """Raise UsageError for settings that llama.cpp could not load, or that leave the workers unused."""
    present = devices()
    remote, target = {d.name for d in present if d.remote}, settings.target
    named = {*target.devices, *(settings.draft.devices if settings.draft else ())}
    if named - {d.name for d in present} - {"none"}:
        return  # an unknown device: the load reports it
    if target.devices and not named & remote:
        raise UsageError(
            f"{option('rpc')} names workers and {option('devices')} leaves them out",
            f"omit {option('devices')}, or name them: {', '.join(sorted(remote))}",
        )
    if target.split_mode == "row" and (not target.devices or remote & set(target.devices)):
        raise UsageError(
            f"{option('split_mode', 'row')} cannot be used with RPC workers",
            f"omit it, or use {option('split_mode', 'layer')}",
        )


def _lost(workers: Sequence[Worker], message: str) -> EngineDiedError:
    """The error to report when ggml aborts with this message; names the lost worker if it is known."""
    if "rpc" not in message.lower():
        return EngineDiedError(f"llama.cpp ended the engine process: {message.rpartition(': ')[2]}")
    lost = serve.lost({worker.address for worker in workers})
    names = [w.endpoint for w in workers if w.address in lost] or [w.endpoint for w in workers]
    which = "the RPC worker" if len(names) == 1 else "the RPC workers" if lost else "one of the RPC workers"
    return EngineDiedError(
        f"the connection to {which} {', '.join(names)} was lost: it ended, or the network failed",
        "check it, then run the command again",
    )
