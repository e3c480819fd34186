"""Cores and GPUs, read from a fake /sys."""

# ruff: noqa: ARG005
from __future__ import annotations

import os
import platform
import subprocess

import pytest

from specllama.models.memory import available
from specllama.models.memory.available import gpus_present, machine_key, physical_cores


@pytest.fixture(autouse=True)
def linux(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    allow(monkeypatch, range(8))


def allow(monkeypatch, cpus) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cpus), raising=False)


def write(root, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def topology(root, siblings: dict[int, str]) -> None:
    write(
        root,
        {
            f"sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list": f"{s}\n"
            for c, s in siblings.items()
        },
    )


def test_threads_of_one_core_count_once(tmp_path):
    topology(tmp_path, {c: f"{c % 4},{c % 4 + 4}" for c in range(8)})
    assert physical_cores(tmp_path) == 4


def test_only_allowed_cores_count(tmp_path, monkeypatch):
    topology(tmp_path, {c: f"{c % 4},{c % 4 + 4}" for c in range(8)})
    allow(monkeypatch, [0, 4, 1])
    assert physical_cores(tmp_path) == 2


def test_without_topology_each_cpu_is_a_core(tmp_path):
    assert physical_cores(tmp_path) == 8


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
        ({"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"sys/fs/cgroup/cpu.max": "9900000 100000\n"}, 8),
        ({"sys/fs/cgroup/cpu.max": "nonsense"}, 8),
        ({"sys/fs/cgroup/cpu.max": "100000 0"}, 8),
        (
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            2,
        ),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000"}, 8),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "0"}, 8),
        # of a group within others, such as a systemd service with CPUQuota=, or a slice around it
        (
            {
                "proc/self/cgroup": "0::/a.slice/b.service",
                "sys/fs/cgroup/a.slice/b.service/cpu.max": "200000 100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "0::/a.slice/b.service",
                "sys/fs/cgroup/a.slice/b.service/cpu.max": "max 100000",
                "sys/fs/cgroup/a.slice/cpu.max": "300000 100000",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x/y\n2:memory:/z",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "50000",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/../host", "sys/fs/cgroup/cpu.max": "400000 100000"}, 4),
    ],
    ids=str,
)
def test_the_quota_of_the_cgroup_limits_the_cores(tmp_path, files, cores):
    write(tmp_path, files)
    assert physical_cores(tmp_path) == cores


def test_there_is_always_one_core(tmp_path, monkeypatch):
    allow(monkeypatch, [])
    assert physical_cores(tmp_path) == 1


def test_this_machine_gives_plausible_values(monkeypatch):
    monkeypatch.undo()
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)
    assert set(gpus_present()) <= {"cuda", "metal", "vulkan"}


def test_macos_counts_the_performance_cores(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(available, "output_of", lambda command, seconds: "6\n")
    assert physical_cores(tmp_path) == 6


@pytest.mark.parametrize(
    ("files", "present"),
    [
        ({}, []),
        ({"dev/nvidia0": ""}, ["cuda"]),
        ({"proc/driver/nvidia/gpus/0000:01:00.0/information": ""}, ["cuda"]),
        ({"dev/dri/renderD128": ""}, ["vulkan"]),
        ({"dev/dri/card0": ""}, []),
        ({"dev/dri/renderD128": "", "dev/nvidia0": ""}, ["cuda"]),
    ],
    ids=str,
)
def test_gpus_are_found_by_their_device_files(tmp_path, files, present):
    write(tmp_path, files)
    assert gpus_present(tmp_path) == present


def test_the_key_of_a_machine_starts_no_process(monkeypatch):
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: pytest.fail("a process is started"))
    monkeypatch.setattr(platform, "_uname_cache", None)  # what it has found out before
    assert machine_key() == [platform.machine(), "", physical_cores()]
