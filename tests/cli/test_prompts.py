"""Where the prompt of `run` comes from, and names and flags that people bring from other programs."""

from __future__ import annotations

import re

import pytest
from typer import TyperException

from specllama.cli.app import app, outcome
from specllama.cli.llama_cpp_flags import hints, without_them
from specllama.config.options import CHAT, EMBED, RUN, SERVE
from specllama.errors import UsageError
from tests.support.command import Command, assert_error
from tests.support.image_files import png

TEXT = "What does zip do?\nGrüße, 日本"
FEW = ("--temp", "0", "-n", "3", "--no-calibrate", "--json")


def test_files_of_all_kinds_and_pipes_give_the_same_prompt(shared: Command) -> None:
    texts = {
        "plain": TEXT.encode(), "newline": f"{TEXT}\n".encode(), "mark": TEXT.encode("utf-8-sig"),
        "utf-16": TEXT.encode("utf-16"), "crlf": f"{TEXT}\r\n".encode(),
    }  # fmt: skip
    for name, data in texts.items():
        (shared.home / name).write_bytes(data)
    lines = [("-p", TEXT), TEXT.split(" "), *(("-f", name) for name in texts), ("-f", "~/plain")]
    results = shared.many(*(("run", *FEW, *line) for line in lines))
    results += [shared("run", *FEW, *line, stdin=texts["mark"] + b"\n") for line in ((), ("-f", "-"))]
    assert [result.code for result in results] == [0] * len(results)
    assert len({(result.json["n_prompt"], *result.json["tokens"]) for result in results}) == 1


def test_what_is_piped_or_in_a_file_is_appended_to_the_prompt(shared: Command) -> None:
    (shared.home / "code.py").write_text("print(1)\n")
    code = b"print(1)\n"
    ask = ("run", *FEW, "-p", "Explain this")
    expected, both = shared.many(
        [*ask[:-1], "Explain this\n\nprint(1)"], [*ask[:-1], "Explain this\n\nprint(1)\n\nx"]
    )
    results = [
        shared(*ask, stdin=code),
        shared(*ask, "-f", "code.py"),
        shared("run", *FEW, "Explain", "this", "-f", "-", stdin=code),
    ]
    assert [result.json["n_prompt"] for result in results] == [expected.json["n_prompt"]] * 3
    assert len({tuple(result.json["tokens"]) for result in [*results, expected]}) == 1
    assert shared(*ask, "-f", "code.py", stdin=b"x").json["n_prompt"] == both.json["n_prompt"]
    raw = shared("run", *FEW, "--raw", "-p", "def f():", stdin=b"\n    pass")
    assert raw.json["n_prompt"] == shared("run", *FEW, "--raw", "-p", r"def f():\n    pass").json["n_prompt"]


def test_escapes_are_processed_unless_they_are_not_wanted(shared: Command) -> None:
    (shared.home / "escapes").write_text(r"a\nb")
    lines = [
        (r"a\nb",), ("--no-escape", r"a\nb"), ("-f", "escapes"), ("-f", "escapes", "-e"), ("a\nb",),
        ("--raw", "-p", "a:", "-n", "40", "--ignore-eos", "-r", r"\n"),
    ]  # fmt: skip
    new, kept, file, escaped, real, stopped = shared.many(*(("run", *FEW, *line) for line in lines))
    assert new.json["n_prompt"] == escaped.json["n_prompt"] == real.json["n_prompt"]
    assert kept.json["n_prompt"] == file.json["n_prompt"] > real.json["n_prompt"]
    assert "\n" not in stopped.json["text"]
    assert stopped.json["finish_reason"] == "stop"


def test_quiet_leaves_the_answer_alone(shared: Command) -> None:
    result = shared("run", "-q", "zip", "-n", "3", "--no-calibrate", "--color", "auto")
    assert (result.code, bool(result.raw)) == (0, True)
    assert result.err == "", "flags that are left out are no warning"
    assert shared("run", "-q", "zip", "-n", "3", "--no-calibrate").err == ""


