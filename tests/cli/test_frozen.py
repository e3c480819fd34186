"""What others hold on to keeps every entry of frozen.json, recorded before the tree was reorganised.

Entries may be added; where one has to go, the changelog says so and the record changes with it.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from specllama.cli.app import COMMANDS, app
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from tests.support import interface
from tests.support.command import Command
from tests.support.serving import Server

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "frozen.json").read_text("utf-8"))


def flags_of(group: Any, line: list[str]) -> set[str]:
    """The flags of a command, as its --help shows them."""
    context = typer.Context(group)
    for name in line:
        _, group, _ = group.resolve_command(context, [name])
    return {flag for param in group.params for flag in param.opts if flag.startswith("-")}


@pytest.mark.parametrize("command", RECORD["flags"])
def test_flags(command: str) -> None:
    flags = flags_of(typer.main.get_command(app), command.split()) | {"--help"}
    assert set(RECORD["flags"][command]) - flags == set()


def test_toml_keys() -> None:
    keys_now = {option.name for entry in COMMANDS.values() for option in entry.table() if option.stored}
    assert set(RECORD["keys"]) - keys_now == set()


def missing(
    recorded: dict[str, list[str]], present: dict[str, list[str]], optional: str = "^$"
) -> dict[str, set[str]]:
    """What is recorded and was not found, by name. optional: pattern of keys that need not be there."""
    wanted = {name: {k for k in keys if not re.search(optional, k)} for name, keys in recorded.items()}
    return {name: gone for name, keys in wanted.items() if (gone := keys - set(present.get(name, ())))}


def test_python() -> None:
    assert missing(RECORD["python"], interface.collect_python()) == {}


def test_reports_and_what_is_stored(command: Command) -> None:
    shutil.copyfile(EMBEDDED_TARGET, command.home / "target.gguf")
    shutil.copyfile(EMBEDDED_DRAFT, command.home / "draft.gguf")
    # tune has no break-even points where other programs left it no time for decodes of two rows.
    of_points = r"break_even\[\]\."
    assert missing(RECORD["reports"], interface.collect_reports(command), of_points) == {}


def test_responses_and_metrics(tmp_path: Path) -> None:
    with Server(tmp_path, "--draft-max", "4") as server:
        # Which drafters have drafted is not part of the interface.
        drafter = r"speculation\.drafted_by\.(memory|model)$"
        assert missing(RECORD["responses"], interface.collect_responses(server), drafter) == {}
        assert set(RECORD["metrics"]) - set(interface.collect_metrics(server)) == set()


def test_a_removed_name_would_be_noticed() -> None:
    assert missing({"run": ["a", "b"]}, {"run": ["a", "c"]}) == {"run": {"b"}}
    assert interface.key_paths({"a": [{"b": 1}], "3": {"c": 0}}) == {"a", "a[].b", "#", "#.c"}
