"""How much memory this process may still take: the machine's, and what its control groups leave.

Knows nothing about models.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

UNKNOWN = 1 << 62  # bytes: where it cannot be told, nothing is refused


def available_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be allocated without swapping: MemAvailable, or less where a cgroup (v1, v2) limits it.

    macOS: free, speculative, purgeable and file-backed pages. Elsewhere UNKNOWN.
    """
    if sys.platform == "darwin":
        return _macos()
    return min([_mem_available(proc), *_cgroup_rooms(proc, cgroup)])


def _mem_available(proc: Path) -> int:
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return UNKNOWN


def _cgroup_rooms(proc: Path, cgroup: Path) -> Iterator[int]:
    """Bytes left in every control group that holds this process, from its own up to the root."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, usage = cgroup, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount, limit, usage = cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # Inside a container the path may be the host's and not exist here: then the mount is the group.
        group = mount / path.lstrip("/")
        while group == mount or mount in group.parents:
            yield _room(group, limit, usage)
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


_FILE_PAGES = ("inactive_file", "active_file")  # the kernel drops them before it refuses memory


def _macos() -> int:
    names = ("free_count", "speculative_count", "purgeable_count", "pageable_external_count")
    keys = ["hw.pagesize", *(f"vm.page_{name}" for name in names)]
    try:
        done = subprocess.run(["sysctl", "-n", *keys], capture_output=True, text=True, timeout=5, check=True)
        page, *counts = (int(word) for word in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return UNKNOWN
    return page * sum(counts)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
