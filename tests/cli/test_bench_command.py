"""`specllama bench` as users type it, on the embedded pair."""

from __future__ import annotations

import json
import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path

import jsonschema
import psutil
import pytest

from tests.support.command import Command, Result, assert_error
from tests.support.report_schemas import COUNT, MAYBE, NUMBER, TEXT, a_list, an_object, or_null

pty = pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
if hasattr(os, "openpty"):
    from tests.support.under_way import UnderWay, under_way

QUICK = ("--runs", "1", "-n", "8")
TWO = (*QUICK, "--workloads", "edit,json", "--k", "7,2", "--temp", "0,0.8")
SHARES = a_list({"maximum": 1, "minimum": 0})


ESTIMATE = or_null(an_object(value=NUMBER, low=MAYBE, high=MAYBE, n=COUNT))
CELL = an_object(
    answers=COUNT, decode_tps=ESTIMATE, speedup=ESTIMATE, ttft_ms=ESTIMATE, n_predict=COUNT, n_drafted=COUNT,
    n_accept=COUNT, n_branch=COUNT, n_branch_accept=COUNT, n_discarded=COUNT,
    drafted_by={"type": "object"}, acceptance=MAYBE,
    accept_by_position=SHARES, accept_by_source={"type": "object"}, rounds=COUNT, decode_seconds=NUMBER,
    time=an_object(verify=NUMBER, draft=NUMBER, sampling=NUMBER, other=NUMBER),
)  # fmt: skip
ROW = an_object(
    workload={"type": ["string", "null"]}, temperature=MAYBE,
    configurations={"type": "object", "additionalProperties": CELL}, best_fixed={"type": ["string", "null"]},
    auto_against_best=ESTIMATE, auto_over_copies=ESTIMATE, regret=MAYBE,
)  # fmt: skip
MODEL = an_object(name=TEXT, path=TEXT, params=COUNT, quant=TEXT, n_gpu_layers={"type": "integer"})
OBJECT = an_object(
    schema={"const": "specllama.bench/1"}, version=TEXT, date=TEXT,
    machine=an_object(system=TEXT, machine=TEXT, cores=COUNT, n_threads=COUNT),
    target=MODEL, draft=or_null(MODEL), head=TEXT, head_in_target={"type": "boolean"},
    drafters={"type": "array", "items": TEXT}, n_ctx=COUNT, load_ms=NUMBER,
    settings=an_object(
        text={"type": ["string", "null"]}, n_tokens={"type": ["integer", "null"]}, runs=COUNT,
        k={"type": "array", "items": COUNT},
        temperatures={"type": "array", "items": NUMBER}, workloads={"type": "object"},
    ),
    exact={"type": "boolean"}, planned=COUNT, seconds=NUMBER, interrupted={"type": "boolean"},
    skipped={"type": "object"}, configurations={"type": "array", "items": TEXT}, answers=COUNT,
    too_short=COUNT, near_ties={"type": ["integer", "null"]}, total=ROW,
    rows={"type": "array", "items": ROW},
    t_n={
        "type": "array",
        "items": an_object(
            rows=NUMBER, seconds=NUMBER, relative=MAYBE, rounds=COUNT, changing_seconds=MAYBE
        ),
    },
    t_n_exact={"type": "boolean"}, draft_token_seconds=MAYBE, first_accepted=MAYBE, rounds_drafted=MAYBE,
    texts_compared=COUNT,
    texts_different={
        "type": "array",
        "items": an_object(
            workload=TEXT, prompt=COUNT, temperature=NUMBER, run=COUNT, configuration=TEXT, token=COUNT
        ),
    },
    verdict=TEXT, samples={"type": "array"},
)  # fmt: skip


@pytest.fixture(scope="module")
def tables(shared: Command) -> Result:
    return shared("bench", *TWO, env={"COLUMNS": "80"})


@pytest.fixture(scope="module")
def measured(shared: Command) -> Result:
    return shared("bench", *TWO, "--json", "--report", "bench.html")


