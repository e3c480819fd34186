"""Files that are torn, damaged, foreign or of another version: never used, never a crash, one line each."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.prefix_disk import state_file
from tests.support.prefixes import equal, ids, record, states, store, written

TEXT = ids((1, 300))


def the_file(directory: Path) -> Path:
    (name,) = states(directory)
    return directory / name


def changed(data: bytes, at: int, bits: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


@pytest.fixture
def one_state(tmp_path: Path) -> Path:
    """A directory with one state of three blocks in two parts."""
    written(tmp_path, record(TEXT, 1_200_000, draft_bytes=5000))
    return tmp_path


def test_a_flipped_bit_anywhere_in_the_file_is_seen(one_state: Path) -> None:
    file, rng = the_file(one_state), random.Random(5)
    data = file.read_bytes()
    begin = len(data) - 1_205_000
    places = [*range(0, 80, 4), *(rng.randrange(begin) for _ in range(40)), begin, len(data) - 1]
    for at in [*places, *(rng.randrange(begin, len(data)) for _ in range(40))]:
        file.write_bytes(changed(data, at, 1 << rng.randrange(8)))
        with store(one_state) as one:
            for state, _ in one.find("local", TEXT):
                assert one.read(state) is None, at
            assert one.flush(20)
            newer = 16 <= at < 20  # the version: of a newer specllama, perhaps
            assert len(one.lines) == 1 - newer, at  # type: ignore[attr-defined]
            assert file.exists() == newer, at
    file.write_bytes(data)
    with store(one_state) as one:
        assert equal(one.read(one.find("local", TEXT)[0][0]), record(TEXT, 1_200_000, draft_bytes=5000))


def test_a_flip_in_a_part_that_is_not_read_is_seen_when_it_is(one_state: Path) -> None:
    file = the_file(one_state)
    file.write_bytes(changed(file.read_bytes(), file.stat().st_size - 1))  # in the draft's part
    with store(one_state) as one:
        ((state, _),) = one.find("local", TEXT)
        assert one.read(state, ["target"]) is not None
        assert one.read(state) is None
        assert not file.exists()
        assert one.find("local", TEXT) == []


def test_a_truncated_file_is_removed_at_any_length(one_state: Path) -> None:
    file = the_file(one_state)
    data = file.read_bytes()
    for n in (0, 1, 15, 16, 40, 71, 72, 500, 1500, 5000, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:n])
        with store(one_state) as one:
            assert one.find("local", TEXT) == []
            assert len(one.lines) == 1  # type: ignore[attr-defined]
        assert not file.exists()
    file.write_bytes(data + b"x")
    with store(one_state) as one:
        assert one.find("local", TEXT) == []


def test_a_file_that_shrinks_or_changes_after_the_look_up_is_a_miss(one_state: Path) -> None:
    file = the_file(one_state)
    data = file.read_bytes()
    with store(one_state) as one:
        ((state, _),) = one.find("local", TEXT)
        os.truncate(file, len(data) - 10)
        assert one.read(state) is None
        assert one.read(state) is None
    written(one_state, record(TEXT, 1_200_000, draft_bytes=5000))
    with store(one_state) as one:
        ((state, _),) = one.find("local", TEXT)
        the_file(one_state).unlink()
        assert one.read(state) is None
        assert one.find("local", TEXT) == []


def test_a_state_under_the_name_of_another_is_not_used(one_state: Path) -> None:
    """Whole files, each of another text than it was when the store was opened."""
    written(one_state, record(ids((2, 300)), 1_200_000, draft_bytes=5000, seed=3))
    first, second = (one_state / name for name in states(one_state))
    with store(one_state) as one:
        texts = [TEXT, ids((2, 300))]
        candidates = [one.find("local", text)[0][0] for text in texts]
        a, b = first.read_bytes(), second.read_bytes()
        first.write_bytes(b)
        second.write_bytes(a)
        assert [one.read(each) for each in candidates] == [None, None]
        assert states(one_state) == []


def test_files_of_other_names_are_left_alone(one_state: Path) -> None:
    foreign = ["notes.txt", "x.state", "A" * 32 + ".state", f".{'0' * 32}.state.tmp", "0" * 32 + ".state.bak"]
    for name in foreign:
        (one_state / name).write_bytes(b"mine")
    (one_state / ("1" * 32 + ".state")).mkdir()
    (one_state / ("2" * 32 + ".state")).symlink_to(one_state / "notes.txt")
    os.mkfifo(one_state / ("3" * 32 + ".state"))
    with store(one_state, 10_000) as one:  # all that is its own has to go
        assert one.flush(20)
        assert one.lines == []  # type: ignore[attr-defined]
    left = {path.name for path in one_state.iterdir()}
    assert left >= {*foreign, "1" * 32 + ".state", "2" * 32 + ".state", "3" * 32 + ".state"}
    assert all((one_state / name).read_bytes() == b"mine" for name in foreign)


def test_a_file_of_another_program_under_such_a_name_is_removed_with_a_line(one_state: Path) -> None:
    (one_state / ("4" * 32 + ".state")).write_bytes(b"GGUF" * 100)
    with store(one_state) as one:
        assert one.lines == [  # type: ignore[attr-defined]
            f"prefix state {'4' * 32}.state is not used and removed: not a prefix state"
        ]
        assert len(one.find("local", TEXT)) == 1


def test_many_broken_files_have_few_lines(one_state: Path) -> None:
    for n in range(50):
        (one_state / f"{n:032x}.state").write_bytes(b"?")
    with store(one_state) as one:
        assert 1 < len(one.lines) < 12  # type: ignore[attr-defined]
        assert len(states(one_state)) == 1


def version(directory: Path, number: int) -> Path:
    """The state, as if another version of specllama had written it."""
    file = the_file(directory)
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, 16, number)
    file.write_bytes(data)
    return file


def test_a_state_of_an_older_version_is_removed(one_state: Path) -> None:
    file = version(one_state, 0)
    with store(one_state) as one:
        assert one.find("local", TEXT) == []
        assert "of an older specllama" in one.lines[0]  # type: ignore[attr-defined]
    assert not file.exists()


def test_a_state_of_a_newer_version_stays_until_there_is_no_room(one_state: Path) -> None:
    file = version(one_state, 2)
    with store(one_state, 1_300_000) as one:
        assert one.find("local", TEXT) == []
        assert one.flush(20)
        assert file.exists()
        assert one.put(record(ids((2, 300)), 900_000, seconds=0.1))
        assert one.flush(20)
        assert one.lines == []  # type: ignore[attr-defined]
    assert not file.exists()


def test_states_of_another_directory_are_removed(
    one_state: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A copied file: its secret is another one, so that nothing in it is to be trusted."""
    other = tmp_path_factory.mktemp("other")
    written(other, record(ids((2, 300))))
    copied = other / the_file(one_state).name
    copied.write_bytes(the_file(one_state).read_bytes())
    with store(other) as one:
        assert one.find("local", TEXT) == []
        assert len(one.find("local", ids((2, 300)))) == 1
    assert not copied.exists()


