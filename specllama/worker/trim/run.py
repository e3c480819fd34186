"""Carries out a Trim: chooses the tokens, writes the file under a temporary name, compares it with its source
and gives it its name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specllama.client import protocol
from specllama.client.trim_messages import Trim, Trimmed
from specllama.config.load import ModelSettings
from specllama.errors import IntegrityError, NotFoundError, ResourceError, UsageError
from specllama.gguf.header import Header, read_header, read_model
from specllama.gguf.types import NOT_MULTIPLIED, TYPE_BY_NAME, row_bytes
from specllama.heads import read_head
from specllama.heads.check import check_draft
from specllama.heads.d2t import read_d2t
from specllama.llama.model import LlamaModel
from specllama.llama.tensor_rows import from_floats, to_floats
from specllama.models.sizes import size
from specllama.models.trim.metadata import about
from specllama.models.trim.plan import EMBEDDINGS, TrimSource, trim_source
from specllama.models.trim.tokens import choose
from specllama.models.trim.write import sha256_of, write_trimmed
from specllama.regular_file import open_regular
from specllama.worker.trim.compare import Comparison, compare

Send = Callable[[protocol.Message], None]
_PIECE = 1 << 16  # characters that are tokenised at once
_MARGIN = 16 << 20  # bytes of the disk that stay free
WRITING, VERIFYING, READING = "writing", "verifying", "reading the draft"


def trim(request: Trim, send: Send) -> Trimmed:
    """Write the file. Raises SpecllamaError; the file is not there then, and nothing under its temporary name
    either.
    """
    temporary = Path(request.temporary)
    try:
        return _trim(request, temporary, send)
    except OSError as error:
        name = error.filename or request.out
        raise ResourceError(f"{name} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _trim(request: Trim, temporary: Path, send: Send) -> Trimmed:
    source = _source(request)
    header, settings = source.header, ModelSettings(path=request.source, n_threads=request.n_threads)
    counts = _counts(settings, request)
    ids = choose(header, request.keep, counts, source.possible)
    if len(ids) == len(_possible(source)) and not request.type:
        raise UsageError(f"{header.path} has {len(ids)} tokens, and all are kept: nothing would change")
    coverage = _coverage(ids, counts)
    _check_type(source, request.type)
    _check_room(temporary, source, ids)
    paths = header.parts or (header.path,)
    if any(os.path.exists(request.out) and os.path.samefile(request.out, path) for path in paths):
        raise UsageError(f"{request.out} is a part of the draft", "write to another file")
    before = _stamps(paths)
    digest = sha256_of(paths, lambda share: send(protocol.Loading(READING, share)))
    send(protocol.Loading(WRITING, 0.0))
    info = about(
        ids, header.n_vocab, os.path.basename(header.path), digest, sum(map(os.path.getsize, paths)), coverage
    )
    write_trimmed(source, temporary, ids, info, request.type, _converted)
    written = read_header(temporary)
    check_draft(written)
    comparison = Comparison()
    if request.verify:
        send(protocol.Loading(VERIFYING, 0.0))
        comparison = compare(source, settings, temporary, request.type)
        written = read_header(temporary)
    if _stamps(paths) != before:
        raise IntegrityError(f"{header.path} was changed while it was trimmed", "trim it again")
    os.replace(temporary, request.out)
    _sync_folder(Path(request.out).parent)
    return Trimmed(
        n_kept=len(ids),
        n_vocab=header.n_vocab,
        coverage=coverage,
        source_bytes=header.file_bytes,
        n_bytes=written.file_bytes,
        source_step_bytes=step_bytes(source.header, source),
        step_bytes=step_bytes(written, source),
        verified=comparison.n_rows,
        difference=comparison.difference,
        exact_context=comparison.exact_context,
    )


def _stamps(paths: Sequence[str]) -> list[tuple[int, int]]:
    """Sizes of files, and when they were changed. Raises OSError."""
    return [(stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, paths)]


def _source(request: Trim) -> TrimSource:
    header = read_model(request.source)
    check_draft(header)
    head = read_head(header)
    possible = None
    if head is not None and head.has_d2t:
        read_d2t(head)
        info = next(t for t in header.tensors if t.name == "d2t")
        path = header.parts[info.part] if header.parts else header.path
        with open_regular(path) as file:
            possible = np.fromfile(file, "<i8", info.n_elements, offset=info.offset)
    return trim_source(header, request.inside, possible)


def _possible(source: TrimSource) -> NDArray[np.int64]:
    return np.arange(source.header.n_vocab) if source.possible is None else source.possible


def _counts(settings: ModelSettings, request: Trim) -> Counter[int]:
    """How often each token is in the texts and in earlier prompts. Raises UsageError for an empty text."""
    counts = Counter(request.seen)
    if not request.texts:
        return counts
    model = LlamaModel(replace(settings, n_gpu_layers=0), vocab_only=True)
    try:
        for name, text in request.texts:
            before = counts.total()
            for piece in _pieces(text):
                counts.update(model.tokenize(piece, False, False))
            if counts.total() == before:
                raise UsageError(f": {name} has no text", option="texts")
    finally:
        model.close()
    return counts


def _pieces(text: str) -> Iterator[str]:
    """A text in parts that end with a line where they can."""
    at = 0
    while at < len(text):
        end = min(at + _PIECE, len(text))
        if end < len(text):
            end = text.rfind("\n", at, end) + 1 or end
        yield text[at:end]
        at = end


def _coverage(ids: NDArray[np.int64], counts: Counter[int]) -> float | None:
    kept = set(ids.tolist())
    total = counts.total()
    return sum(n for token, n in counts.items() if token in kept) / total if total else None


def _check_type(source: TrimSource, kind: str) -> None:
    """Raises UsageError for a type that the output matrix cannot have."""
    if not kind:
        return
    lower = kind.lower()
    if lower not in TYPE_BY_NAME or kind.upper() in NOT_MULTIPLIED or lower[0] not in "fqb":
        raise UsageError(f"must be a type of weights such as q4_0, not {kind!r}", option="type")
    n = source.header.n_embd
    block = TYPE_BY_NAME[lower].block_size
    if n % block:
        why = f"its rows have {n} elements, which are not blocks of {block}"
        raise UsageError(f"{kind} is not possible for this draft: {why}", "try q4_0 or q8_0", option="type")


def _check_room(temporary: Path, source: TrimSource, ids: NDArray[np.int64]) -> None:
    """Raises ResourceError where the disk has no room, NotFoundError where the folder is not there."""
    try:
        free = shutil.disk_usage(temporary.parent).free
    except FileNotFoundError:
        raise NotFoundError(f"{temporary.parent}: no such folder") from None
    needed = sum(t.n_bytes for t in source.tensors) + _MARGIN
    if source.head is not None:
        share = len(ids) / source.header.n_vocab
        needed -= sum(int(t.n_bytes * (1 - share)) for t in source.tensors if source.has_rows(t.name))
    if needed > free:
        raise ResourceError(
            f"not enough room: {size(needed)} are needed, {size(free)} are free in {temporary.parent}",
            "make room, or write to another disk",
        )


def _converted(rows: NDArray[np.uint8], kind: str, n: int, to: str) -> NDArray[np.uint8]:
    """Rows in another tensor type, a part at a time."""
    converted = np.empty((len(rows), row_bytes(to, n)), np.uint8)
    for at in range(0, len(rows), 4096):
        converted[at : at + 4096] = from_floats(to_floats(rows[at : at + 4096], kind, n), to)
    return converted


def step_bytes(header: Header, source: TrimSource) -> int:
    """Bytes of weights that a step of the draft reads: without embeddings that are only looked up."""
    if source.head is None:
        return header.bytes_per_token
    names = {t.name for t in header.tensors}
    tied = not any(source.is_output(name) for name in names)
    mine = [t for t in header.tensors if t.name in {s.name for s in source.tensors}]
    return sum(t.n_bytes for t in mine if tied or not t.name.endswith((EMBEDDINGS, "embed_tokens.weight")))


def _sync_folder(folder: Path) -> None:
    """Make the new name durable, where the system lets a folder be opened for that."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
