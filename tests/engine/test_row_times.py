"""Products of rows by type of weights: measured by ggml, stored by machine, and used for the cost curve."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.policy.config import DEFAULT
from specllama.data import EMBEDDED_TARGET
from specllama.gguf.header import read_model
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from specllama.llama.products import ProductError, Products
from specllama.worker import row_times
from specllama.worker.load_info import inspect_build
from specllama.worker.row_prior import SEVERAL_ROWS, WIDTHS
from specllama.worker.row_times import GROUPS, RowTimeMeasurer, RowTimeStore, measure_missing, prior_of
from tests.support.front import Front

PAIR = LoadSettings(target=ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_ctx=512))
KINDS = [kind for group in GROUPS for kind in group]
SMALL = {kind: [1e-10 * (1 + n / 8) for n in WIDTHS] for kind in KINDS}


class NoOtherWork:
    """As if no other programs ran."""

    disturbs = False

    def __init__(self, n_threads: int) -> None:
        pass


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests run at the same time: what is measured counts all the same."""
    monkeypatch.setattr(row_times, "_BUSY", 1e9)
    monkeypatch.setattr(row_times, "OtherWork", NoOtherWork)


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_multiplied(kind: str) -> None:
    products = Products(kind, 2, 1 << 18, WIDTHS, 2)
    try:
        assert products.n_bytes == pytest.approx(2 << 18, rel=0.7)
        assert all(products.seconds(n) > 0 for n in WIDTHS)
    finally:
        products.close()


def test_a_type_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError):
        Products("Q9_X", 1, 1 << 18, (1,), 1)


def test_without_a_function_of_ggml_there_are_no_products(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    monkeypatch.setattr("specllama.llama.products.ggml", Older())
    with pytest.raises(ProductError, match="ggml_backend_dev_count"):
        Products("F16", 1, 1 << 18, (1,), 1)


def test_a_measurement_gives_plausible_times_and_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_times, "GROUPS", (("F16", "Q4_0"),))
    monkeypatch.setattr(row_times, "_MATRIX_BYTES", 1 << 20)
    alone(monkeypatch)
    store = RowTimeStore(Store(tmp_path), 2)
    assert store.missing == [("F16", "Q4_0")]
    for _ in measure_missing(store):
        pass
    stored = store.read()
    # An interruption can make a type implausible, which is then left out; hardly both.
    assert stored
    for values in stored.values():
        assert len(values) == len(WIDTHS)
        assert values[-1] > values[0] > 0
    if len(stored) == 2:
        assert store.missing == []
        assert RowTimeMeasurer(store).done


def test_types_are_added_and_other_machines_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RowTimeStore(Store(tmp_path), 2)
    store.add({"F16": SMALL["F16"]})
    store.add({"Q4_0": SMALL["Q4_0"]})
    assert RowTimeStore(Store(tmp_path), 2).read() == {"F16": SMALL["F16"], "Q4_0": SMALL["Q4_0"]}
    assert RowTimeStore(Store(tmp_path), 3).read() == {}
    for name, other in (("compiled", lambda: "another"), ("physical_cores", lambda: 77), ("_VERSION", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(row_times, name, other)
            assert store.read() == {}
    assert store.read()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 0}', '{"schema": 1}', "\0" * 100])
def test_a_damaged_file_is_ignored_and_written_again(tmp_path: Path, text: str) -> None:
    store = RowTimeStore(Store(tmp_path), 2)
    store.add(SMALL)
    (file,) = (tmp_path / "products").glob("*.json")
    file.write_text(text)
    assert store.read() == {}
    assert store.missing == list(GROUPS)
    store.add(SMALL)
    assert store.missing == []


@pytest.mark.parametrize("by", ["spread", "counters"])
def test_a_busy_machine_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setattr(row_times, "GROUPS", (("F16",),))
    monkeypatch.setattr(row_times, "_MATRIX_BYTES", 1 << 18)
    alone(monkeypatch)
    if by == "spread":
        monkeypatch.setattr(row_times, "_BUSY", 0.0)
    else:
        monkeypatch.setattr(NoOtherWork, "disturbs", True)
    store = RowTimeStore(Store(tmp_path), 1)
    for _ in measure_missing(store):
        pass
    assert store.read() == {}


def test_an_interrupted_group_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_times, "GROUPS", (("F16",),))
    monkeypatch.setattr(row_times, "_MATRIX_BYTES", 1 << 18)
    measurer = RowTimeMeasurer(RowTimeStore(Store(tmp_path), 1))
    measurer.measure(1e-9)
    measurer.interrupt()
    measurer.interrupt()
    assert not measurer.done
    while not measurer.done:
        measurer.measure(1.0)


