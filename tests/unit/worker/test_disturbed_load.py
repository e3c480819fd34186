"""What a load measures next to other programs counts in its process, and is not stored."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from specllama.config.store import Store
from specllama.core.replay.simulator import ChangingDevice, SimulatedClock
from specllama.other_work import OtherWork, ProcessorTime
from specllama.worker.draft import warm_up_target
from specllama.worker.loader import Loaded
from specllama.worker.profile import ModelProfile
from tests.support.devices import DeviceContext, curves

KEY, PAIR = {"model": "a"}, {"draft": "b"}
N_CPUS = 16


def others(n_threads: int, n_busy: int) -> OtherWork:
    """Other programs keep so many of 16 processors busy for a second; the load uses one."""
    readings = [ProcessorTime(0, 0, 0), ProcessorTime(100 * N_CPUS, 100 * (N_CPUS - 1 - n_busy), 100)]
    return OtherWork(n_threads, N_CPUS, lambda: readings.pop(0))


def loaded(folder: Path, work: OtherWork, slower: float = 1.0) -> ModelProfile:
    """The profile after the first decodes of a load on a GPU."""
    device, clock = ChangingDevice.from_dict(curves()["padded 4B Q4_0"]), SimulatedClock(lambda _: slower)
    profile = ModelProfile(Store(folder), KEY, PAIR, True, clock.clock, lambda: 1e9)
    context = cast(Any, DeviceContext(device, clock, n_spare=256))
    warm_up_target(context, profile, clock.clock, work)
    return profile


def n_working(n_gpu_layers: int, **target: Any) -> int:
    settings = SimpleNamespace(target=SimpleNamespace(**({"n_cpu_moe": 0, "override_tensor": ()} | target)))
    plan = SimpleNamespace(target=SimpleNamespace(n_gpu_layers=n_gpu_layers))
    context, header = SimpleNamespace(n_threads_batch=N_CPUS), SimpleNamespace(n_layer=32)
    one = SimpleNamespace(settings=settings, plan=plan, context=context, header=header)
    return cast(Any, Loaded.n_working).fget(one)  # type: ignore[no-any-return]


def test_a_load_needs_one_thread_where_all_layers_are_on_devices() -> None:
    assert n_working(33) == 1
    assert [n_working(0), n_working(32)] == [N_CPUS] * 2
    assert n_working(33, n_cpu_moe=4) == n_working(33, override_tensor=(("exps", "CPU"),)) == N_CPUS
    assert not others(n_working(33), 12).disturbs
    assert others(n_working(32), 12).disturbs


def test_the_first_times_and_a_change_count_in_this_process(tmp_path: Path) -> None:
    quiet = loaded(tmp_path / "quiet", others(1, 0))
    profile = loaded(tmp_path, others(N_CPUS, 12))
    assert profile.change_seconds == quiet.change_seconds
    assert profile.change_seconds
    assert profile.curves.at(0).times == quiet.curves.at(0).times
    assert profile.planner_of([]).change_seconds == profile.change_seconds


def test_none_of_them_is_stored_until_a_round_has_measured_it(tmp_path: Path) -> None:
    profile = loaded(tmp_path, others(N_CPUS, 12))
    profile.observe_plain(10, 0.005)
    profile.flush()
    data = profile.store.read(KEY)
    assert (data["curves"], "change" in data, "t1" in data) == ({}, False, False)
    profile.curves.at(0).observe(8, profile.curves.at(0).predict(8))
    profile.observe_plain(10, 0.005)
    profile.flush()
    assert [n for n, _, _ in profile.store.read(KEY)["curves"]["0"]["widths"]] == [8]
    quiet = loaded(tmp_path, others(1, 0))
    assert quiet.store.read(KEY) == profile.store.read(KEY)
    quiet.flush()
    assert {"change", "curves"} <= quiet.store.read(KEY).keys()
    assert len(quiet.store.read(KEY)["curves"]["0"]["widths"]) > 8


@pytest.mark.parametrize("slower", [1.0, 1.4, 2.0])
def test_what_is_stored_keeps_its_shape(tmp_path: Path, slower: float) -> None:
    quiet = loaded(tmp_path, others(1, 0))
    quiet.flush()
    before = quiet.store.read(KEY)
    profile = loaded(tmp_path, others(N_CPUS, 12), slower)
    now, then = profile.curves.at(0), quiet.curves.at(0)
    assert now.predict(8) / now.predict(1) == pytest.approx(then.predict(8) / then.predict(1))
    assert now.predict(1) == pytest.approx(slower * then.predict(1), rel=0.3)
    assert profile.change_seconds == quiet.change_seconds
    profile.observe_change(quiet.change_seconds or 0.0)
    profile.flush()
    after = profile.store.read(KEY)
    assert (after["change"], len(after["curves"]["0"]["widths"])) == (
        before["change"],
        len(before["curves"]["0"]["widths"]),
    )
