"""`specllama tune` as users type it, on the embedded pair."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import jsonschema
import psutil
import pytest

from specllama.core.policy.cost_curve import WIDTHS as AT_LOADING
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from tests.support import tinygguf, tinymtp
from tests.support.command import Command, Result, assert_error
from tests.support.report_schemas import COUNT, MAYBE, NUMBER, TEXT, a_list, an_object, or_null
from tests.support.scrambled import scramble

pty = pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
if hasattr(os, "openpty"):
    from tests.support.under_way import UnderWay, under_way

QUICK = ("--workloads", "edit,json", "-n", "16", "--ignore-load")  # other tests run beside these
SHARE = {"type": "number", "minimum": 0, "maximum": 1}


MODEL = an_object(name=TEXT, path=TEXT, params=COUNT, quant=TEXT, n_gpu_layers={"type": "integer"})
FORECAST = {
    "speedup": NUMBER,
    "acceptance": or_null(SHARE),
    "tokens": COUNT,
    "n_drafted": COUNT,
    "n_accept": COUNT,
}
POINT = {"rows": COUNT, "seconds": NUMBER, "count": COUNT}
ENTRANT = {
    "name": TEXT, "path": or_null(TEXT), "problem": TEXT, "model": or_null(MODEL), "head": TEXT,
    "step_seconds": MAYBE, "step_points": a_list(an_object(**POINT)),
    "break_even": a_list(an_object(k=COUNT, acceptance=SHARE, decode=NUMBER, step=NUMBER)),
    "trimmed": {"type": "null"},
}  # fmt: skip
RANKED = an_object(
    **ENTRANT, **FORECAST, workloads={"type": "object", "additionalProperties": an_object(**FORECAST)}
)
NOT_RANKED = an_object(
    **ENTRANT, speedup={"type": "null"}, acceptance={"type": "null"}, workloads={"type": "object"}
)
OBJECT = an_object(
    schema={"const": "specllama.tune/1"}, version=TEXT, date=TEXT,
    machine=an_object(system=TEXT, machine=TEXT, cores=COUNT, n_threads=COUNT),
    target=MODEL, n_ctx=COUNT, load_ms=NUMBER, stored={"type": "boolean"}, seconds=NUMBER,
    interrupted={"type": "boolean"}, disturbed={"type": "boolean"},
    t_n=a_list(
        an_object(
            n_ids=COUNT, points=a_list(an_object(**POINT, relative=NUMBER)), left_out=a_list(COUNT),
            complete={"type": "boolean"}, spread=NUMBER, disturbed={"type": "boolean"},
        )
    ),
    threads=an_object(
        used=COUNT, used_batch=COUNT, rows=COUNT,
        points=a_list(an_object(threads=COUNT, one=NUMBER, wide=NUMBER)), fastest=COUNT, gain=NUMBER,
        clear={"type": "boolean"}, disturbed={"type": "boolean"},
    ),
    epsilon=an_object(
        value=NUMBER, n_rows=COUNT, reach=COUNT, alike=COUNT, unlike=or_null(COUNT), reason=TEXT,
    ), n_tokens=COUNT, prompts_left_out=COUNT,
    prompts_too_long={"type": "object"},
    texts={"type": "object", "additionalProperties": an_object(texts=COUNT, tokens=COUNT)},
    ranking=a_list(RANKED), not_ranked=a_list(NOT_RANKED), verdict=TEXT,
)  # fmt: skip


@pytest.fixture(scope="module")
def foreign(shared: Command) -> Path:
    """A model of another vocabulary."""
    return tinygguf.llama(shared.home / "foreign.gguf")


@pytest.fixture(scope="module")
def measured(shared: Command, foreign: Path) -> Result:
    """Three drafts: a real one, one that knows nothing, one that does not fit."""
    scramble(EMBEDDED_DRAFT, shared.home / "nothing.gguf")
    shutil.copy(EMBEDDED_DRAFT, shared.home / "real.gguf")
    drafts = ("-md", "nothing.gguf", "-md", "none", "-md", "real.gguf", "-md", foreign.name)
    return shared("tune", *drafts, *QUICK, "--json", timeout=240)


def test_json_is_one_object(measured: Result) -> None:
    assert measured.code == 0, measured.err
    data = measured.json
    jsonschema.validate(data, OBJECT)
    assert (data["stored"], data["interrupted"], data["n_tokens"]) == (True, False, 16)
    assert {name: t["texts"] for name, t in data["texts"].items()} == {"edit": 4, "json": 4}
    assert {e["path"] for e in data["ranking"]} == {"nothing.gguf", "real.gguf", None}
    speedups = [e["speedup"] for e in data["ranking"]]
    assert speedups == sorted(speedups, reverse=True)
    accepted = {e["path"]: e["acceptance"] for e in data["ranking"]}
    assert accepted["nothing.gguf"] < 0.2 < 0.5 < accepted["real.gguf"]
    assert accepted[None] is None
    (other,) = data["not_ranked"]
    assert other["path"] == "foreign.gguf"
    assert other["problem"]
    assert [b["k"] for b in data["ranking"][0]["break_even"]] == [1, 2, 3, 5, 7, 11, 15]
    assert data["t_n"][0]["points"][0]["relative"] == 1
    assert "Predicted, not measured" in data["verdict"]


def test_stdout_has_only_the_object(measured: Result) -> None:
    assert measured.out.count("\n") == 1
    assert any(line.startswith("measuring; Ctrl-C ") for line in measured.lines)
    assert "\x1b" not in measured.err + measured.out
    assert "Traceback" not in measured.err


def test_the_next_run_uses_what_was_measured(shared: Command, measured: Result) -> None:
    data = measured.json
    (file,) = (shared.cache / "calibration").glob("*.json")
    stored = json.loads(file.read_text())
    near = {str(p["rows"]): p["seconds"] for p in data["t_n"][0]["points"]}
    assert {str(n): seconds for n, seconds, _ in stored["curves"]["0"]["widths"]} == near
    assert (stored["t1"], stored["epsilon"]) == (near["1"], data["epsilon"]["value"])
    of_drafts = [p["learnt"]["priced"]["model"]["steps"] for p in stored["pairs"] if p["pair"]["draft"]]
    assert len(of_drafts) == 2  # of the same name and sizes, and of other contents
    for steps in of_drafts:
        assert [n for n, _, _ in steps["widths"]][:3] == [1, 2, 3]
    run = ("run", "-p", "zip", "--draft-max", "0", "-n", "3", "--json", "--no-calibrate")
    assert shared(*run).json["plain_source"] == "stored"


def test_the_tables(command: Command) -> None:
    result = command("tune", *QUICK, "--no-store", timeout=240, env={"COLUMNS": "80"})
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("target pydoc-target Q4_0, 1 thread; measured in ")
    assert lines[0].endswith("nothing was stored")
    for head in (
        "t(n), a decode of n rows after ", "Threads, ms:", "Exactness: batch",
        "A draft of k tokens pays from", "Predicted speed over plain decoding, on 8 texts", "Best: ",
    ):  # fmt: skip
        assert any(line.startswith(head) for line in lines), head
    names = [line.split()[0] for line in lines if line.startswith(("copied", "copy alone", "pydoc-draft"))]
    assert sorted(names) == ["copied", "copy", "pydoc-draft", "pydoc-draft"]
    words = " ".join(result.out.split())  # wherever the lines break
    assert "specllama bench" in words
    assert not command.cache.exists()


def test_it_runs_without_a_draft_and_without_any_drafter(command: Command) -> None:
    (command.home / "one.json").write_text(json.dumps({"mine": ["What is zip?"]}))
    args = ("--prompts", "one.json", "-n", "4", "--json", "--ignore-load")
    none, nobody = command.many(
        ("tune", "-md", "none", *args), ("tune", "--drafters", "grammar", *args), timeout=240
    )
    assert none.code == nobody.code == 0, none.err + nobody.err
    assert [e["path"] for e in none.json["ranking"]] == [None]
    assert none.json["texts"] == {"mine": {"texts": 1, "tokens": 4}}
    assert "It rests on only 4 tokens" in none.json["verdict"]
    assert nobody.json["ranking"] == nobody.json["not_ranked"] == []
    assert nobody.json["verdict"] == "No draft was ranked: nothing drafts here."
    assert nobody.json["t_n"][0]["complete"]


@pytest.mark.parametrize(
    ("args", "code", "needle"),
    [
        (("-n", "1"), 2, "-n"),
        (("-n", "-2"), 2, "-n"),
        (("-n", "x"), 2, "-n"),
        (("--workloads", "nope"), 2, "nope"),
        (("--prompts", "absent.json"), 3, "absent.json"),
        (("--prompts", "."), 2, "--prompts"),
        (("-m", "absent.gguf"), 3, "absent.gguf"),
        (("-md", "absent.gguf"), 3, "absent.gguf"),
        (("-md", ""), 2, "-md"),
        (("-md", "auto", "-md", "./draft.gguf", "-md", "draft.gguf"), 2, "draft.gguf is given twice"),
        (("-m", "main.gguf", "-md", "./main.gguf"), 2, "./main.gguf is the target itself, which has no head"),
        (("-md", "link.gguf", "-m", "main.gguf"), 2, "link.gguf is the target itself"),
        (("-md", "draft.gguf", "--drafters", "copy"), 2, "--drafters leaves the draft model out"),
        (("-md", "broken.gguf"), 6, "broken.gguf"),
        (("-m", "broken.gguf", "-md", "draft.gguf"), 6, "broken.gguf"),
        (("-md", "foreign.gguf"), 7, "foreign.gguf"),
        (("-t", "0x"), 2, "-t"),
        (("-t", "-1"), 2, "-t must be"),
        (("--draft-max", "3"), 2, "--draft-max"),
        (("--runs", "3"), 2, "--runs"),
        (("-pps",), 2, "-pps"),
        (("extra",), 2, "extra"),
    ],
)
def test_bad_input_is_one_clear_line(
    shared: Command, foreign: Path, args: tuple[str, ...], code: int, needle: str
) -> None:
    home = foreign.parent
    if not (home / "main.gguf").exists():
        shutil.copy(EMBEDDED_TARGET, home / "main.gguf")
        shutil.copy(EMBEDDED_DRAFT, home / "draft.gguf")
        (home / "link.gguf").symlink_to(home / "main.gguf")
        (home / "broken.gguf").write_bytes(EMBEDDED_DRAFT.read_bytes()[:-5])
    result = shared("tune", *args, timeout=60)
    assert_error(result, code, needle)


def test_all_unusable_drafts_are_named(shared: Command, foreign: Path) -> None:
    shutil.copy(foreign, foreign.parent / "other.gguf")
    result = shared("tune", "-md", "foreign.gguf", "-md", "other.gguf")
    assert_error(result, 7, "error: no draft fits the target: foreign.gguf: ", "other.gguf: ", "pair-check")


@pytest.mark.parametrize("args", [(), ("-md", "auto", "-md", "./mtp.gguf"), ("-md", "main-head.gguf")])
def test_the_head_inside_the_model_is_a_draft(command: Command, args: tuple[str, ...]) -> None:
    model = tinymtp.mimo2(command.home / "main-head.gguf", adds=(0.0, 1.0), copied=True)
    tinymtp.mimo2(command.home / "mtp.gguf", seed=3, part="head")
    (command.home / "one.json").write_text(json.dumps({"mine": ["What is zip?"]}))
    given = ("tune", "-m", model.name, "--prompts", "one.json", "-n", "16", "-c", "512", "--json", *args)
    result = command(*given, timeout=120)
    assert result.code == 0, result.err
    ranked = {e["name"]: e for e in result.json["ranking"]}
    inside = ranked.pop("head of the model")
    assert (inside["path"], inside["head"], inside["problem"]) == (model.name, "MTP, 1 layer", "")
    assert inside["acceptance"] > 0.9
    assert inside["step_points"][0]["rows"] == 1
    assert set(ranked) == {"copy alone", *(["mtp"] if "./mtp.gguf" in args else [])}


def test_a_head_that_is_only_promised_is_no_draft(command: Command) -> None:
    model = tinymtp.mimo2(command.home / "promise.gguf", part="promise")
    result = command("tune", "-m", model.name, "-md", model.name)
    assert_error(result, 7, "the header promises 1 MTP layer, which the file does not have")


def measuring(command: Command, *args: str) -> AbstractContextManager[UnderWay]:
    """A long tune, once it is writing texts."""
    return under_way(command, "tune", "-n", "2000", "--ignore-load", *args, until="writing texts")


@pty
def test_ctrl_c_stores_and_shows_what_was_measured(command: Command) -> None:
    with measuring(command) as tune:
        tune.process.send_signal(signal.SIGINT)
        code, out, err = tune.ended(60)
    assert code == 130
    assert "interrupted, what was complete is stored" in out
    assert "t(n), a decode of n rows" in out
    assert "pydoc-draft was not measured to the end." in out
    assert "Traceback" not in err
    (file,) = (command.cache / "calibration").glob("*.json")
    assert len(json.loads(file.read_text())["curves"]["0"]["widths"]) > 5


def test_figures_of_a_busy_machine_are_not_stored_and_give_no_advice(command: Command) -> None:
    spin = [sys.executable, "-c", "while True: pass"]
    # Sessions of their own: Linux shares processors among sessions first.
    others = [psutil.Popen(spin, start_new_session=True) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        result = command("tune", "--workloads", "edit", "-n", "8", "-md", "none", "--json", timeout=240)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert result.code == 0, result.err
    data = result.json
    assert (data["disturbed"], data["stored"]) == (True, False)
    assert data["verdict"] == "No draft is recommended by figures that are off."
    (file,) = (command.cache / "calibration").glob("*.json")
    stored = json.loads(file.read_text())["curves"].get("0", {"widths": []})
    widths = {rows for rows, *_ in stored["widths"]}
    assert widths <= set(AT_LOADING)  # of the load and of the texts, as runs learn it
    assert {p["rows"] for p in data["t_n"][0]["points"]} - set(AT_LOADING)


@pty
def test_what_was_measured_is_shown_if_the_engine_dies(command: Command) -> None:
    with measuring(command, "--json") as tune:
        psutil.Process(tune.process.pid).children()[0].kill()
        code, out, err = tune.ended(60)
    assert code == 9
    data = json.loads(out)
    assert data["interrupted"]
    assert data["t_n"][0]["complete"]
    assert "error: the engine process" in err
