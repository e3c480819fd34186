"""The resources of this machine: memory and cores that this process may use, and the GPUs that are present.

Knows nothing about models, nor whether the build of llama.cpp can use those GPUs.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specllama.processor_time import output_of

UNKNOWN = 1 << 62  # bytes, so that nothing is refused if the memory cannot be determined
NO_QUOTA = 1 << 16  # CPUs
_FILE_PAGES = ("inactive_file", "active_file")  # page cache, which the kernel drops if memory is short


@dataclass(frozen=True)
class DeviceMemory:
    """A device to offload layers to. free: bytes. unified: its memory is the host's (Apple)."""

    name: str
    free: int
    unified: bool = False


def available_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be allocated without swapping: MemAvailable, or less if a cgroup (v1, v2) limits it.

    macOS: free, speculative, purgeable and file-backed pages. Elsewhere UNKNOWN.
    """
    if sys.platform == "darwin":
        return _macos()
    lines = _text(proc / "meminfo").splitlines()
    rooms = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")][:1]
    for group, unified in _groups(proc, cgroup, "memory"):
        names = ("max", "current") if unified else ("limit_in_bytes", "usage_in_bytes")
        rooms.append(_room(group, *(f"memory.{name}" for name in names)))
    return min(rooms, default=UNKNOWN)


def mapped_memory(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Bytes of mapped files of a process in memory, which count as available; None where unknown."""
    words = _text(proc / str(pid) / "statm").split()  # in pages: size, resident, shared, ...
    if len(words) < 3 or not words[2].isdigit():
        return None
    return int(words[2]) * os.sysconf("SC_PAGE_SIZE")


def physical_cores(root: Path = Path("/")) -> int:
    """Physical cores that affinity and the cgroup's quota allow, at least 1."""
    if platform.system() == "Darwin":
        for key in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
            count = (output_of(["sysctl", "-n", key], 5.0) or "").strip()
            if count.isdigit():
                return int(count)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"  # the same for one core
    cores = {_text(root / siblings.format(cpu)).strip() or str(cpu) for cpu in allowed}
    cgroup = root / "sys/fs/cgroup"
    groups = [*_groups(root / "proc", cgroup, "cpu"), (cgroup, True), (cgroup / "cpu", False)]
    return max(1, min(len(cores), *(_quota_of(group, unified) for group, unified in groups)))


def machine_key() -> list[str | int]:
    """This machine, in keys of stored figures. platform.processor(), once in it, starts a process."""
    return [platform.machine(), "", physical_cores()]


def gpus_present(root: Path = Path("/")) -> list[str]:
    """The GPUs of the system, each named by its llama.cpp backend: "cuda", "metal", "vulkan"."""
    backends = []
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        backends.append("metal")
    if (root / "dev/nvidia0").exists() or (root / "proc/driver/nvidia/gpus").is_dir():
        backends.append("cuda")
    elif any((root / "dev/dri").glob("renderD*")):
        backends.append("vulkan")
    return backends


def _groups(proc: Path, cgroup: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Each control group of this process, up to the root, all of whose limits hold; whether it is v2."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = cgroup / controller if controllers else cgroup
        # Inside a container the path may be the host's and not exist here: then the mount is the group.
        group = mount / path.lstrip("/")
        while group == mount or mount in group.parents:
            yield group, not controllers
            if group == mount:
                break
            group = group.parent


def _room(group: Path, limit: str, usage: str) -> int:
    allowed, used = _text(group / limit).strip(), _text(group / usage).strip()
    if not allowed.isdigit() or not used.isdigit():
        return UNKNOWN
    stat = dict(line.split(maxsplit=1) for line in _text(group / "memory.stat").splitlines() if " " in line)
    names = ("total_inactive_file", "total_active_file") if "total_inactive_file" in stat else _FILE_PAGES
    cache = sum(int(stat.get(name, 0)) for name in names)
    return max(int(allowed) - int(used) + cache, 0)


def _macos() -> int:
    names = ("free_count", "speculative_count", "purgeable_count", "pageable_external_count")
    keys = ["hw.pagesize", *(f"vm.page_{name}" for name in names)]
    try:
        page, *counts = (int(word) for word in (output_of(["sysctl", "-n", *keys], 5.0) or "").split())
    except ValueError:
        return UNKNOWN
    return page * sum(counts)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _quota_of(group: Path, unified: bool) -> int:
    """Whole CPUs that a control group lets this process use; NO_QUOTA without a limit."""
    if unified:
        words = _text(group / "cpu.max").split()
    else:
        words = [_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):
        return NO_QUOTA  # "max", or -1
    limit, period = map(int, words)
    return max(1, limit // period)
