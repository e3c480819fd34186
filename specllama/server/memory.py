"""Free memory of the host and the GPUs, and what evicting models adds to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from specllama.client.model_info import DeviceInfo, LoadInfo
from specllama.models.memory.available import DeviceMemory, available_memory, mapped_memory
from specllama.server.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """busy: whether requests use it. used_at: its last use. host_bytes, device_bytes: freed by unloading."""

    id: str
    busy: bool
    used_at: float
    host_bytes: int
    device_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Memory that no loaded model uses. host: bytes. gpus: those of the build of llama.cpp."""

    host: int
    gpus: tuple[DeviceMemory, ...] = ()

    def after_evicting(self, models: Iterable[LoadedModel]) -> FreeMemory:
        """The free memory without these models; device_bytes are split over GPUs by their free memory."""
        host, device = self.host, 0
        for one in models:
            host, device = host + one.host_bytes, device + one.device_bytes
        free = sum(gpu.free for gpu in self.gpus)
        shares = [gpu.free / free if free else 1 / len(self.gpus) for gpu in self.gpus]
        gpus = [replace(g, free=g.free + int(device * s)) for g, s in zip(self.gpus, shares, strict=True)]
        return FreeMemory(host, tuple(gpus))


class MemoryLedger:
    """The free memory of host and GPUs. available: bytes that the system says can be allocated.

    The system counts mapped files as available, also those of loaded models, so their resident pages are
    subtracted. For GPUs, the free memory of the last load is kept, and what was unloaded since added.
    """

    def __init__(self, available: Callable[[], int] = available_memory) -> None:
        self._available = available
        self._gpus: tuple[DeviceInfo, ...] = ()
        self._freed = 0  # bytes of GPUs unloaded since the last load

    def free(self, supervisors: Iterable[Supervisor]) -> FreeMemory:
        """The free memory. supervisors: of all loaded models."""
        host = self._available() - sum(map(_mapped, supervisors))
        total = sum(gpu.total for gpu in self._gpus) or 1
        unified = sys.platform == "darwin"
        gpus = [
            DeviceMemory(gpu.name, gpu.free + self._freed * gpu.total // total, unified) for gpu in self._gpus
        ]
        return FreeMemory(max(0, host), tuple(gpus))

    def loaded(self, info: LoadInfo) -> None:
        self._gpus, self._freed = info.gpus, 0

    def unloaded(self, info: LoadInfo) -> None:
        self._freed += info.device_bytes


def _mapped(supervisor: Supervisor) -> int:
    """Resident bytes of the model's mapped file, which the system counts as available."""
    pid = supervisor.pid
    if pid is None or not supervisor.settings.target.use_mmap:
        return 0
    n_bytes = mapped_memory(pid)
    return supervisor.info.file_bytes if n_bytes is None else n_bytes
