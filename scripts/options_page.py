"""Writes docs/options.md: a table of flags, names in files and the environment, and names in Python.

python -m scripts.options_page            writes the page
python -m scripts.options_page --check    exit code 1 if it is not up to date
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from specllama.config.arguments import NAMED, LoadOptions
from specllama.config.options import STORED, Option, as_argument
from specllama.core.sampling.params import PARAMETERS

PAGE = Path(__file__).parent.parent / "docs" / "options.md"
_HEAD = """# Options by all their names

The flags are llama.cpp's. In `config.toml`, `specllama.toml` and the environment an option has the name in
the second column, or its long flag without dashes: `n_ctx = 4096`, `ctx-size = 4096`, `SPECLLAMA_N_CTX=4096`
and `SPECLLAMA_CTX_SIZE=4096` say the same. The third column is the argument of `LLM` or `AsyncLLM`; those of
`SamplingParams` are named so. An empty place: the option is not there.

This page is generated: `python -m scripts.options_page`.
"""


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
    known = argument.partition("=")[0] in (*NAMED, *LoadOptions.__annotations__)
    return f"`{argument}`" if known else ""


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text("utf-8") != page())
    PAGE.write_text(page(), "utf-8")
