"""RPC workers of a load: probed, added to llama.cpp's devices, watched. The target goes to them, the draft
stays here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from specllama.client import protocol
from specllama.config.load import LoadSettings
from specllama.errors import EngineDiedError, NetworkError, Note, SpecllamaError, UsageError, option
from specllama.llama.devices import devices
from specllama.llama.rpc import add_worker, on_abort
from specllama.rpc.probe import PROBE_SECONDS, Worker, find_workers
from specllama.worker.rpc import sockets

Send = Callable[[protocol.Message], None]


def attach(settings: LoadSettings, send: Send) -> LoadSettings:
    """Add the workers of the settings to the devices; the settings with the draft's devices chosen.

    By default the target has all workers and GPUs, the draft the GPUs here or else the CPU. Should a worker
    be lost later, ggml ends the process; `send` gets the reason before. Raises NetworkError, UsageError.
    """
    if not settings.rpc:
        return settings
    found = find_workers(settings.rpc)
    on_abort(lambda words: send(protocol.Failed(_lost(found, words).to_dict())))
    for worker in found:
        _add(worker)
    for sock in sockets.connections_to({worker.address for worker in found}):
        sockets.keep_alive(sock)
    here = tuple(d.name for d in devices() if d.gpu and not d.remote) or ("none",)
    draft = settings.draft
    if draft is not None and not draft.devices:
        draft = replace(draft, devices=here)
    settings = replace(settings, draft=draft)
    _check_use(settings)
    return settings


def placement_notes(settings: LoadSettings, n_gpu_layers: int, n_layer: int) -> list[Note]:
    """On which workers the target's layers are."""
    target = settings.target
    if not settings.rpc or not n_gpu_layers or target.devices == ("none",):
        return []
    used = [d for d in devices() if d.gpu and (not target.devices or d.name in target.devices)]
    if target.split_mode == "none":
        used = used[target.main_gpu :][:1]
    names = [f"{d.name} ({d.description})" if d.remote else d.name for d in used]
    return [Note(f"{n_gpu_layers} of {n_layer + 1} layers of the target are on {', '.join(names)}")]


def _add(worker: Worker) -> None:
    """Add a worker. ggml waits without end for one that has accepted another client since it was probed."""
    problems: list[SpecllamaError] = []

    def work() -> None:
        try:
            add_worker(worker.address)
        except SpecllamaError as error:
            problems.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    if thread.is_alive():
        raise NetworkError(
            f"the RPC worker {worker.endpoint} is busy: another client was quicker", "try again later"
        )
    if problems:
        raise problems[0]


def _check_use(settings: LoadSettings) -> None:
    """Refuse what llama.cpp could not load, and workers that are there for nothing."""
    there = devices()
    remote, target = {d.name for d in there if d.remote}, settings.target
    named = {*target.devices, *(settings.draft.devices if settings.draft else ())}
    if named - {d.name for d in there} - {"none"}:
        return  # no such device: the load reports it
    if target.devices and not named & remote:
        raise UsageError(
            f"{option('rpc')} names workers and {option('devices')} leaves them out",
            f"leave {option('devices')} away, or name them: {', '.join(sorted(remote))}",
        )
    if target.split_mode == "row" and (not target.devices or remote & set(target.devices)):
        raise UsageError(
            f"{option('split_mode', 'row')} cannot be used with RPC workers",
            f"leave it away, or use {option('split_mode', 'layer')}",
        )


def _lost(workers: Sequence[Worker], words: str) -> EngineDiedError:
    """Why ggml ends the process, with the worker's name where it is known."""
    if "rpc" not in words.lower():
        return EngineDiedError(f"llama.cpp ended the engine process: {words.rpartition(': ')[2]}")
    lost = sockets.lost({worker.address for worker in workers})
    names = [w.endpoint for w in workers if w.address in lost] or [w.endpoint for w in workers]
    which = "the RPC worker" if len(names) == 1 else "the RPC workers" if lost else "one of the RPC workers"
    return EngineDiedError(
        f"the connection to {which} {', '.join(names)} was lost: it ended, or the network did",
        "look after it, then run the command again",
    )
