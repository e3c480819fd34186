"""Help pages: options in groups, examples that can be copied, at any width; exit codes of exceptions."""

from __future__ import annotations

import errno

import pytest

from specllama.cli.app import COMMANDS, outcome, run_app
from specllama.cli.console import ReaderGoneError
from specllama.cli.typer_options import OFTEN, CommandEntry
from specllama.errors import NotFoundError

LINES = [
    (*name.split(), *more)
    for name, entry in COMMANDS.items()
    for more in [(), *((sub,) for sub in entry.commands)]
]


def entry_of(line: tuple[str, ...]) -> CommandEntry:
    entry = COMMANDS[line[0]]
    return entry.commands[line[1]] if len(line) > 1 else entry


def shown(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    assert run_app([*line, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_every_option_is_below_the_title_of_its_group(
    line: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = shown(capsys, *line)
    assert text.startswith(f"Usage: specllama {' '.join(line)} [OPTIONS]")
    sections = {part.partition(":\n")[0]: part for part in text.split("\n\n")}
    entry = entry_of(line)
    for option in entry.table():
        panel = OFTEN if option.name in entry.often else option.panel
        for flag in option.flags or (str(option.metavar),):
            assert flag in sections[panel], f"{flag} of {panel}"
    assert {option.name for option in entry.table()} >= set(entry.often)
    assert not entry.often or list(sections)[2] == OFTEN
    assert "--help" in sections["Options"]


@pytest.mark.parametrize("columns", ["20", "40", "80"])
def test_help_fits_the_width(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = shown(capsys, "pull").partition("Examples:")[0]
    assert max(map(len, text.splitlines())) <= int(columns)
    assert "--dry-run" in text


def test_examples_are_not_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    for line in LINES:
        examples = entry_of(line).examples().strip().splitlines()
        text = shown(capsys, *line).splitlines()
        assert [e for e in examples if e.startswith(" ")] == [
            e for e in text[text.index("Examples:") :] if e.startswith(" ")
        ]


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app([]) == 0
    text = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert name in text
        assert entry.help.split()[0] in text


def test_every_exception_has_an_exit_code_a_message_and_a_hint() -> None:
    assert outcome(NotFoundError("no file", "look again")) == (3, "no file", "look again")
    assert outcome(KeyboardInterrupt()) == (130, "", "")
    assert outcome(ReaderGoneError()) == (141, "", "")
    assert outcome(OSError(errno.ENOSPC, "No space left")) == (
        8,
        "standard output cannot be written: No space left",
        "",
    )
    assert outcome(ValueError("x"))[0] == 1
    with pytest.raises(SystemExit):
        outcome(SystemExit(4))
