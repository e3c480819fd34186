"""What the engine core measures, learns and stores with the embedded pair, and what the next load reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.client.tune_messages import Calibrate, Calibrated, Configure
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.exact import ExactRows
from specllama.core.policy.config import DEFAULT
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.worker import idle, profile
from specllama.worker.calibrate import TIMED, Calibration
from specllama.worker.profile import ModelProfile
from tests.support.front import Front
from tests.support.generations import generate
from tests.support.stored_steps import is_kept

ZIP = [{"role": "user", "content": "zip"}]
FEW = {"max_tokens": 12, "ignore_eos": True, "seed": 5}
LONGER = {**FEW, "max_tokens": 80}
PAIR = LoadSettings(
    target=ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_ctx=512),
    draft=ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1, n_ctx=512),
)


def test_missing_widths_are_measured_in_slices_and_read_by_the_next_process(tmp_path: Path) -> None:
    first = Front(PAIR, Store(tmp_path))
    expected = first.ids(messages=ZIP, params=LONGER)
    done = first.messages[-1]
    assert isinstance(done, m.Done)
    assert done.unmeasured is True
    missing, slices = True, 0
    while missing:
        first.messages.clear()
        first.core.handle(Calibrate(1.0))
        (calibrated,) = first.messages
        assert isinstance(calibrated, Calibrated)
        missing, slices = calibrated.unmeasured, slices + 1
        assert slices < 100
    assert first.ids(messages=ZIP, params=LONGER) == expected
    done = first.messages[-1]
    assert isinstance(done, m.Done)
    assert not done.unmeasured
    assert done.stored_t1 is not None
    first.core.shut_down()
    first.close()
    (file,) = tmp_path.glob("*.json")
    counts = {n: count for n, _, count in json.loads(file.read_text())["curves"]["0"]["widths"]}
    assert all(counts[n] >= DEFAULT.min_samples for n in TIMED)
    second = Front(PAIR, Store(tmp_path))  # a load may leave out times that cannot be
    assert second.core.loaded is not None
    stored = second.core.loaded.profile
    assert stored.curves.at(0).known
    assert stored.t1 is not None
    assert is_kept(stored.t1, calibrated.t1)
    assert second.ids(messages=ZIP, params=LONGER) == expected
    second.close()


def test_a_comparison_of_as_many_rows_as_the_stored_one_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_args: object) -> None:
        calibration = _args[5]
        assert isinstance(calibration, Calibration)
        calibration.singles, calibration.changes, calibration.widths, calibration.reach = (
            [0.001],
            [0.0, 0.0],
            {2: True},
            100,
        )

    monkeypatch.setattr(profile.calibrate, "measure", measure)
    monkeypatch.setattr(profile.calibrate, "time_widths", lambda *_args: 0)
    store = Store(tmp_path)
    first = Front(PAIR, store)
    assert first.core.loaded is not None
    key = first.core.loaded.profile.key
    store.write(key, {"n_rows": 2, "reach": 100, "alike": 2})  # neither t1 nor epsilon
    first.close()
    second = Front(PAIR, store)
    second.ids(messages=ZIP, params=FEW)
    second.core.handle(Calibrate(1.0))
    second.close()
    assert (store.read(key)["t1"], store.read(key)["epsilon"]) == (0.001, 0.0)


@pytest.mark.parametrize(
    ("measure_when_idle", "calibrate"), [(True, True), (True, False), (False, True)]
)  # fmt: skip
def test_it_measures_when_idle_only_if_enabled(
    tmp_path: Path, measure_when_idle: bool, calibrate: bool
) -> None:
    front = Front(replace(PAIR, calibrate=calibrate), Store(tmp_path), measure_when_idle)
    assert front.core.step_due_in is None  # there is no text to measure on yet
    expected = front.ids(messages=ZIP, params=LONGER)
    wanted = measure_when_idle and calibrate
    due = front.core.step_due_in
    assert (due is not None and 0 < due <= idle.IDLE_SECONDS) if wanted else due is None
    front.messages.clear()
    for _ in range(400):
        if front.core.step_due_in is None:
            break
        front.core.step()
    assert front.core.step_due_in is None
    assert front.messages == []
    assert front.core.loaded is not None
    assert (front.core.loaded.profile.t1 is not None) == wanted
    assert front.ids(messages=ZIP, params=LONGER) == expected
    front.close()


def test_another_build_of_llama_cpp_is_measured_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels may differ in speed and in rounding."""
    stored = []
    for compiled in ("one", "other", "one"):
        monkeypatch.setattr(profile, "compiled", lambda compiled=compiled: compiled)
        front = Front(PAIR, Store(tmp_path))
        assert front.core.loaded is not None
        stored.append(front.core.loaded.profile.t1)
        front.ids(messages=ZIP, params=FEW)
        front.core.handle(Calibrate(1.0))
        front.core.shut_down()
        front.close()
    assert stored[:2] == [None, None]
    assert stored[2] is not None


