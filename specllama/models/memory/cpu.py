"""What this machine has: cores that a process may use, GPUs that are there whether or not the build can use
them.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def physical_cores(root: Path = Path("/")) -> int:
    """Physical cores allowed by affinity and cgroup quota, at least 1."""
    if platform.system() == "Darwin":
        for key in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
            asked = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, check=False)
            if asked.stdout.strip().isdigit():
                return int(asked.stdout)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_siblings(root, cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota(root)))


def _siblings(root: Path, cpu: int) -> str:
    """A name for the core that a logical CPU belongs to."""
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _quota(root: Path) -> int:
    """Whole CPUs that the cgroup lets this process use; a large number without a limit."""
    try:
        limit, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        if limit != "max":
            return max(1, int(limit) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:
        limit = (root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text()
        period = (root / "sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text()
        if int(limit) > 0:
            return max(1, int(limit) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        pass
    return 1 << 16


def gpus_present(root: Path = Path("/")) -> list[str]:
    """Kinds of GPU that the system shows, by the backend that would use them: "cuda", "metal", "vulkan"."""
    found = []
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        found.append("metal")
    if (root / "dev/nvidia0").exists() or (root / "proc/driver/nvidia/gpus").is_dir():
        found.append("cuda")
    elif any((root / "dev/dri").glob("renderD*")):
        found.append("vulkan")
    return found