def test_the_tables_show_every_configuration(tables: Result) -> None:
    assert tables.code == 0, tables.err
    lines = tables.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in tables.out + tables.err
    assert lines[0] == "target pydoc-target Q4_0, draft pydoc-draft Q4_0, copy, 1 thread"
    assert lines[1].startswith("80 of 80 answers, up to 8 tokens each")  # 8 prompts, 2 temperatures, 5 ways
    header = lines.index("workload temp plain t/s     2     7  copy  auto")
    labels = [line.split()[:2] for line in lines[header + 1 : header + 8]]
    assert labels == [
        ["edit", "0"], ["edit", "0.8"], ["json", "0"], ["json", "0.8"], ["all", "0"], ["all", "0.8"],
        ["all", "all"],
    ]  # fmt: skip
    for head in ("Auto against plain decoding", "All workloads together", "Accepted by position", "Texts: "):
        assert any(line.startswith(head) for line in lines), head
    assert " the speed of plain decoding" in " ".join(lines[-10:])
    assert any(line.startswith("Advice: ") for line in lines[-2:])
    told = "Your draft model: ", "No verdict: something else kept the machine busy."
    assert any(line.startswith(told) for line in lines[-6:])
    assert "regret: the share of its speed that auto misses" in " ".join(lines)
    shown = " ".join(tables.lines).replace("  ", " ")
    estimate = shown.index("measuring takes 80 answers of up to 8 tokens, after 5 to warm up; Ctrl-C shows")
    assert estimate < shown.index("that takes about ")
    assert "warming up" not in shown[:estimate]
    start = "speculation on: draft pydoc-draft Q4_0 (vocabulary identical) + copy"
    assert start in tables.lines  # a busy machine shows before it how far the loading is


def test_json_is_one_object(measured: Result) -> None:
    assert measured.code == 0, measured.err
    jsonschema.validate(measured.json, OBJECT)
    assert measured.json["configurations"] == ["plain", "2", "7", "copy", "auto"]
    assert (measured.json["answers"], measured.json["planned"], measured.json["texts_compared"]) == (
        80,
        80,
        64,
    )
    assert [(row["workload"], row["temperature"]) for row in measured.json["rows"]] == [
        ("edit", 0), ("edit", 0.8), ("json", 0), ("json", 0.8), (None, 0), (None, 0.8),
    ]  # fmt: skip
    total = measured.json["total"]["configurations"]
    assert total["plain"]["n_drafted"] == 0
    assert total["plain"]["speedup"] is None
    assert measured.json["total"]["auto_over_copies"]["value"] == pytest.approx(
        total["auto"]["speedup"]["value"] / total["copy"]["speedup"]["value"]
    )
    assert set(total["copy"]["accept_by_source"]) <= {"copy"}
    assert "model" in total["7"]["accept_by_source"]
    assert total["7"]["n_drafted"] > total["2"]["n_drafted"] > 0
    assert len(total["2"]["accept_by_position"]) == 2
    assert measured.json["t_n"][0]["relative"] == 1


def test_the_figures_are_those_of_the_samples(measured: Result) -> None:
    samples = measured.json["samples"]
    assert len(samples) == measured.json["answers"]
    for name, cell in measured.json["total"]["configurations"].items():
        mine = [s for s in samples if s["configuration"] == name]
        assert cell["answers"] == len(mine) == 16
        for counter in ("n_predict", "n_drafted", "n_accept"):
            assert cell[counter] == sum(s[counter] for s in mine)
        for s in mine:  # nothing of a prompt was there already but the template's beginning
            assert s["n_reused"] < s["n_prompt"] / 2
            assert s["decode_tps"] == pytest.approx((s["n_predict"] - 1) / s["decode_seconds"])


