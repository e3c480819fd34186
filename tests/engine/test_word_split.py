"""Long unbroken texts with every pre-tokenizer: ids or an error, never the end of the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import Command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")
SECONDS = 60.0
PRELUDE = """
import os, sys, threading
from pathlib import Path
from specllama.config.load import ModelSettings
from specllama.errors import UsageError
from specllama.llama.model import LlamaModel
from specllama.llama.model import _SAFE
from tests.support import tinygguf

def load(pre):
    path = tinygguf.llama(Path(sys.argv[1]) / "tiny.gguf", n_layer=1, pre=pre)
    return LlamaModel(ModelSettings(path=str(path)), vocab_only=True)
"""
LONG = """
for pre in ("tekken", "gpt-4o", "deepseek-v3", "deepseek-coder", "minimax-m2", "seed-coder", "exaone-moe"):
    model = load(pre)
    for text in ("a" * 95_000, "<" * 95_000 + "\\n" * 95_000, "。" * 95_000):
        assert len(model.tokenize(text, False, False)) > 9_000, (pre, text[:3])
    try:
        model.tokenize("a" * 300_000, False, False)
    except UsageError as error:
        assert pre in error.message, error
    else:
        raise AssertionError(pre)
print("ok")
"""
SAFE = """
threading.stack_size(1024 * 1024)
for pre in sorted(_SAFE):
    model = load(pre)
    for text in ("a" * 5_000, "<" * 5_000, " " * 5_000 + "a", "7" * 5_000, "a " * 5_000, "一。" * 5_000):
        thread = threading.Thread(target=model.tokenize, args=(text, False, False))
        thread.start()
        thread.join()
print("ok")
"""


def run(program: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return Command(tmp_path).python("-c", PRELUDE + program, tmp_path, timeout=SECONDS)


@pytest.mark.parametrize("program", [LONG, SAFE], ids=["expressions", "hand-written splitters"])
def test_no_text_ends_the_process(program: str, tmp_path: Path) -> None:
    """The second program fails by SIGSEGV where a name in _SAFE is split by an expression that recurses."""
    done = run(program, tmp_path)
    assert done.returncode != -signal.SIGSEGV, done.stderr[-500:]
    assert done.stdout.endswith("ok\n"), done.stderr[-1500:]
