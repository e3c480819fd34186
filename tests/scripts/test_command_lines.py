"""Every script starts: its help names the module, and bad input is one line."""

from __future__ import annotations

import argparse
import runpy
import sys

import pytest

from scripts import cli

MODULES = (
    "scripts.bench.adversarial", "scripts.bench.engine", "scripts.bench.losses", "scripts.bench.make_pair",
    "scripts.bench.memory", "scripts.bench.peers", "scripts.bench.pull", "scripts.bench.renames",
    "scripts.bench.prefix_ages", "scripts.bench.prefix_gaps", "scripts.bench.prefix_restart",
    "scripts.bench.random_shapes", "scripts.bench.server", "scripts.bench.slots",
    "scripts.bench.structured", "scripts.bench.turns",
    "scripts.demo_pair", "scripts.demo_pair.head", "scripts.demo_pair.head.acceptance",
    "scripts.demo_pair.head.write", "scripts.demo_pair.make_data", "scripts.soak",
)  # fmt: skip


def run(module: str, *args: str) -> object:
    """The exit code of `python -m module`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, *args])
        patch.delitem(sys.modules, module, raising=False)  # another test may have imported it
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    return ended.value.code


@pytest.mark.parametrize("module", MODULES)
def test_help(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(module, "--help") == 0
    out = capsys.readouterr().out
    assert f"usage: python -m {module}" in out
    assert "options:" in out


@pytest.mark.parametrize("module", MODULES)
def test_an_unknown_option_is_one_line(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(module, "--no-such-option") == cli.EXIT_USAGE
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith(f"python -m {module}: ")


def test_lists_of_numbers() -> None:
    parse = cli.whole_list(1)
    assert parse("1,2,8-11, 2") == [1, 2, 8, 9, 10, 11]
    for text in ("", ",", "0", "1,x", "x-3"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)
