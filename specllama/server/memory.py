"""The memory of a server: what is free, and what becomes free when a model is unloaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from specllama.client.model_info import DeviceInfo, LoadInfo
from specllama.models.memory.available import available_memory, mapped_memory
from specllama.server.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Resident:
    """A model in memory. busy: whether it is in use. used_at: when it was last. host_bytes, device_bytes:
    that
    become free when it is unloaded.
    """

    id: str
    busy: bool
    used_at: float
    host_bytes: int
    device_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FreeGpu:
    """A GPU. free: bytes. unified: its memory is the host's (Apple)."""

    name: str
    free: int
    unified: bool = False


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free memory next to all models. host: bytes. gpus: of the build."""

    host: int
    gpus: tuple[FreeGpu, ...] = ()

    def without(self, residents: Iterable[Resident]) -> FreeMemory:
        """The free memory after these have left; of several GPUs in proportion to what is free of each."""
        host, device = self.host, 0
        for one in residents:
            host, device = host + one.host_bytes, device + one.device_bytes
        free = sum(gpu.free for gpu in self.gpus)
        shares = [gpu.free / free if free else 1 / len(self.gpus) for gpu in self.gpus]
        gpus = [replace(g, free=g.free + int(device * s)) for g, s in zip(self.gpus, shares, strict=True)]
        return FreeMemory(host, tuple(gpus))


class MemoryLedger:
    """The free memory of host and GPUs. available: bytes that the system says can be allocated.

    The system counts mapped files as available, also those of models in use: what they have in memory is
    subtracted. Of GPUs is known what was free after the last load; what left since is added.
    """

    def __init__(self, available: Callable[[], int] = available_memory) -> None:
        self._available = available
        self._gpus: tuple[DeviceInfo, ...] = ()
        self._freed = 0  # bytes of GPUs, since then

    def free(self, supervisors: Iterable[Supervisor]) -> FreeMemory:
        """What is free next to these models, all that are in memory."""
        host = self._available() - sum(map(_mapped, supervisors))
        total = sum(gpu.total for gpu in self._gpus) or 1
        unified = sys.platform == "darwin"
        gpus = [FreeGpu(gpu.name, gpu.free + self._freed * gpu.total // total, unified) for gpu in self._gpus]
        return FreeMemory(max(0, host), tuple(gpus))

    def loaded(self, info: LoadInfo) -> None:
        """A model was loaded."""
        self._gpus, self._freed = info.details.gpus, 0

    def unloaded(self, info: LoadInfo) -> None:
        """A model was unloaded."""
        self._freed += info.details.device_bytes


def _mapped(supervisor: Supervisor) -> int:
    """Bytes of the model's file that are in memory and that the system counts as available."""
    pid = supervisor.pid
    if pid is None or not supervisor.settings.target.use_mmap:
        return 0
    found = mapped_memory(pid)
    return supervisor.info.file_bytes if found is None else found