@pytest.mark.parametrize(
    ("line", "needles"),
    [
        ("run llama3.2", ("'llama3.2' looks like the name of a model", "-m llama3.2", "chat -m llama3.2")),
        ("run qwen3:8b Who wrote Faust?", ('-p "Who wrote Faust?"',)),
        ("run user/repo-GGUF hello", ("-m user/repo-GGUF",)),
        ("run -p Who wrote Faust?", ("two prompts", "'wrote Faust?'", "quotation marks")),
        ("chat hello", ("unexpected extra argument", "chat -m NAME", "specllama run TEXT")),
        ("serve llama3.2", ("unexpected extra argument", "serve -m NAME")),
        ("run -p x -cnv", ("no such option: -cnv", "specllama chat")),
        ("run -p x -sysf a.txt", ("no such option: -sysf", "-sys")),
        ("run -p x -fa", ("-fa needs a value: on, off or auto",)),
        ("chat -fa -n 3", ("-fa needs a value: on, off or auto",)),
        ("run --reasoning -p x", ("--reasoning needs a value",)),
        ("run --draft-max -p x", ("--draft-max needs a value: a number or auto",)),
        ("run --draft-tree -p x", ("--draft-tree needs a value: a number, auto or off",)),
        ("run -p x --draft-max -1", ("--draft-max must be a whole number from 0 or auto, not '-1'",)),
        ("run -p x --draft-tree -1", ("--draft-tree must be a whole number from 0, auto or off, not '-1'",)),
        ("run -p x -ngl -3", ("must be a number of layers from 0, auto or all, not '-3'",)),
        ("run -p x -ncmoe -1", ("-ncmoe must be a whole number from 0, not -1",)),
        ("run -p x -ncmoed -1", ("-ncmoed must be a whole number from 0, not -1",)),
        ("run -p x -n abc", ("must be a whole number, not 'abc'",)),
    ],
)  # fmt: skip
def test_what_other_programs_take_is_answered_with_a_way(shared: Command, line: str, needles) -> None:
    assert_error(shared(*line.split(" ")), 2, *needles)


def test_the_last_of_an_option_given_several_times_counts_and_that_is_said(shared: Command) -> None:
    line = "run -p a -n 3 --predict 2 --prompt=-p --raw --raw --lora x --lora y"
    assert without_them(line.split(), RUN)[2] == ["-p", "-n"]
    result = shared("run", "-p", "a", "-n", "9", "-n", "1", "--no-calibrate")
    assert "note: -n: given several times, the last one counts" in result.err.splitlines()
    assert "1 token," in result.err


def test_harmless_flags_of_llama_cpp_are_left_out() -> None:
    line = [
        "run",
        "-p",
        "--color",
        "--color",
        "--no-perf",
        "-lv",
        "3",
        "--jinja",
        "-n",
        "3",
        "--color",
        "off",
        "--",
        "--color",
    ]
    kept, dropped, _ = without_them(line, RUN)
    assert kept == ["run", "-p", "--color", "-n", "3", "--", "--color"]
    assert dropped == ["--color", "--no-perf", "-lv", "--jinja", "--color"]
    assert without_them(["pull", "--color"], RUN) == (["pull", "--color"], [], [])
    with pytest.raises(UsageError, match="--override-kv"):
        without_them(["serve", "--override-kv", "key=int:1"], RUN)


def test_list_shows_the_models_on_disk(shared: Command) -> None:
    results = shared.many(["list"], ["models", "list"], ["models"])
    assert results[0].raw == results[1].raw
    assert "the embedded pair" in results[0].out
    assert results[2].out.startswith(results[0].out), "what is on disk comes first"
    assert len(results[2].out) > 4 * len(results[0].out)


def test_every_flag_without_a_counterpart_has_a_sentence() -> None:
    known = {flag for option in (*RUN, *SERVE, *CHAT, *EMBED) for flag in option.flags}
    of_serve, of_run = ({flag for option in options for flag in option.flags} for options in (SERVE, RUN))
    assert len(hints()) > 150
    for flag, hint in hints().items():
        named = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", hint) if "llama-server" not in hint else []
        assert set(named) - {"--json"} <= known, (flag, hint)
        command, options = ("run", RUN) if flag in of_serve else ("serve", SERVE)
        assert flag not in of_serve & of_run, f"every command has {flag}"
        with pytest.raises(UsageError, match=re.escape(hint[:20])):
            without_them([command, f"{flag}=1"], options)


def test_the_nearest_flag_comes_first_and_silly_ones_not_at_all() -> None:
    def hint(*line: str) -> str:
        with pytest.raises(TyperException) as error:
            app(line, prog_name="specllama", standalone_mode=False)
        return outcome(error.value)[2]

    assert hint("run", "--temprature", "1") == "did you mean --temperature? see specllama run --help"
    assert hint("run", "--n-gpu-layer", "1").startswith("did you mean --n-gpu-layers or --gpu-layers? ")
    assert hint("run", "--xyzzy") == "see specllama run --help"


def test_images_that_cannot_be_used(shared: Command) -> None:
    """Said before the model is loaded where that is known then."""
    (shared.home / "a.png").write_bytes(png())
    (shared.home / "text.png").write_text("words")
    run = ("run", *FEW, "-p", "Look")
    bad = {
        ("--image", "none.png"): "the image 'none.png' cannot be read: No such file",
        ("--image", "a.png,text.png"): "this is not an image",
        ("--image", "."): "cannot be read",
        ("--image", "a.png", "-p", "<__media__> and <__media__>"): "has 2 times <__media__>, for 1 image",
        ("--image", "a.png"): "pydoc-target.gguf cannot read images",
        ("--image", "a.png", "--raw"): "pydoc-target.gguf cannot read images",
        ("--image", "a.png", "--no-mmproj"): "--image needs the model's projector",
    }
    for result, why in zip(shared.many(*((*run, *line) for line in bad)), bad.values(), strict=True):
        assert_error(result, 3 if "No such file" in why else 2, why)
