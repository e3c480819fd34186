"""The Python in the README runs as it stands. `main.gguf` and `draft.gguf` are the embedded pair there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specllama import data
from tests.support.paths import ROOT

PAIR = {"main.gguf": "pydoc-target.gguf", "draft.gguf": "pydoc-draft.gguf"}
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("code", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_an_example_runs(code: str, tmp_path: Path) -> None:
    for name, original in PAIR.items():
        shutil.copyfile(Path(data.__file__).parent / original, tmp_path / name)
    (tmp_path / "example.py").write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "SPECLLAMA_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_the_table_is_the_one_that_was_measured() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    table = page.split("## By weights\n")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) > 2
    assert "\n".join(rows) in README
    assert (match := re.search(r"([0-9]+) of ([0-9]+) cells", page)) is None or match[0] in README
