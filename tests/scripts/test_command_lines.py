"""Every script starts, and bad input is one line; pages that scripts write are up to date."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.command import Command

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


def test_help_is_the_docstring_and_every_option() -> None:
    done = run("scripts.bench.make_pair", "--help")
    assert done.returncode == 0
    assert "usage: python -m scripts.bench.make_pair" in done.stdout
    assert "options:" in done.stdout


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
