"""What is put comes back, to whom it belongs, within the budget, and nothing else does."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import stat
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.prefix_disk import disk_store, state_file
from specllama.prefix_disk.directory import StateLedger
from specllama.prefix_disk.disk_store import LoadRate, PrefixRecord
from tests.support.prefixes import content, equal, ids, record, states, store, written

MB = 1_000_000


def test_what_is_put_is_read_again_by_a_later_process(tmp_path: Path) -> None:
    text = ids((1, 1000))
    first = record(text, 3 * MB, draft_bytes=70_001)
    written(tmp_path / "p", first)
    with store(tmp_path / "p") as again:
        ((state, n_tokens),) = again.find("local", text)
        assert (n_tokens, state.n_tokens, state.meta.n_bytes) == (1000, 1000, 3_070_001)
        assert dict(state.meta.parts) == {"target": 3 * MB, "draft": 70_001}
        assert equal(again.read(state), first)
        only = again.read(state, ["draft"])
        assert only is not None
        assert {name: bytes(part) for name, part in only.parts.items()} == {"draft": first.parts["draft"]}
        assert again.read(state, ["unknown"]) is None


def test_what_is_read_is_writable_memory_of_its_own(tmp_path: Path) -> None:
    written(tmp_path, record(ids((1, 200))))
    with store(tmp_path) as one:
        ((state, _),) = one.find("local", ids((1, 200)))
        read = one.read(state)
        assert read is not None
        view = read.parts["target"]
        assert isinstance(view, memoryview)
        view[:4] = b"gone"
        assert equal(one.read(state), record(ids((1, 200))))


def test_parts_may_be_any_buffers(tmp_path: Path) -> None:
    mapped = mmap.mmap(-1, 5000)
    mapped[:] = content(3, 5000)
    parts = {"target": mapped, "head": memoryview(b"view"), "draft": bytearray(b"array"), "none": b""}
    written(tmp_path, PrefixRecord("local", ids((1, 200)), parts, 1.0))
    with store(tmp_path) as one:
        read = one.read(one.find("local", ids((1, 200)))[0][0])
        assert read is not None
        assert bytes(read.parts["target"]) == content(3, 5000)
        assert (bytes(read.parts["head"]), bytes(read.parts["draft"])) == (b"view", b"array")
        assert bytes(read.parts["none"]) == b""


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        written(tmp_path / "p", record(ids((1, 200))))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700
    files = [path for path in (tmp_path / "p").iterdir() if path.is_file()]
    assert {path.name for path in files} >= {"secret", "index.json", *states(tmp_path / "p")}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_directory_that_others_may_enter_is_closed(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir(mode=0o755)
    (tmp_path / "p").chmod(0o755)
    written(tmp_path / "p", record(ids((1, 200))))
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700


def test_a_whole_state_serves_every_text_that_begins_like_it(tmp_path: Path) -> None:
    written(tmp_path, record(ids((1, 600), (2, 400))))
    with store(tmp_path) as one:
        assert [n for _, n in one.find("local", ids((1, 600), (3, 400)))] == [600]
        assert [n for _, n in one.find("local", ids((1, 600), (2, 400), (4, 10)))] == [1000]
        assert [n for _, n in one.find("local", ids((1, 600)))] == [600]
        assert one.find("local", ids((3, 1000))) == []
        assert one.find("local", ids((1, 100))) == [], "less than a block in common"
        assert one.find("local", np.zeros(0, np.int32)) == []


def test_a_state_of_another_kind_is_kept_and_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(state_file, "WHOLE", "partial")
        written(tmp_path, record(ids((1, 300))))
    with store(tmp_path) as one:
        assert one.find("local", ids((1, 300), (2, 100))) == []
    assert len(states(tmp_path)) == 1


def test_a_smaller_state_with_fewer_tokens_is_offered_too(tmp_path: Path) -> None:
    text, rest = ids((1, 500)), ids((1, 500), (2, 4000))
    written(tmp_path, record(text, 1000), record(rest, 90_000, seed=7))
    with store(tmp_path) as one:
        candidates = one.find("local", ids((1, 500), (2, 2000), (9, 50)))
        assert [(n, state.meta.n_bytes) for state, n in candidates] == [(2500, 90_000), (500, 1000)]
        assert one.load_seconds(90_000) > one.load_seconds(1000) > 0


def test_scopes_and_models_are_apart(tmp_path: Path) -> None:
    text = ids((1, 400))
    written(tmp_path, record(text, scope="one"))
    with store(tmp_path) as one, store(tmp_path, key="another model") as other:
        assert one.find("two", text) == []
        assert other.find("one", text) == []
        assert len(one.find("one", text)) == 1
    assert len(states(tmp_path)) == 1
    data = (tmp_path / states(tmp_path)[0]).read_bytes()
    written(tmp_path, record(text, scope="two"), record(text, scope="one"), record(text, seed=4, scope="two"))
    assert len(states(tmp_path)) == 2, "each scope has its own, once"
    assert (tmp_path / states(tmp_path)[0]).read_bytes() == data or len(states(tmp_path)) == 2


def test_a_guess_of_another_keys_text_is_a_miss(tmp_path: Path) -> None:
    secret_text, other = ids((1, 400)), ids((2, 400))
    written(tmp_path, record(secret_text, scope="owner"))
    with store(tmp_path) as one:
        assert one.find("guesser", secret_text) == one.find("guesser", other) == []
        assert one.put(record(secret_text, scope="guesser"))
        assert one.flush(20)
        assert one.n_written == 1, "it is written as a text that nobody has sent"


def test_a_continuation_takes_the_place_of_what_it_continues(tmp_path: Path) -> None:
    first, longer = record(ids((1, 500)), 50_000), record(ids((1, 500), (2, 100)), 60_000)
    much_longer = record(ids((1, 500), (2, 100), (3, 2000)), 260_000)
    written(tmp_path, first, longer)
    assert len(states(tmp_path)) == 1
    written(tmp_path, first)
    assert len(states(tmp_path)) == 1, "the longer one can be cut"
    written(tmp_path, much_longer)
    assert len(states(tmp_path)) == 2, "loading it takes much longer than loading the shorter one"


def test_a_state_with_a_further_part_replaces_the_one_without(tmp_path: Path) -> None:
    text = ids((1, 500))
    written(tmp_path, record(text))
    written(tmp_path, record(text, draft_bytes=900))
    written(tmp_path, record(text))
    with store(tmp_path) as one:
        ((state, _),) = one.find("local", text)
        assert state.meta.part_names == {"target", "draft"}


def test_what_waits_is_replaced_by_its_continuation(tmp_path: Path) -> None:
    with store(tmp_path, write_rate=200_000) as one:
        assert one.put(record(ids((9, 200)), 200_000))  # keeps the thread busy
        for n in range(1, 6):
            assert one.put(record(ids((1, 500), (2, n)), 20_000))
        assert one.flush(20)
        assert one.n_written == 2
    with store(tmp_path) as one:
        assert one.find("local", ids((1, 500), (2, 5)))[0][1] == 505


def test_the_queue_is_bounded_in_bytes(tmp_path: Path) -> None:
    with store(tmp_path, write_rate=100_000, queue_bytes=MB) as one:
        assert one.put(record(ids((1, 200)), 2 * MB)), "a single one may be larger"
        threading.Event().wait(0.05)
        taken = [one.put(record(ids((n, 200)), 400_000)) for n in range(2, 8)]
        assert taken[0]
        assert not taken[-1]


def test_the_budget_keeps_what_saves_most_per_byte(tmp_path: Path) -> None:
    cheap = [record(ids((n, 300)), 100_000, seed=n, seconds=1.0) for n in range(4)]
    dear = [record(ids((n, 300)), 100_000, seed=n, seconds=100.0) for n in range(10, 14)]
    written(tmp_path, *cheap, *dear, budget=600_000)
    total = sum((tmp_path / name).stat().st_size for name in states(tmp_path))
    assert total <= 600_000
    with store(tmp_path, 600_000) as one:
        assert all(one.find("local", each.ids) for each in dear)
        assert sum(bool(one.find("local", each.ids)) for each in cheap) == 1


def test_what_is_not_used_sinks_and_what_is_used_stays(tmp_path: Path) -> None:
    kept = record(ids((1, 300)), 100_000, seconds=5.0)
    with store(tmp_path, 420_000) as one:
        assert one.put(kept)
        assert one.flush(20)
        for n in range(20, 40):
            candidates = one.find("local", kept.ids)
            assert candidates, f"used every time, gone at {n}"
            assert equal(one.read(candidates[0][0]), kept)
            assert one.put(record(ids((n, 300)), 100_000, seed=n, seconds=5.0))
            assert one.flush(20)
        assert len(states(tmp_path)) == 4
        newest = ids((39, 300))
        assert one.find("local", newest), "the others give way to what is new"


def test_a_state_worth_less_than_all_others_is_not_written_at_first(tmp_path: Path) -> None:
    dear = [record(ids((n, 300)), 100_000, seed=n, seconds=50.0) for n in range(4)]
    with store(tmp_path, 420_000) as one:
        for each in dear:
            one.put(each)
            assert one.flush(20)
        one.put(record(ids((9, 300)), 100_000, seconds=0.5))
        assert one.flush(20)
        assert one.find("local", ids((9, 300))) == []
        assert all(one.find("local", each.ids) for each in dear)


@pytest.mark.parametrize("off", [{"budget": 0}, {"key": ""}])
def test_without_a_budget_or_a_key_nothing_is_made(tmp_path: Path, off: dict[str, Any]) -> None:
    with store(tmp_path / "p", **off) as one:
        assert not one.put(record(ids((1, 300))))
        assert one.find("local", ids((1, 300))) == []
        assert one.flush(1)
    assert not (tmp_path / "p").exists()


def test_a_state_larger_than_the_budget_is_refused_with_one_line(tmp_path: Path) -> None:
    small = record(ids((2, 300)), 3000)
    with store(tmp_path, 5000) as one:
        assert one.put(small)
        assert one.flush(20)
        assert not one.put(record(ids((1, 300)), 6000))
        assert not one.put(record(ids((1, 300)), 6000))
        assert one.put(record(ids((3, 900)), 4900)), "it is its header that does not fit"
        assert one.flush(20)
        assert one.lines == ["states of 6000 bytes do not fit the 5000 on disk"]  # type: ignore[attr-defined]
        assert one.find("local", small.ids), "nothing had to go for it"


def test_a_smaller_budget_than_before_is_met_at_the_start(tmp_path: Path) -> None:
    written(tmp_path, *(record(ids((n, 300)), 100_000, seed=n, seconds=n) for n in range(1, 7)))
    with store(tmp_path, 350_000) as one:
        assert one.flush(20)
        assert sum((tmp_path / name).stat().st_size for name in states(tmp_path)) <= 350_000
        assert one.find("local", ids((6, 300)))
        assert one.find("local", ids((1, 300))) == []


def test_states_of_another_model_go_too(tmp_path: Path) -> None:
    written(tmp_path, record(ids((1, 300)), 300_000, seconds=1.0), key="old model")
    written(tmp_path, record(ids((2, 300)), 300_000, seconds=90.0), budget=400_000)
    assert len(states(tmp_path)) == 1
    with store(tmp_path) as one:
        assert one.find("local", ids((2, 300)))


def test_the_rate_of_writing_is_bounded_and_lifted_by_flush(tmp_path: Path) -> None:
    with store(tmp_path, write_rate=1 << 20) as one:
        one.put(record(ids((1, 300)), 64 << 20))  # a minute at this rate
        assert not states(tmp_path)
        assert one.flush(30)
        assert len(states(tmp_path)) == 1


def test_close_gives_up_what_is_being_written(tmp_path: Path) -> None:
    with store(tmp_path, write_rate=1 << 20) as one:
        one.put(record(ids((1, 300)), 64 << 20))
        threading.Event().wait(0.05)
    assert not states(tmp_path)
    assert not list(tmp_path.glob(".*.tmp"))
    assert not one.put(record(ids((1, 300))))


def test_many_threads_at_once(tmp_path: Path) -> None:
    problems: list[object] = []
    with store(tmp_path, 1_500_000) as one:

        def work(seed: int) -> None:
            for n in range(12):
                mine = record(ids((1, 256), (seed, 200), (n, 60)), 50_000, seed=seed * 100 + n)
                one.put(mine)
                for state, n_tokens in one.find("local", mine.ids):
                    read = one.read(state)
                    if read is not None and not np.array_equal(read.ids[:n_tokens], mine.ids[:n_tokens]):
                        problems.append(state)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10, 16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert one.flush(30)
        assert one.lines == []  # type: ignore[attr-defined]
    assert problems == []


def stored_rate(directory: Path) -> float:
    return StateLedger.from_file(directory / "index.json").load_rate


def test_the_measured_rate_is_kept_for_later_processes(tmp_path: Path) -> None:
    written(tmp_path, record(ids((1, 300)), 4 * MB))
    with store(tmp_path) as one:
        assert one.read(one.find("local", ids((1, 300)))[0][0]) is not None
        rate = one.load_rate
        assert rate != 1e9
    assert stored_rate(tmp_path) == pytest.approx(rate)


@pytest.mark.parametrize("stored", [1e-9, 1.0, 2e6])
def test_a_stored_rate_so_slow_that_nothing_is_read_is_tried_again(tmp_path: Path, stored: float) -> None:
    """Only a read corrects the rate, and by this one no state is worth reading."""
    written(tmp_path, record(ids((1, 300)), 4 * MB))
    (tmp_path / "index.json").write_text(
        json.dumps({"inflation": 0, "load_rate": stored, "states": {}}), "utf-8"
    )
    with store(tmp_path) as one:
        assert one.flush(20)
        assert one.load_rate > 1e5
        assert one.load_rate != stored
        assert one.load_seconds(4 * MB) < 100
        assert stored_rate(tmp_path) == pytest.approx(one.load_rate)


@pytest.mark.parametrize("before", [[], [0.01] * 5])
def test_one_stalled_read_is_a_slow_read(before: list[float]) -> None:
    rate = LoadRate()
    for seconds in before:
        rate.add(10 * MB, seconds)
    rate.add(10 * MB, 600.0)
    assert rate.rate >= 0.99e9 / 3
    for _ in range(20):
        rate.add(10 * MB, 0.1)
    assert rate.rate == pytest.approx(1e8, rel=0.01)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ids": np.zeros(0, np.int32)},
        {"ids": np.zeros(4, np.int64)},
        {"ids": np.zeros((2, 2), np.int32)},
        {"parts": {}},
        {"parts": {"": b"x"}},
        {"parts": {"n" * 65: b"x"}},
        {"parts": {"target": memoryview(np.zeros(4))}},
        {"seconds": -1.0},
        {"seconds": float("nan")},
    ],
)
def test_records_are_checked(wrong: dict[str, object]) -> None:
    fields = {"scope": "", "ids": ids((1, 9)), "parts": {"target": b"x"}, "seconds": 1.0}
    PrefixRecord(**fields)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        PrefixRecord(**{**fields, **wrong})  # type: ignore[arg-type]


def test_the_text_is_not_in_names_or_the_ledger(tmp_path: Path) -> None:
    """What tells a text from another one is in files that only the user may read, and there alone."""
    for folder in ("a", "b"):
        written(tmp_path / folder, record(ids((1, 400))))
        assert ids((1, 400)).tobytes()[:64] not in (tmp_path / folder / "index.json").read_bytes()
    assert states(tmp_path / "a") != states(tmp_path / "b"), "names depend on the directory's secret"


def test_what_another_process_has_written_is_found(tmp_path: Path) -> None:
    """By the first look-up that is not over before a busy machine has read the directory."""
    text = ids((1, 300))
    with store(tmp_path / "p") as reader:
        assert not reader.find("local", text)
        for n in range(1, 4):
            written(tmp_path / "p", record(ids((n, 300)), 3000, seed=n))
            while not reader.find("local", ids((n, 300))):
                time.sleep(0.01)


def test_a_look_up_does_not_wait_while_its_own_store_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_store, "_REFRESH_SECONDS", 30.0)
    with store(tmp_path / "p", write_rate=1 * MB) as one:
        assert one.put(record(ids((1, 300)), 4 * MB))
        while not list((tmp_path / "p").glob(".*.state.*.tmp")):
            time.sleep(0.01)
        assert not one.find("local", ids((1, 300)))
        assert not one.n_written


def test_a_slow_reading_of_the_directory_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "p", record(ids((1, 300)), 3000))
    with store(tmp_path / "p") as one:
        assert one.flush(20)
        go_on, refresh = threading.Event(), one._refresh
        monkeypatch.setattr(one, "_refresh", lambda: go_on.wait(20) and refresh())
        written(tmp_path / "p", record(ids((2, 300)), 3000))
        assert not one.find("local", ids((2, 300)))
        monkeypatch.setattr(disk_store, "_REFRESH_SECONDS", 30.0)
        timer = threading.Timer(5, go_on.set)
        timer.start()
        assert not one.find("local", ids((2, 300)))
        assert not go_on.is_set()
        timer.cancel()
        go_on.set()
        while one._stale:
            time.sleep(0.01)
        assert one.find("local", ids((2, 300)))


def test_a_state_beyond_the_budget_will_not_be_accepted(tmp_path: Path) -> None:
    with store(tmp_path / "p", 1 * MB) as one:
        assert one.delay(MB // 2) == 0.0
        assert one.delay(2 * MB) is None
        assert not one.put(record(ids((1, 300)), 2 * MB))
        assert len(one.lines) == 1  # type: ignore[attr-defined]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with store(tmp_path / "p", 10 * MB) as one:
        one.put(record(ids((1, 300)), 3000))
        assert one.flush(20)
        one.put(record(ids((2, 300)), 3000))
        assert one.flush(20)
        (line,) = one.lines  # type: ignore[attr-defined]
        assert line.endswith("No space left on device")


def test_an_unexpected_error_is_one_line_and_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ImportError("no module")

    monkeypatch.setattr(state_file, "write_state", broken)
    with store(tmp_path / "p", 10 * MB) as one:
        for start in (1, 2):
            one.put(record(ids((start, 300)), 3000))
            assert one.flush(20), "it waits for a thread that is gone"
        (line,) = one.lines  # type: ignore[attr-defined]
        assert line.endswith("ImportError('no module')")