def test_the_report(shared: Command, measured: Result) -> None:
    assert "report: bench.html" in measured.err
    page = (shared.home / "bench.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count('data-chart="') == 3 + (len(measured.json["t_n"]) > 1)
    assert measured.json["verdict"][:20] in page
    assert [p.name for p in shared.home.glob(".bench-*")] == []


def test_llama_cpp_without_specllamas_kernels(command: Command) -> None:
    line = ("bench", *QUICK, "--workloads", "edit", "--k", "3", "--temp", "0", "--without-kernels")
    result = command(*line, "--json")
    assert result.code == 0, result.err
    assert result.json["configurations"] == ["plain", "llama.cpp", "3", "copy", "auto"]
    cells = result.json["total"]["configurations"]
    assert cells["llama.cpp"]["n_drafted"] == 0
    assert cells["llama.cpp"]["answers"] == cells["plain"]["answers"] > 0
    assert result.json["texts_compared"] == 3 * cells["plain"]["answers"]


def test_own_prompts_and_a_report_that_replaces_an_earlier_one(command: Command) -> None:
    prompts = {"short": ["What is zip?"], "long": ["word " * 3000]}
    (command.home / "mine.json").write_text(json.dumps(prompts))
    (command.home / "old.html").write_text("<title>specllama bench: old</title>")
    args = (
        "--prompts",
        "mine.json",
        "--k",
        "3",
        "--temp",
        "0",
        "--report",
        "old.html",
        *QUICK,
        "--runs",
        "2",
    )
    result = command("bench", *args)
    assert result.code == 0, result.err
    assert "Left out: prompt long 1: the prompt has" in result.out
    assert "8 of 16 answers" in result.out  # one prompt, which did not find its own cache the second time
    assert "old" not in (command.home / "old.html").read_text("utf-8").split("</title>")[0]
    (command.home / "long.json").write_text(json.dumps({"long": prompts["long"]}))
    none = command("bench", "--prompts", "long.json", *QUICK)
    assert_error(none, 2, "no prompt fits the context")


def test_without_drafters_plain_decoding_is_measured_and_it_says_why(command: Command) -> None:
    args = ("--workloads", "edit", "--temp", "0", *QUICK)
    for how in (("--drafters", "none"), ("--drafters", "grammar")):
        result = command("bench", *args, *how)
        assert result.code == 0, result.err
        assert "4 of 4 answers" in result.out
        assert "Only plain decoding was measured:" in result.out
    stored = command(
        "bench", *args, "--k", "2", env={"SPECLLAMA_DRAFT_MAX": "0", "SPECLLAMA_MAX_TOKENS": "3"}
    )
    assert stored.code == 0, stored.err
    assert "16 of 16 answers, up to 8 tokens" in stored.out  # bench decides that itself


def test_a_given_text(command: Command) -> None:
    text = "def first(a):\n    return a[0]\n\n" + "def last(a):\n    return a[-1]\n\n" * 3
    (command.home / "given.py").write_text(text)
    shown = command("bench", "--text", "given.py", "--k", "3", "--runs", "1")
    assert shown.code == 0, shown.err
    assert "4 of 4 answers, each a given text, measured in" in shown.out
    assert "The text was given" in shown.out
    args = ("--k", "3", "--runs", "1", "--json", "--report", "given.html")
    pairs = [{"prompt": "Write it.", "text": text}, {"prompt": "Again.", "text": "# Grüße\n" + text}]
    (command.home / "given.json").write_text(json.dumps({"write": pairs}))
    measured = command("bench", "--text", "given.json", *args)
    assert measured.code == 0, measured.err
    jsonschema.validate(measured.json, OBJECT)
    settings = measured.json["settings"]
    assert (settings["text"], settings["n_tokens"], settings["temperatures"]) == ("given.json", None, [0])
    written = {(s["prompt"], s["configuration"]): s["n_predict"] for s in measured.json["samples"]}
    assert len(written) == 8
    assert written[1, "plain"] == written[1, "3"] == written[1, "auto"] > 30
    assert measured.json["texts_different"] == []
    assert measured.json["total"]["configurations"]["3"]["n_accept"] > 10
    page = (command.home / "given.html").read_text("utf-8")
    assert "each a given text" in page
    part = command("bench", "--text", "given.json", *args, "-n", "5", "--temp", "0.8", "--drafters", "copy")
    assert part.code == 0, part.err
    assert {s["n_predict"] for s in part.json["samples"]} == {5}
    assert (part.json["settings"]["n_tokens"], part.json["settings"]["temperatures"]) == (5, [0.8])


def test_narrow_terminals(command: Command) -> None:
    result = command("bench", *QUICK, "--workloads", "edit", "--temp", "0", "--k", "1", env={"COLUMNS": "40"})
    assert result.code == 0, result.err
    assert max(map(len, result.out.splitlines())) <= 40


@pytest.mark.parametrize(
    ("args", "code", "needle"),
    [
        (("--k", "0"), 2, "--k"),
        (("--k", "1,65"), 2, "'65'"),
        (("--k", "two"), 2, "--k"),
        (("--k", ","), 2, "--k"),
        (("--temp", "-1"), 2, "--temp"),
        (("--temp", "nan"), 2, "--temp"),
        (("--temp", ",".join(str(i) for i in range(17))), 2, "--temp"),
        (("--runs", "0"), 2, "--runs"),
        (("--runs", "1001"), 2, "--runs"),
        (("-n", "1"), 2, "-n"),
        (("-n", "-2"), 2, "-n"),
        (("--workloads", "nope"), 2, "nope"),
        (("--prompts", "absent.json"), 3, "absent.json"),
        (("--prompts", "."), 2, "--prompts"),
        (("--report", "absent/x.html"), 2, "--report"),
        (("--report", "."), 2, "directory"),
        (("--report", "/dev/null"), 2, "regular"),
        (("--report", "precious.gguf"), 2, "not overwritten"),
        (("--report", "page.html"), 2, "not overwritten"),
        (("--report", ""), 2, "--report"),
        (("--report", "-"), 2, "--report must be the path of a file"),
        (("--text", "absent.txt"), 3, "absent.txt"),
        (("--text", "."), 2, "--text"),
        (("--text", "page.html", "--prompts", "page.html"), 2, "both given"),
        (("--text", "page.html", "--workloads", "edit"), 2, "edit"),
        (("--text", "page.html", "-n", "1"), 2, "-n"),
        (("--text", "long.txt"), 2, "no prompt fits the context"),
        (("-m", "absent.gguf"), 3, "absent.gguf"),
        (("--draft-max", "3"), 2, "--draft-max"),
        (("-pps",), 2, "-pps"),
    ],
)
def test_bad_input_is_one_clear_line(shared: Command, args: tuple[str, ...], code: int, needle: str) -> None:
    (shared.home / "precious.gguf").write_bytes(b"GGUF")
    (shared.home / "page.html").write_text("<!doctype html><title>my page</title>")
    (shared.home / "long.txt").write_text("word " * 9000)
    result = shared("bench", *args, timeout=30)
    assert_error(result, code, needle)
    assert (shared.home / "precious.gguf").read_bytes() == b"GGUF"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_report_that_may_not_be_written(command: Command) -> None:
    place = command.home / "closed"
    place.mkdir(mode=0o500)
    result = command("bench", "--report", str(place / "x.html"))
    assert (result.code, result.raw) == (2, b"")


def measuring(command: Command, path: Path) -> AbstractContextManager[UnderWay]:
    """A long bench, once it has an answer."""
    args = ("--runs", "1000", "--k", "2", "--report", str(path))
    return under_way(command, "bench", *args, until=r"measuring [^\n]*\d%")


@pty
def test_ctrl_c_shows_what_was_measured(command: Command) -> None:
    with measuring(command, command.home / "part.html") as bench:
        bench.process.send_signal(signal.SIGINT)
        code, out, err = bench.ended(20)
    assert code == 130
    assert "Interrupted: " in out
    assert "Traceback" not in err
    assert "Interrupted: " in (command.home / "part.html").read_text("utf-8")


def test_ctrl_c_before_the_first_figure_says_that_there_is_none(command: Command) -> None:
    process = command.start("bench", "--runs", "1", "-n", "1500", "--temp", "0", "--k", "1", fork=True)
    try:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith(b"measuring takes "))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert err.splitlines()[-1] == b"nothing was measured yet"


@pty
def test_what_was_measured_is_shown_if_the_engine_dies(command: Command) -> None:
    with measuring(command, command.home / "part.html") as bench:
        psutil.Process(bench.process.pid).children()[0].kill()
        code, out, err = bench.ended(20)
    assert code == 9
    assert "Interrupted: " in out
    assert "error: the engine process" in err
