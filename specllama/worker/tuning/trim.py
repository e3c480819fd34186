"""What trimming a draft would gain here: a trimmed copy is written for the trial, tried like any draft, and
removed again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from specllama.client.trim_messages import Trim
from specllama.config.load import ModelSettings
from specllama.config.store import cache_dir
from specllama.config.whole_file import temporary
from specllama.errors import SpecllamaError
from specllama.gguf.header import Header, read_model
from specllama.gguf.trimmed import is_trimmed
from specllama.gguf.types import row_bytes
from specllama.models.trim.plan import EMBEDDINGS, OUTPUT
from specllama.worker.trim.run import trim

LEAST_SHARE = 0.1  # of the bytes of a step in the output matrix, below which trimming gains next to nothing
_NAME = "tune.gguf"
_LEFT_OVER = 24 * 3600.0  # seconds after which a file of another trial is one that a killed process has left


def may_trim(draft: ModelSettings, target: ModelSettings) -> bool:
    """Whether a trimmed copy of a draft, if it is not the head inside the target, is worth a trial."""
    try:
        return draft.path != target.path and _worth_trying(read_model(draft.path))
    except SpecllamaError:
        return False


def _worth_trying(header: Header) -> bool:
    """Whether enough of the draft is its output matrix. header: of a draft model or a head in a file."""
    tensors = {t.name: t for t in header.tensors}
    output = tensors.get(OUTPUT) or tensors.get(EMBEDDINGS)
    if output is None or is_trimmed(header):
        return False
    read = header.bytes_per_token or header.weight_bytes
    rows = output.n_elements // output.shape[0]
    return bool(rows * row_bytes(output.type, output.shape[0]) >= LEAST_SHARE * read)


@contextmanager
def trimmed_copy(draft: ModelSettings, n_threads: int) -> Iterator[tuple[ModelSettings, int, int] | None]:
    """(the settings of a trimmed copy of a draft, its tokens, those of the draft), None where that cannot be
    written. The copy is removed at the end.
    """
    folder = cache_dir()
    path, is_new = temporary(folder / _NAME), not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        _sweep(folder, path.stat().st_mtime)
        request = Trim(draft.path, str(path), str(temporary(path)), verify=False, n_threads=n_threads)
        found = trim(request, lambda _message: None)
    except (SpecllamaError, OSError):
        found = None
    try:
        yield (replace(draft, path=str(path)), found.n_kept, found.n_vocab) if found else None
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()


def _sweep(folder: Path, now: float) -> None:
    """Remove what killed processes have left. now: when the newest file was made."""
    for path in folder.glob(f".*{_NAME}.*.tmp"):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > _LEFT_OVER:
                path.unlink()
