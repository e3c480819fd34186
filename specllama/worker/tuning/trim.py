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
from specllama.gguf.parse import TensorInfo
from specllama.gguf.trimmed import is_trimmed
from specllama.gguf.types import row_bytes
from specllama.heads import read_head
from specllama.models.trim.plan import EMBEDDINGS, OUTPUT
from specllama.pair.head_check import step_bytes
from specllama.worker.trim.run import trim

LEAST_SHARE = 0.1  # of the bytes of a step in the output matrix, below which trimming gains next to nothing
_HEAD_OUTPUT = ".nextn.shared_head_head.weight"
_NAME = "tune.gguf"
_LEFT_OVER = 24 * 3600.0  # seconds after which a file of another trial is one that a killed process has left


def may_trim(draft: ModelSettings, target: ModelSettings) -> bool:
    """Whether a trimmed copy of a draft, or of the head inside the target if that is its file, is worth a
    trial.
    """
    try:
        return _worth_trying(read_model(draft.path), draft.path == target.path)
    except SpecllamaError:
        return False


def _worth_trying(header: Header, inside: bool) -> bool:
    """Whether enough of what a step of the draft reads is its output matrix. header: of a draft model, of a
    head in a file, or of the model with the head inside.
    """
    head = read_head(header) if inside else None
    if is_trimmed(header) or (inside and (head is None or head.own_file)):
        return False
    output = _output(header)
    if output is None:
        return False
    read = step_bytes(header, head) if head is not None else header.bytes_per_token or header.weight_bytes
    rows = output.n_elements // output.shape[0]
    return bool(rows * row_bytes(output.type, output.shape[0]) >= LEAST_SHARE * read)


def _output(header: Header) -> TensorInfo | None:
    """The output matrix of a draft: that of a head, where it has one of its own."""
    tensors = {t.name: t for t in header.tensors}
    own = next((t for name, t in tensors.items() if name.endswith(_HEAD_OUTPUT)), None)
    return own or tensors.get(OUTPUT) or tensors.get(EMBEDDINGS)


@contextmanager
def trimmed_copy(
    draft: ModelSettings, inside: bool, n_threads: int
) -> Iterator[tuple[ModelSettings, int, int] | None]:
    """(the settings of a trimmed copy of a draft, its tokens, those of the draft), None where that cannot be
    written. inside: of the head inside the model. The copy is removed at the end.
    """
    folder = cache_dir()
    path, is_new = temporary(folder / _NAME), not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        _sweep(folder, path.stat().st_mtime)
        request = Trim(draft.path, str(path), str(temporary(path)), inside, verify=False, n_threads=n_threads)
        trimmed = trim(request, lambda _message: None)
    except (SpecllamaError, OSError):
        trimmed = None
    try:
        yield (replace(draft, path=str(path)), trimmed.n_kept, trimmed.n_vocab) if trimmed else None
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
