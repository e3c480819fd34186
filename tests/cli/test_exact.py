"""`--exact` without specllama's kernels, where batches round differently: all decodes have one width, and the
text is the same with and without drafts.
"""

from __future__ import annotations

import itertools
import json

import pytest

from specllama.data import EMBEDDED_DRAFT
from tests.support.command import Command, CommandLine, assert_error

CODE = "def total(items):\n    result = 0\n    for item in items:\n        result += item\n"
PROMPTS = (f"Rename `result` to `payload` in this code:\n{CODE}", "Explain what zip() does.")
DRAFTS = ("--draft-max", "auto"), ("--draft-max", "5"), ("--draft-max", "0")


@pytest.fixture
def without(command: Command) -> Command:
    """Commands without the kernels."""
    command.env["SPECLLAMA_KERNELS"] = "off"
    return command


def line(prompt: str, *args: str, n: int = 90) -> CommandLine:
    asked = ("-p", prompt, "-s", "3", "-n", str(n), "--ignore-eos", "--json", "--exact-width", "8")
    models = ("-m", "pydoc", "-md", str(EMBEDDED_DRAFT))
    return CommandLine(("run", *asked, *models, *args))


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_text_is_the_same_with_and_without_drafts(without: Command, temperature: str) -> None:
    lines = [line(p, "--temp", temperature, *d) for p, d in itertools.product(PROMPTS, DRAFTS)]
    answers = [result.json for result in without.batch(*lines)]
    for texts in (answers[:3], answers[3:]):
        assert len({tuple(one["tokens"]) for one in texts}) == 1
        assert texts[1]["n_drafted"] > 20
        assert texts[2]["n_drafted"] == 0
        assert [one["exact_width"] for one in texts] == [8, 8, 8]


@pytest.mark.alone  # a busy machine may measure widths that lose
def test_the_width_is_chosen_once_and_kept(without: Command, tmp_path) -> None:
    asked = ("-p", PROMPTS[0], "-s", "1", "-n", "30", "--json", "-m", "pydoc", "--exact")
    # On one thread llama.cpp's rows are bit-equal.
    env = {"SPECLLAMA_CACHE": str(tmp_path), "SPECLLAMA_N_THREADS": "2"}
    first = without.batch(CommandLine(("run", *asked), env))[0]
    again = without.batch(CommandLine(("run", *asked, "--draft-max", "0"), env))[0]
    assert first.json["exact_width"] == again.json["exact_width"] > 1
    assert first.json["tokens"] == again.json["tokens"]
    assert f"exact: every decode has {first.json['exact_width']} rows" in first.err


def test_other_sizes_of_batches_leave_the_width_as_it_is(without: Command, tmp_path) -> None:
    """A decode has fewer rows where only fewer fit; what is stored stays."""
    asked = ("run", "-p", PROMPTS[0], "-s", "1", "-n", "20", "--json", "-m", "pydoc", "--exact")
    env = {"SPECLLAMA_CACHE": str(tmp_path), "SPECLLAMA_N_THREADS": "2"}

    def width(*args: str) -> int:
        return without.batch(CommandLine((*asked, *args), env))[0].json["exact_width"]

    assert width("-ub", "3", "-b", "64") == 3
    assert not any("exact_width" in file.read_text() for file in tmp_path.glob("calibration/*.json"))
    usual = width()  # by the machine's speed
    (file,) = tmp_path.glob("calibration/*.json")
    data = json.loads(file.read_text())
    assert data["exact_width"] == usual
    file.write_text(json.dumps(data | {"exact_width": 20, "exact_chunk": 512}))
    assert [width("-ub", "16", "-b", "16"), width()] == [16, 20]


@pytest.mark.alone
@pytest.mark.parametrize("kernels", ["command", "without"])
def test_without_flash_attention_decodes_have_one_width(request, tmp_path, kernels: str) -> None:
    """llama.cpp's rows are bit-equal after some texts then, and not after others, some of 900 tokens."""
    asked = (
        "run",
        "-p",
        "def read(",
        "--raw",
        "-s",
        "1",
        "-n",
        "40",
        "--ignore-eos",
        "-m",
        "pydoc",
        "--exact",
    )
    env = {"SPECLLAMA_CACHE": str(tmp_path), "SPECLLAMA_N_THREADS": "2"}
    more, command = ("-fa", "off", "--json", "--draft-max"), request.getfixturevalue(kernels)
    plain, drafted = (command.batch(CommandLine((*asked, *more, n), env))[0].json for n in ("0", "1"))
    assert plain["tokens"] == drafted["tokens"]
    assert plain["exact_width"] == drafted["exact_width"] > 1


def test_nothing_changes_where_rows_are_bit_equal(command: Command) -> None:
    result = command("run", "-p", PROMPTS[0], "-n", "20", "--json", "-m", "pydoc", "--exact")
    if "kernels are not used" not in result.err:
        assert "exact_width" not in result.json


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--exact-width", "0"), ("--exact-width",)),
        (("--exact-width", "300"), ("at most 65 rows", "--exact-width")),
        (("--exact-width", "9", "-ub", "8"), ("at most 8 rows", "--exact-width")),
        (("--exact-width", "many"), ("--exact-width",)),
    ],
)
def test_impossible_widths_are_refused(without: Command, args, words) -> None:
    asked = ("run", "-p", "hi", "-n", "5", "-m", "pydoc", *args)
    assert_error(without(*asked), 2, *words)


def test_with_single_rows_speculation_is_off(command: Command) -> None:
    result = command("run", "-p", PROMPTS[0], "-n", "20", "--exact-width", "1", "--ignore-eos")
    assert result.lines[0] == "speculation off: --exact-width 1"
    assert "nothing was drafted: --exact-width 1" in result.err
