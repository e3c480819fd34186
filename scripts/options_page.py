"""Writes what is generated from the tables of options: docs/options.md, with flags, names in files and the
environment, and names in Python; and the types of load options in Python, specllama/config/load_options.py.

python -m scripts.options_page            writes both
python -m scripts.options_page --check    exit code 1 if they are not up to date
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from specllama.config.build import NAMED, OPTIONS
from specllama.config.options import STORED, as_argument
from specllama.core.sampling.params import PARAMETERS
from specllama.option import Option

_ROOT = Path(__file__).parent.parent
PAGE = _ROOT / "docs" / "options.md"
TYPES = _ROOT / "specllama" / "config" / "load_options.py"
_HEAD = """# Options by all their names

The flags are llama.cpp's. In `config.toml`, `specllama.toml` and the environment an option has the name in
the second column, or its long flag without dashes: `n_ctx = 4096`, `ctx-size = 4096`, `SPECLLAMA_N_CTX=4096`
and `SPECLLAMA_CTX_SIZE=4096` say the same. The third column is the argument of `LLM` or `AsyncLLM`; those of
`SamplingParams` are named so. An empty place: the option is not there.

This page is generated: `python -m scripts.options_page`.
"""


_TYPES_HEAD = '''"""The types of load options in Python. Generated: python -m scripts.options_page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

Layers = int | Literal["auto", "all"]


class LoadOptions(TypedDict, total=False):
    """Load options besides the named arguments, named as the fields of ModelSettings and LoadSettings, which
    describe them. Names that end in `_draft` are the draft's, whose threads and batch sizes default to the
    target's.
    """

'''


def types() -> str:
    """The text of the file of types."""
    return _TYPES_HEAD + "".join(f"    {name}: {entry.hint}\n" for name, entry in OPTIONS.items())


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for panel, options in itertools.groupby(STORED.values(), key=lambda o: o.panel):
        parts.append(f"\n## {panel}\n\n| flag | file, environment | Python |\n|---|---|---|\n")
        parts += [f"| {_flags(o)} | `{o.name}` | {_python(o)} |\n" for o in options]
    return "".join(parts)


def _flags(o: Option) -> str:
    return " ".join(f"`{flag}`" for flag in o.flags)


def _python(o: Option) -> str:
    if o.name in PARAMETERS:
        return f"`SamplingParams({o.name})`"
    argument = as_argument(o.name, None)
    known = argument.partition("=")[0] in (*NAMED, *OPTIONS)
    return f"`{argument}`" if known else ""


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text("utf-8") != page() or TYPES.read_text("utf-8") != types())
    PAGE.write_text(page(), "utf-8")
    TYPES.write_text(types(), "utf-8")
