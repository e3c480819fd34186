"""How the commands name a trained head, and count what it drafted."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest

from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.command import Command

LAST = (0.0, 1.0)  # only the last block adds something: a head that is a copy of it is perfect
ARGS = ("-c", "1024", "-t", "1")
PLAIN = ("--temp", "0", "--ignore-eos", "--raw")


@pytest.fixture(params=["inside", "file"])
def pair(request: pytest.FixtureRequest, command: Command) -> tuple[tuple[str, ...], str, str]:
    """The arguments that load a model with a head; kind and size of the head; its name for people."""
    model: Path = command.home / "big.gguf"
    if request.param == "inside":
        tinymtp.mimo2(model, adds=LAST, copied=True)
        return ("-m", model.name, *ARGS), "MTP, 1 layer", "head of the model (MTP, 1 layer)"
    tinygguf.llama(model, adds=LAST)
    tinyheads.eagle3(command.home / "small.gguf", copy_of=model)
    return ("-m", model.name, "-md", "small.gguf", *ARGS), "EAGLE-3", "head tiny-eagle3 F32 (EAGLE-3)"


def test_an_answer(command: Command, pair: tuple[tuple[str, ...], str, str]) -> None:
    args, head, name = pair
    given = ("run", "-v", *args, "-p", "once upon a time", "-n", "60", "--draft-max", "3", *PLAIN)
    shown, as_json = command.many(given, (*given, "--json"), timeout=120)
    assert shown.code == as_json.code == 0, shown.err + as_json.err
    assert f"speculation on: {name} + copy, length up to 3" in shown.err
    assert "head " in next(line for line in shown.lines if line.startswith("n_drafted"))
    answer = as_json.json
    assert answer["head"] == head
    assert answer["drafted_by"]["head"] > 20
    first, *later = answer["accept_by_source"]["head"]
    assert first > 0.8
    assert len(later) == 2


@pytest.mark.parametrize("small", [("-cd", "1"), ("-c", "2", "-cd", "2"), ("-b", "1", "-ub", "1")])
def test_the_smallest_contexts_and_batches(
    command: Command, pair: tuple[tuple[str, ...], str, str], small: tuple[str, ...]
) -> None:
    """llama.cpp aborts the process on more rows than its batch has; the head's is no smaller than a draft."""
    given = ("run", "-v", "-p", "once", "-n", "12", "--draft-max", "3", "--no-calibrate", *PLAIN)
    shown = command(*given, *(x for x in pair[0] if small[0] != "-c" or x not in ("-c", "1024")), *small)
    plain = command(*given, "-m", pair[0][1], "-md", "none", "--drafters", "none", "-t", "1")
    assert shown.code == plain.code == 0, shown.err
    assert shown.out == plain.out
    assert "head " in next(line for line in shown.lines if line.startswith("n_drafted"))


def test_a_bench(command: Command, pair: tuple[tuple[str, ...], str, str]) -> None:
    args, head, name = pair
    few = ("--workloads", "json", "-n", "16", "--runs", "1", "--k", "2", "--temp", "0")
    shown = command("bench", *args, *few, "--report", "report.html", timeout=120)
    as_json = command("bench", *args, *few, "--json", timeout=120)
    assert shown.code == as_json.code == 0, shown.err + as_json.err
    assert name in " ".join(shown.out.split())
    assert name in unescape((command.home / "report.html").read_text())
    assert as_json.json["head"] == head
    cell = as_json.json["total"]["configurations"]["2"]
    assert cell["drafted_by"]["head"] > 10
    assert len(cell["accept_by_source"]["head"]) == 2


def test_a_head_and_a_draft_model(command: Command) -> None:
    tinymtp.mimo2(command.home / "big.gguf", adds=LAST, copied=True)
    tinymtp.mimo2(command.home / "small.gguf", adds=LAST, part="trunk")
    given = ("-m", "big.gguf", "-md", "small.gguf", *ARGS)
    names = "head of the model (MTP, 1 layer) + draft tiny-mimo2 F32"
    run = ("run", *given, "-p", "once upon a time", "-n", "60", *PLAIN)
    shown, as_json, plain, off = command.many(
        run, (*run, "--json"), (*run, "--draft-max", "0"), (*run, "--drafters", "copy"), timeout=120
    )
    assert [one.code for one in (shown, as_json, plain, off)] == [0] * 4, shown.err + as_json.err
    assert f"speculation on: {names} (vocabulary identical) + copy, length auto" in shown.err
    answer = as_json.json
    assert (answer["head"], answer["head_in_target"]) == ("MTP, 1 layer", True)
    assert Path(answer["draft"]["path"]).name == "small.gguf"
    assert shown.out == plain.out == off.out
    assert "speculation on: copy, length auto" in off.err
    few = ("--workloads", "json", "-n", "16", "--runs", "1", "--k", "2", "--temp", "0")
    bench = command("bench", *given, *few, "--report", "report.html", timeout=120)
    as_json = command("bench", *given, *few, "--json", timeout=120)
    assert bench.code == as_json.code == 0, bench.err + as_json.err
    assert names in " ".join(bench.out.split())
    assert names in unescape((command.home / "report.html").read_text())
    assert (as_json.json["head"], as_json.json["head_in_target"]) == ("MTP, 1 layer", True)


def test_files_that_do_not_fit(command: Command) -> None:
    """A draft model that does not fit is an error, whatever the target has; a damaged target is one too."""
    tinymtp.mimo2(command.home / "big.gguf")
    tinymtp.qwen35(command.home / "damaged.gguf", part="promise")
    tinymtp.mimo2(command.home / "promise.gguf", part="promise")
    tinygguf.llama(command.home / "small.gguf")
    tinygguf.llama(command.home / "other.gguf", n_vocab=500)
    runs = (("big", "other"), ("damaged", "small"), ("promise", "small"))
    results = command.many(
        *(("run", "-m", f"{a}.gguf", "-md", f"{b}.gguf", *ARGS, "-p", "zip", "-n", "4") for a, b in runs),
        timeout=120,
    )
    assert [one.code for one in results] == [7, 6, 0]
    assert "target and draft do not fit together" in results[0].err
    assert "the header promises 1 MTP layer, which the file does not have" in results[1].err
    reason = (
        "the head of the model is not used: the header promises 1 MTP layer, which the file does not have"
    )
    assert " ".join(results[2].err.split()).count(reason) == 1
    assert "speculation on: draft tiny-llama F32 (vocabulary identical) + copy" in results[2].err
