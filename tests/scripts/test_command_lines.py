"""Every script starts, and bad input is one line; pages that scripts write are up to date."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from specllama.data import EMBEDDED_TARGET
from tests.support import tinygguf
from tests.support.command import Command
from tests.support.paths import ROOT

MODULES = (
    "scripts.bench.capacity", "scripts.bench.conversations", "scripts.bench.experts",
    "scripts.bench.images", "scripts.bench.kernels",
    "scripts.bench.known_text", "scripts.bench.make_pair", "scripts.bench.peers", "scripts.bench.peers.table",
    "scripts.bench.prefix_sessions", "scripts.bench.prefix_gaps", "scripts.bench.prefix_restart",
    "scripts.bench.random_shapes", "scripts.bench.reuse", "scripts.bench.texts", "scripts.bench.trim",
    "scripts.bench.trim_gain", "scripts.bench.widths", "scripts.replay",
    "tests.agents.sessions", "tests.browser.measure", "tests.browser.screenshots", "tests.fuzz",
    "tests.kernel_checks", "tests.soak",
    "training", "training.head", "training.head.acceptance", "training.head.write", "training.make_data",
)  # fmt: skip

HOME = tempfile.TemporaryDirectory()


def run(module: str, *args: object) -> subprocess.CompletedProcess[str]:
    return Command(Path(HOME.name)).python("-m", module, *args)


@pytest.mark.parametrize("module", MODULES)
def test_an_unknown_option_is_one_line(module: str) -> None:
    done = run(module, "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"python -m {module}: ")


@pytest.mark.parametrize("module", ["scripts.bench.make_pair", "training.head.acceptance"])
def test_an_empty_folder_of_llama_cpp_is_as_if_it_were_not_set(module: str) -> None:
    environ = os.environ | {"LLAMA_CPP_LIB_PATH": ""}
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, env=environ, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_is_the_docstring_and_every_option() -> None:
    done = run("scripts.bench.make_pair", "--help")
    assert done.returncode == 0
    assert "usage: python -m scripts.bench.make_pair" in done.stdout
    assert "options:" in done.stdout
    assert "q4_0_pure" in done.stdout
    assert "(at least 3)" in done.stdout


def test_what_kernels_and_pairs_cannot_be_measured_with_is_one_line(tmp_path: Path) -> None:
    """Before anything is measured."""
    cut, other = tmp_path / "cut.gguf", tmp_path / "other.gguf"
    cut.write_bytes(EMBEDDED_TARGET.read_bytes()[:100_000])
    tinygguf.llama(other, keep=lambda name: name != "blk.0.attn_k.weight")
    for module, given, said in (
        ("kernels", ("--json", tmp_path / "none" / "x.json"), "is not a file that can be written"),
        ("kernels", ("--products", tmp_path), "is not a file that can be written"),
        ("kernels", ("--rows", "-1"), "-1 is less than 1"),
        ("kernels", ("--rows", "1-100000000"), "100000000 is more than 1048576"),
        ("kernels", ("--rows", "8-2"), "8-2: 2 is less than 8"),
        ("kernels", ("--rows", "1000000"), "GB are available: name fewer --rows"),
        ("kernels", ("--mib", "100000000"), "GB are available"),
        ("kernels", ("--experts", "100000"), "GB are available"),
        ("kernels", ("-t", "100000"), "cores of this machine"),
        ("kernels", ("--best", "nan"), "'nan' is not a number of seconds"),
        ("kernels", ("--used", "2"), "--used needs --experts"),
        ("kernels", ("--types", "Q9"), "'q9' is none of f16, "),
        ("make_pair", ("--out", tmp_path, "--used", "2"), "--used needs --experts"),
        ("make_pair", ("--out", tmp_path, "--target-params", "1"), "too few for an extra block"),
        ("make_pair", ("--out", tmp_path, "--target", cut), "cut.gguf: not a whole GGUF file"),
        ("make_pair", ("--out", tmp_path, "--draft", other), "other.gguf: blk.0.attn_k.weight is missing"),
        ("make_pair", ("--out", tmp_path, "--random-vocab", "2000", "--types", "q4_0"), "without --types"),
    ):
        done = run(f"scripts.bench.{module}", *given)
        assert (done.returncode, done.stdout) == (2, ""), given
        assert done.stderr.startswith(f"python -m scripts.bench.{module}: "), done.stderr
        assert said in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


def test_ctrl_c_is_no_traceback_while_a_script_is_imported() -> None:
    done = Command(Path(HOME.name)).python("-c", "import scripts; raise KeyboardInterrupt")
    assert done.returncode != 0
    assert done.stderr == ""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="what measures the limits is for x86-64")
def test_ctrl_c_keeps_what_has_been_measured_of_the_kernels(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    given = [
        "--types",
        "Q8_0,q4_0",
        "--rows",
        "1",
        "--runs",
        "1",
        "--mib",
        "1",
        "--best",
        "2",
        "--json",
        figures,
    ]
    command = [sys.executable, "-m", "scripts.bench.kernels", *map(str, given)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run_:
        assert run_.stdout is not None
        assert run_.stderr is not None
        while not run_.stdout.readline().startswith("| Q8_0"):
            assert run_.poll() is None, run_.stderr.read()
        run_.send_signal(signal.SIGINT)
        printed, said = run_.communicate(timeout=60)
    assert (run_.returncode, said) == (130, "")
    assert printed.rstrip().endswith("of 8-bit integers")
    assert [one["type"] for one in json.loads(figures.read_text())] == ["q8_0"]


def test_pairs_that_were_made_before_the_end_are_listed(tmp_path: Path) -> None:
    small = ["--target-params", "16M", "--target-blocks", "1", "--rounds", "3", "--threads", "1"]
    given = ["--out", str(tmp_path), "--types", "q4_0", "--draft-costs", "0.01,0.9", *small]
    command = [sys.executable, "-m", "scripts.bench.make_pair", *given]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as making:
        assert making.stdout is not None
        while not making.stdout.readline().startswith("q4_0"):
            assert making.poll() is None
        making.terminate()
        making.communicate(timeout=60)
    assert making.returncode == 143
    assert [pair["cost"] for pair in json.loads((tmp_path / "pairs.json").read_text())["pairs"]] == [0.01]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="what measures the limits is for x86-64")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_figures_of_the_kernels_that_cannot_be_written_are_printed() -> None:
    given = ("--types", "q4_0", "--rows", "1", "--runs", "1", "--mib", "1", "--json", "/dev/full")
    done = run("scripts.bench.kernels", *given)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "/dev/full cannot be written (No space left on device)" in done.stderr
    assert json.loads(done.stdout[done.stdout.index("[\n") :])[0]["type"] == "q4_0"


@pytest.mark.parametrize(("script", "given"), [("kernels", "--mib=1"), ("experts", "model.gguf")])
def test_what_measures_with_kernels_and_without_refuses_a_choice_of_them(script: str, given: str) -> None:
    command = [sys.executable, "-m", f"scripts.bench.{script}", given]
    environ = os.environ | {"SPECLLAMA_KERNELS": "off"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "SPECLLAMA_KERNELS is off" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


def test_the_page_and_the_types_of_options_are_up_to_date() -> None:
    assert run("scripts.options_page", "--check").returncode == 0, "python -m scripts.options_page"
    fields = run("scripts.fields_page", "--check")
    assert fields.returncode == 0, fields.stderr or "python -m scripts.fields_page"


def test_with_more_memory_replayed_sessions_evaluate_less(tmp_path: Path) -> None:
    """Of the recorded ones that are given, and of those that are made up."""
    messages = [{"role": "system", "content": "s" * 400}, {"role": "user", "content": "u" * 40}]
    more = [*messages, {"role": "assistant", "content": "a"}, {"role": "user", "content": "v" * 40}]
    path = tmp_path / "session.json"
    path.write_text(json.dumps([{"messages": messages}, {"messages": more}]), "utf-8")
    for given in ((), ("--file", path)):
        done = run("scripts.bench.prefix_sessions", "--seeds", 1, *given)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        for memory in ("full", "rollback"):
            evaluated = [found[f"{memory} {budget}"]["evaluated"] for budget in (1000, 3000, 10_000)]
            assert evaluated == sorted(evaluated, reverse=True)
            assert evaluated[-1] > 0