def test_without_memory_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_times, "available_memory", lambda: 1 << 20)
    assert RowTimeMeasurer(RowTimeStore(Store(tmp_path), 1)).done


def test_the_shape_of_a_model_is_that_of_its_types(tmp_path: Path) -> None:
    header, store = read_model(str(EMBEDDED_TARGET)), RowTimeStore(Store(tmp_path), 2)
    assert prior_of(header, store) is None
    store.add(SMALL)
    one, *others = prior_of(header, store) or ()
    assert one == (1, 1.0)
    assert [n for n, _ in others] == list(WIDTHS[1:])
    expected = [SEVERAL_ROWS * (1 + n / 8) / (1 + 1 / 8) for n in WIDTHS[1:]]
    assert [seconds for _, seconds in others] == pytest.approx(expected)


def test_the_first_load_of_a_model_begins_with_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    front = Front(PAIR, store)
    assert front.core.loaded is not None
    assert front.core.loaded.row_times is not None
    assert front.core.loaded.profile.curves.config.decode_prior == DEFAULT.decode_prior
    front.core.loaded.row_times.add(SMALL)
    front.close()
    front = Front(PAIR, store)
    assert front.core.loaded is not None
    prior = front.core.loaded.profile.curves.at(0).config.decode_prior
    assert [n for n, _ in prior] == list(WIDTHS)
    assert prior[-1][1] == pytest.approx(SEVERAL_ROWS * (1 + 64 / 8) / (1 + 1 / 8))
    front.close()


def test_other_numbers_of_threads_for_several_rows_have_no_times(tmp_path: Path) -> None:
    model = LlamaModel(ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_threads_batch=2))
    context = LlamaContext(model, 256)
    assert row_times.row_times_of(Store(tmp_path), context) is None
    context.set_threads(2, 2)
    row_store = row_times.row_times_of(Store(tmp_path), context)
    assert row_store is not None
    assert row_store.n_threads == 2
    context.close()
    model.close()


def test_an_idle_engine_measures_them_after_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_times, "GROUPS", (("F16",),))
    monkeypatch.setattr(row_times, "_MATRIX_BYTES", 1 << 18)
    alone(monkeypatch)
    front = Front(PAIR, Store(tmp_path), True)
    assert front.core.loaded is not None
    assert front.core.loaded.row_times is not None
    assert front.core.step_due_in is None
    front.ids(prompt="def", params={"max_tokens": 8})
    for _ in range(400):
        if front.core.step_due_in is None:
            break
        front.core.step()
    assert front.core.step_due_in is None
    front.close()
    assert list((tmp_path / "products").glob("*.json"))
    store = front.core.loaded.row_times
    assert set(store.read()) <= {"F16"}


def test_the_program_measures_and_says_why_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    monkeypatch.setattr(row_times, "GROUPS", (("F16",),))
    monkeypatch.setattr(row_times, "_MATRIX_BYTES", 1 << 18)
    alone(monkeypatch)
    assert row_times.main() == 0
    (file,) = (tmp_path / "calibration" / "products").glob("*.json")
    assert set(json.loads(file.read_text())["types"]) <= {"F16"}
    file.unlink()

    def fails(*_: object) -> None:
        raise ProductError("there is no backend")

    monkeypatch.setattr(row_times, "Products", fails)
    assert row_times.main() == 1
    assert "missing for 1 of 1 types of weights: there is no backend" in capsys.readouterr().err


def test_the_report_of_the_build_names_the_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specllama.worker.load_info.physical_cores", lambda: 2)
    assert inspect_build(Store(tmp_path)).products == ()
    RowTimeStore(Store(tmp_path), 2).add({"F16": SMALL["F16"]})
    report = inspect_build(Store(tmp_path))
    assert report.products == ("F16",)
    assert replace(report, products=()) == inspect_build(Store(tmp_path / "other"))
