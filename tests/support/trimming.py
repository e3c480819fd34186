"""Trims tiny drafts in this process."""

from __future__ import annotations

from pathlib import Path

from specllama.client.tune_messages import Trim, Trimmed
from specllama.worker.trim import trim

N_VOCAB, N_KEPT = 600, 320  # of `tinygguf` vocabularies; 259 control and byte tokens are always kept


def trim_file(source: Path, out: Path, **more: object) -> Trimmed:
    """Trims a draft to N_KEPT tokens, unless `more`, fields of Trim, say otherwise."""
    fields = {"keep": N_KEPT, "n_threads": 1, **more}
    return trim(Trim(str(source), str(out), f"{out}.tmp", **fields), lambda _message: None)  # type: ignore[arg-type]


def trimmed(source: Path, **more: object) -> Path:
    """The path of a trimmed copy, next to the draft."""
    out = source.with_name(f"trimmed-{source.name}")
    found = trim_file(source, out, **more)
    assert found.difference in (0.0, None)
    return out