@pytest.mark.parametrize("damage", [b"", b"x" * 64, b"ab", b"\xff" * 70])
def test_without_its_secret_a_directory_begins_again(one_state: Path, damage: bytes) -> None:
    (one_state / "secret").write_bytes(damage)
    with store(one_state) as one:
        assert one.find("local", TEXT) == []
        assert one.put(record(TEXT))
        assert one.flush(20)
        assert equal(one.read(one.find("local", TEXT)[0][0]), record(TEXT))
    assert len(states(one_state)) == 1


@pytest.mark.parametrize(
    "ledger",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\x00",
        b"[" * 100_000,
        b'{"inflation": 1e999, "load_rate": 1, "states": {}}',
        b'{"inflation": 0, "load_rate": -5, "states": {}}',
        b'{"inflation": 0, "load_rate": 1, "states": [1]}',
    ],
)
def test_a_ledger_that_cannot_be_read_costs_only_what_it_said(one_state: Path, ledger: bytes) -> None:
    (one_state / "index.json").write_bytes(ledger)
    with store(one_state) as one:
        assert one.load_rate == pytest.approx(1e9)
        assert one.read(one.find("local", TEXT)[0][0]) is not None
    assert b'"inflation"' in (one_state / "index.json").read_bytes()


def header_with(directory: Path, edit: Callable[[bytes], bytes]) -> None:
    """The state with another meta, its digest made with the right secret."""
    file = the_file(directory)
    secret = bytes.fromhex((directory / "secret").read_text())
    data = file.read_bytes()
    fixed = list(struct.unpack("<16sIIIIQ32s", data[:72]))
    meta, rest = data[72 : 72 + fixed[2]], data[72 + fixed[2] :]
    new = edit(meta)
    fixed[2], fixed[5] = len(new), len(data) + len(new) - len(meta)
    begin = struct.pack("<16sIIIIQ", *fixed[:6])
    ids_and_sums = rest[: 4 * (fixed[3] + fixed[4])]
    digest = state_file._digest(begin, (new, ids_and_sums), secret)
    file.write_bytes(begin + digest + new + rest)


@pytest.mark.parametrize(
    "edit",
    [
        lambda meta: meta,
        lambda _: b"{}",
        lambda _: b"[" * 50_000,
        lambda meta: meta.replace(b"1200000", b"1200001"),
        lambda meta: meta.replace(b"1200000", b"-1"),
        lambda meta: meta.replace(b"1200000", b"1e6"),
        lambda meta: meta.replace(b"10.0", b"NaN"),
        lambda meta: meta.replace(b'"local"', b"null"),
        lambda meta: meta.replace(b'"local"', b'"other"'),
    ],
)
def test_a_header_with_values_that_cannot_be_is_refused(
    one_state: Path, edit: Callable[[bytes], bytes]
) -> None:
    header_with(one_state, edit)
    unchanged = edit(b'"local" 1200000 10.0') == b'"local" 1200000 10.0'
    with store(one_state) as one:
        assert len(one.find("local", TEXT)) == unchanged


def test_numbers_of_any_size_in_the_fixed_part_allocate_nothing(one_state: Path) -> None:
    file = the_file(one_state)
    data = file.read_bytes()
    for at in range(20, 40, 4):
        file.write_bytes(data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :])
        with store(one_state) as one:
            assert one.find("local", TEXT) == []
            assert len(one.lines) == 1  # type: ignore[attr-defined]
