"""Processes of the package find the modules that this one finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specllama import python_command
from specllama.python_command import module_command

SHOW = "import json, sys; print(json.dumps([sys.path, sys.argv[1:], __name__]))"


def test_the_search_path_is_that_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shows_its_path.py").write_text(SHOW)
    monkeypatch.setattr(sys, "path", [*sys.path, "", str(tmp_path)])
    line = module_command("shows_its_path", "one", "two words")
    assert line[-3:] == ["shows_its_path", "one", "two words"]
    env = {**os.environ, "PYTHONPATH": "/nowhere"}
    done = subprocess.run(line, capture_output=True, check=True, cwd="/", env=env)
    path, arguments, name = json.loads(done.stdout)
    assert path == [os.path.abspath(entry) for entry in sys.path]
    assert arguments == ["one", "two words"]
    assert name == "__main__"


def test_a_package_with_a_name_of_pythons_own_changes_nothing(tmp_path: Path) -> None:
    """PyPI has uuid 1.30, for Python 2; installed next to specllama it was imported by the engine."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "uuid.py").write_text("print 'for Python 2'")
    (site / "needs_uuid.py").write_text("import uuid; print(uuid.__file__)")
    code = (
        f"import subprocess, sys; sys.path.append({str(site)!r}); import uuid\n"
        "from specllama.python_command import module_command\n"
        "out = subprocess.run(module_command('needs_uuid'), capture_output=True, text=True)\n"
        "assert out.stdout.strip() == uuid.__file__, out"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_of_the_working_directory_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "runpy.py").write_text("raise SystemExit('imported')")
    subprocess.run(module_command("this"), check=True, cwd=tmp_path, capture_output=True)


def test_an_engine_that_was_started_early_is_used_once_and_ends_if_it_is_not() -> None:
    python_command.start_engine_early()
    early = python_command._early
    assert early is not None
    assert python_command.engine_process({}) is early
    other = python_command.engine_process({})
    assert other is not early
    python_command.start_engine_early()
    unused = python_command._early
    with_variables = python_command.engine_process({"SPECLLAMA_KERNELS": "off"})
    python_command.start_engine_early()
    never_used = python_command._early
    python_command.close_early_engine()
    for process in (early, other, with_variables):
        python_command._close(process)
    for process in (early, other, unused, with_variables, never_used):
        assert process is not None
        process.wait(60)
