"""`specllama cache`: what is kept on disk is shown without its text, and removed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from specllama.cli.cache import _lines
from specllama.cli.doctor.command import _model
from specllama.data import EMBEDDED_DRAFT
from specllama.gguf.header import read_model
from specllama.models.demo import _HEADER, DemoStore
from tests.support import tinymtp
from tests.support.command import Command, assert_error
from tests.support.prefixes import ids, record, states, store, written

MODEL = "Big Model 8B Q4_K_M"


@pytest.fixture
def kept(command: Command) -> Path:
    """The directory, with two states of one model and one of another."""
    directory = command.cache / "prefixes"
    first, second = record(ids((1, 3000)), 5_000_000, scope="someone"), record(ids((2, 400)), 9000)
    written(directory, first, second, model=MODEL)
    written(directory, record(ids((3, 300)), 5000), model="Small\x1b[31m", key="small")
    for i, name in enumerate(states(directory)):
        os.utime(directory / name, (1e9 + i, 1e9 + i))
    return directory


def test_lists_what_is_there(command: Command, kept: Path) -> None:
    result = command("cache")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == f"3 prompts, 5.0 MB, in {kept}"
    assert lines[1].split() == ["id", "model", "tokens", "size", "age", "uses"]
    assert len(lines) == 5
    assert "\x1b" not in result.out
    assert command("cache", "ls").out == result.out
    (big,) = [line for line in lines if " 3000 " in line]
    assert MODEL in big
    assert "days" in big
    narrow = command("cache", env={"COLUMNS": "30"}).out
    assert MODEL.split()[0] in narrow


def test_json(command: Command, kept: Path) -> None:
    report = command("cache", "--json").json
    assert (report["schema"], report["path"]) == ("specllama.cache/1", str(kept))
    assert report["bytes"] == sum((kept / name).stat().st_size for name in states(kept))
    one = {name: value for name, value in report["states"][0].items() if name not in ("id", "age_seconds")}
    assert set(one) == {"model", "kind", "tokens", "bytes", "seconds", "uses"}
    assert sorted(state["tokens"] for state in report["states"]) == [300, 400, 3000]
    assert "someone" not in command("cache", "--json").out, "not whose they are"


def test_removes_by_id_and_by_model(command: Command, kept: Path) -> None:
    small = next(s for s in command("cache", "--json").json["states"] if s["tokens"] == 300)
    result = command("cache", "rm", small["id"][:8], "--json")
    assert result.json == {
        "schema": "specllama.cache-rm/1",
        "removed": [{"id": small["id"], "model": small["model"], "bytes": small["bytes"]}],
    }
    result = command("cache", "rm", MODEL)
    assert result.code == 0
    assert len(result.out.splitlines()) == 2
    assert states(kept) == []


def test_the_demo_model_has_the_name_that_it_is_loaded_by(command: Command, tmp_path: Path) -> None:
    name, quant = _HEADER
    written(command.cache / "prefixes", record(ids((1, 300)), 5000), model=name)
    assert " demo " in command("cache").out
    trim = ("trim", str(EMBEDDED_DRAFT), str(tmp_path / "x.gguf"), "--seen")
    assert "no prompt of" not in command(*trim, "demo").err
    assert "no prompt of 'pydoc'" in command(*trim, "pydoc").err
    assert command("cache", "rm", "demo").code == 0
    assert _model({"model": name, "quant": quant}) == "demo Q4_1"
    assert _model({"model": name, "quant": "Q8_0"}) == f"{name} Q8_0"


def test_the_demo_model_is_known_by_its_header(demo: dict[str, str]) -> None:
    header = read_model(DemoStore(demo).path)
    assert (header.name, header.quant) == _HEADER


def test_nothing_is_removed_where_a_name_is_unknown(command: Command, kept: Path) -> None:
    name = states(kept)[0][:12]
    assert_error(command("cache", "rm", name, "unknown"), 3, "unknown", "specllama cache lists them")
    assert_error(command("cache", "rm", name[:3]), 3, "no prompt on disk")
    assert_error(command("cache", "rm", ""), 3)
    assert_error(command("cache", "rm"), 2)
    assert len(states(kept)) == 3


def test_clears(command: Command, kept: Path) -> None:
    (kept / ("0" * 32 + ".state")).write_bytes(b"broken")
    (kept / "notes.txt").write_text("mine")
    result = command("cache", "clear")
    assert (result.code, result.out) == (0, "removed 4 files, 5.0 MB freed\n")
    assert states(kept) == []
    assert (kept / "notes.txt").read_text() == "mine"
    assert command("cache", "clear", "--json").json == {
        "schema": "specllama.cache-clear/1",
        "removed": 0,
        "bytes": 0,
    }


def test_clears_while_a_server_writes(command: Command) -> None:
    directory = command.cache / "prefixes"
    with store(directory, write_rate=1 << 20) as one:
        assert one.put(record(ids((1, 300)), 30 << 20))
        while not list(directory.glob(".*.tmp")):
            pass
        assert command("cache", "clear", "--json").json["removed"] == 1
        assert one.flush(20)
        assert one.find("local", ids((1, 300))) == []
    assert states(directory) == []


def test_without_anything(command: Command) -> None:
    for line in (["cache"], ["cache", "ls"], ["cache", "clear"]):
        result = command(*line)
        assert (result.code, result.err) == (0, "")
    assert command("cache", "--json").json["states"] == []
    assert not (command.cache / "prefixes").exists(), "looking makes nothing"


def test_a_broken_state_is_a_line(command: Command, kept: Path) -> None:
    name = states(kept)[0]
    os.truncate(kept / name, 100)
    result = command("cache")
    assert result.code == 0
    assert name in result.err
    assert "2 prompts" in result.out


def test_a_path_that_is_no_directory_is_an_error(command: Command) -> None:
    command.cache.mkdir()
    (command.cache / "prefixes").write_text("mine")
    assert_error(command("cache"), 8, "prefixes cannot be used")
    assert_error(command("cache", "clear"), 8, "prefixes cannot be used")
    for args in (("cache",), ("cache", "clear"), ("cache", "rm", "abcd")):
        refused = command(*args, env={"SPECLLAMA_CACHE": str(command.cache / "prefixes" / "below")})
        assert_error(refused, 8, "cannot be used: Not a directory")


def test_doctor_counts_them(command: Command, kept: Path) -> None:
    n_bytes = sum((kept / name).stat().st_size for name in states(kept))
    assert command("doctor", "--json").json["cache"]["prompts"] == {"number": 3, "bytes": n_bytes}
    assert "  prompts          3, 5.0 MB; specllama cache lists them\n" in command("doctor", "--all").out


def test_a_run_says_what_it_did_not_read_again(command: Command) -> None:
    """And the prompt is listed, and forgotten with `clear`."""
    model = tinymtp.qwen35(command.home / "big.gguf", n_ctx_train=4096)
    text = "The machine sorts letters by their stamps, and keeps those without one. " * 8
    args = ("run", "-v", "-m", str(model), "-p", text, "-n", "8", "--raw", "--no-calibrate", "--temp", "0")

    def run() -> tuple[str, str]:
        done = command.start(*args, module="tests.support.keeps_prompts", fork=True).communicate(timeout=60)
        out, err = (data.decode() for data in done)
        return out, err

    first, said = run()
    assert "kept" not in said
    again, said = run()
    assert again == first
    match = re.search(r"kept +=  ?(\d+) tokens of the prompt from the disk", said)
    assert match is not None, said
    (state,) = command("cache", "--json").json["states"]
    assert 300 < int(match[1]) <= state["tokens"]
    assert command("cache", "clear").code == 0
    assert "kept" not in run()[1]


def test_answers_without_prompts_are_counted_alone() -> None:
    one = {
        "id": "a" * 12,
        "kind": "memory",
        "model": "m",
        "tokens": 3,
        "bytes": 9,
        "age_seconds": 0,
        "uses": 0,
    }
    shown = list(_lines({"states": [one], "bytes": 9, "path": "/kept"}, None))
    assert shown[0] == "1 file of answers to draft from, 9 bytes, in /kept"