def test_a_long_context_has_a_curve_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with another context size uses the same file. A long context has 100 ids here."""
    monkeypatch.setattr(profile, "BUCKETS", (0, 100))
    curves = []
    for n_ctx, n_prompt in ((512, 50), (1024, 120), (2048, 20)):
        target = ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_ctx=n_ctx)
        front = Front(LoadSettings(target=target), Store(tmp_path))
        front.ids(ids=[300 + i % 500 for i in range(n_prompt)], params=FEW)
        front.core.shut_down()
        front.close()
        (file,) = tmp_path.iterdir()
        curves.append(json.loads(file.read_text())["curves"])
    assert [list(stored) for stored in curves] == [["0"], ["0", "100"], ["0", "100"]]
    long = curves[1]["100"]["widths"]
    assert long[0][0] == 1
    assert curves[2]["100"]["widths"] == [
        [n, seconds, min(count, DEFAULT.min_samples)] for n, seconds, count in long
    ]


def test_configuring_keeps_what_was_learnt(front: Front) -> None:
    front.core.handle(Configure(None))
    assert front.core.engine is not None
    policy = front.core.engine.scheduler.policy
    front.ids(messages=ZIP, params=FEW)
    front.core.handle(Configure(4))
    assert front.core.engine.scheduler.policy is not policy
    front.ids(messages=ZIP, params=FEW)
    front.core.handle(Configure(None))
    assert front.core.engine.scheduler.policy is policy


def test_without_calibration_nothing_is_stored(tmp_path: Path) -> None:
    front = Front(replace(PAIR, calibrate=False), Store(tmp_path / "store"))
    front.ids(messages=ZIP, params=LONGER)
    front.messages.clear()
    front.core.handle(Calibrate(0.1))
    (calibrated,) = front.messages
    assert isinstance(calibrated, Calibrated)
    assert calibrated.t1 > 0  # because it was requested
    front.core.shut_down()
    front.close()
    assert not (tmp_path / "store").exists()


def test_the_profile_is_stored_when_the_front_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine process, without a Calibrate; a second answer within seconds has no write of its own."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    with EngineClient() as client:
        client.load(PAIR)
        for _ in range(2):
            request = generate(client.next_id(), messages=ZIP, params=LONGER)
            assert isinstance([*client.generate(request)][-1], m.Done)
    (file,) = (tmp_path / "calibration").glob("*.json")
    stored = json.loads(file.read_text())
    assert stored["curves"]["0"]["widths"][0][0] == 1
    (pair,) = stored["pairs"]
    assert pair["pair"]["drafters"] == ["grammar", "copy", "model"]
    assert "t1" not in stored


def test_processes_that_decide_at_once_decode_exact_texts_alike(tmp_path: Path) -> None:
    """Both were loaded before either decided; a third one reads what was agreed on."""
    store, key, pair = Store(tmp_path / "calibration"), {"model": "x"}, {"draft": None}
    first, second = (ModelProfile(store, key, pair, True, lambda: 0.0) for _ in range(2))
    assert first.exact_rows is second.exact_rows is None
    assert first.agree_on_exact_rows(ExactRows(6, 128)) == ExactRows(6, 128)
    assert second.agree_on_exact_rows(ExactRows(4, 64)) == ExactRows(6, 128)
    assert second.exact_rows == ExactRows(6, 128)
    second.flush()
    assert ModelProfile(store, key, pair, True, lambda: 0.0).exact_rows == ExactRows(6, 128)
