"""Carries out a Trim: chooses the tokens, writes the file under a temporary name, compares it with its
source and gives it its name.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specllama.client import protocol
from specllama.client.tune_messages import Loading, Trim, Trimmed
from specllama.config.load import ModelSettings
from specllama.config.store import sync_folder
from specllama.core.interfaces import BatchRow, HeadRow
from specllama.errors import IntegrityError, NotFoundError, ResourceError, UsageError
from specllama.gguf.header import Header, read_header, read_model
from specllama.gguf.parse import NOT_MULTIPLIED, TYPE_BY_NAME, row_bytes
from specllama.gguf.trimmed import TrimInfo, read_trim
from specllama.heads import read_head
from specllama.heads.check import check_draft
from specllama.heads.kind import read_d2t
from specllama.llama.batches import from_floats, to_floats
from specllama.llama.context import LlamaContext
from specllama.llama.draft_contexts import TrimmedContext
from specllama.llama.heads import HeadContext, NoTarget, unsupported
from specllama.llama.model import LlamaModel
from specllama.models import trim as trimming
from specllama.models.quants import size
from specllama.regular_file import open_regular
from specllama.worker.corpus import pieces

# Compares a trimmed file with its source: both are loaded, and decode the same tokens.
#
# Rows of kept tokens have to be the source's, bit for bit unless the output matrix has another type.


Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
N_ROWS = 16  # that are compared, of each kind
_N_CTX = 256
_ROUNDING = 1e-2  # of the spread of logits: more is no rounding


def compare(
    source: trimming.TrimSource, settings: ModelSettings, path: Path, retype: str
) -> tuple[int, float | None, bool]:
    """Compare the file at `path` with its source: (rows of logits that were compared; the greatest
    difference, None where none were; whether tokens that the draft lacks are read as by its source). Where
    the source reads these in another way, their embeddings are removed from the file.

    Raises IntegrityError where rows differ, or llama.cpp does not load the file; ResourceError.
    """
    settings = replace(settings, n_gpu_layers=0, devices=("none",))
    header = read_header(path)
    trim = read_trim(header)
    assert trim is not None
    _same_bytes(source, header, trim.ids, retype)
    written = replace(settings, path=str(path))
    if source.head is None:
        return _compare_models(settings, written, header, trim, retype)
    head = source.head
    if unsupported() or not head.runs_alone:  # it uses matrices of its target
        with closing(LlamaModel(written, with_head=head.kind.nextn_layers, is_head=True)):
            return 0, None, source.keeps_tokenizer
    theirs = _head_rows(settings, source, trim, trim.ids)
    ours = _head_rows(written, source, trim, np.arange(trim.n_kept) if trim.shortened else trim.ids)
    return len(ours), _difference(theirs, ours, retype, path), source.keeps_tokenizer


def _compare_models(
    settings: ModelSettings, written: ModelSettings, header: Header, trim: TrimInfo, retype: str
) -> tuple[int, float | None, bool]:
    rng = np.random.default_rng(0)
    kept = rng.choice(trim.ids, min(N_ROWS, trim.n_kept), replace=False)
    others = np.setdiff1d(np.arange(trim.n_vocab), trim.ids)
    mixed = kept.copy()
    if len(others):
        mixed[::3] = rng.choice(others, len(mixed[::3]))
    with closing(LlamaModel(settings)) as model, closing(LlamaContext(model, _N_CTX, 1, N_ROWS)) as context:
        theirs = [_rows(context, ids.tolist()) for ids in (kept, mixed)]
    with closing(LlamaModel(written)) as model:
        ours = _trimmed_rows(model, header, replace(trim, rest_offset=0), kept.tolist())
        difference = _difference(theirs[0][:, trim.ids], ours[:, trim.ids], retype, Path(header.path))
        if not trim.rest_offset:
            return len(ours), difference, not len(others)
        # Some models scale the embeddings of ids, not those that they are given.
        scales = {1.0, math.sqrt(header.n_embd)}
        by_scale = {s: _trimmed_rows(model, header, replace(trim, scale=s), mixed.tolist()) for s in scales}
    wanted = theirs[1][:, trim.ids]
    scale = min(by_scale, key=lambda s: float(np.abs(wanted - by_scale[s][:, trim.ids]).max()))
    exact = _close(wanted, by_scale[scale][:, trim.ids], retype)
    trimming.set_embeddings(Path(header.path), trim.rest_offset if exact else 0, scale)
    return (1 + exact) * len(ours), difference, exact


def _trimmed_rows(model: LlamaModel, header: Header, trim: TrimInfo, ids: Sequence[int]) -> Rows:
    with closing(TrimmedContext(model, header, trim, lambda _token: 0, _N_CTX, 1, N_ROWS)) as context:
        return _rows(context, ids)


def _rows(context: LlamaContext, ids: Sequence[int]) -> Rows:
    context.truncate(0, 0)
    return context.decode([BatchRow(t, i, 0, True) for i, t in enumerate(ids)]).copy()


def _head_rows(settings: ModelSettings, source: trimming.TrimSource, trim: TrimInfo, ids: Ids) -> Rows:
    """The kept tokens' logits of a head after random hidden states. ids: of the kept tokens, in this file."""
    head, rng = source.head, np.random.default_rng(0)
    assert head is not None
    n_features = head.n_embd_target * max(1, len(head.target_layers))
    tokens = ids[rng.choice(trim.n_kept, N_ROWS)].tolist()
    is_head = head.own_file or settings.path != source.header.path
    with closing(LlamaModel(settings, with_head=head.kind.nextn_layers, is_head=is_head)) as model:
        alone = NoTarget(model, n_outputs_max=N_ROWS)
        made = HeadContext(model, alone, _N_CTX, encodes=head.kind.encodes, n_features=n_features)
        with closing(made) as context:
            hidden = context.hidden(0, rng.standard_normal((N_ROWS, n_features), np.float32))
            rows = [HeadRow(token, i, 0, hidden[i], True) for i, token in enumerate(tokens)]
            return context.decode(rows)[0][:, ids].copy()


def _difference(theirs: Rows, ours: Rows, retype: str, path: Path) -> float:
    """The greatest difference. Raises IntegrityError for more than rounding, unless the type is another."""
    difference = float(np.abs(theirs - ours).max())
    if retype and np.isfinite(difference):
        return difference
    if not _close(theirs, ours, retype):
        raise IntegrityError(
            f"{path} does not compute what its source does: logits differ by {difference:.3g}"
        )
    return difference


def _close(theirs: Rows, ours: Rows, retype: str) -> bool:
    """Whether rows are equal but for rounding: llama.cpp may compute matrices of another size otherwise. With
    an output matrix of another type, whether they are more alike than different.
    """
    spread = float(theirs.std())
    most = spread / 2 if retype else _ROUNDING * spread
    return bool(np.abs(theirs - ours).mean() <= most) if retype else bool(np.abs(theirs - ours).max() <= most)


def _same_bytes(source: trimming.TrimSource, written: Header, ids: Ids, retype: str) -> None:
    """Raises IntegrityError unless each tensor has the source's bytes in the rows that are kept."""
    by_name = {t.name: t for t in written.tensors}
    rows = trimming.row_indexes(source, ids)
    for t in source.tensors:
        if retype and source.is_output(t.name):
            continue
        ours = trimming.tensor_bytes(written, by_name[t.name])
        theirs = trimming.tensor_bytes(source.header, t)
        if source.has_rows(t.name):
            theirs = trimming.kept_rows(theirs, t, rows)
        if not np.array_equal(ours, theirs):
            raise IntegrityError(f"{written.path}: tensor {t.name!r} is not the source's", "trim it again")


_PIECE = 1 << 16  # characters that are tokenised at once
_MARGIN = 16 << 20  # bytes of the disk that stay free
WRITING, VERIFYING, READING = "writing", "verifying", "reading the draft"


def trim(request: Trim, send: protocol.Send) -> Trimmed:
    """Raises SpecllamaError; then there is no file, and nothing under its temporary name."""
    temporary = Path(request.temporary)
    try:
        return _trim(request, temporary, send)
    except OSError as error:
        name = error.filename or request.out
        raise ResourceError(f"{name} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _trim(request: Trim, temporary: Path, send: protocol.Send) -> Trimmed:
    source = _source(request)
    header, settings = source.header, ModelSettings(path=request.source, n_threads=request.n_threads)
    counts = _counts(settings, request)
    ids = trimming.choose(header, request.keep, counts, source.possible)
    n_possible = header.n_vocab if source.possible is None else len(source.possible)
    if len(ids) == n_possible and not request.type:
        raise UsageError(f"{header.path} has {len(ids)} tokens, and all are kept: nothing would change")
    coverage = _coverage(ids, counts)
    _check_type(source, request.type)
    _check_room(temporary, source, ids)
    paths = header.parts or (header.path,)
    if any(os.path.exists(request.out) and os.path.samefile(request.out, path) for path in paths):
        raise UsageError(f"{request.out} is a part of the draft", "write to another file")
    before = _stamps(paths)
    digest = trimming.sha256_of(paths, lambda share: send(Loading(READING, share)))
    send(Loading(WRITING, 0.0))
    info = trimming.about(
        ids, header.n_vocab, os.path.basename(header.path), digest, sum(map(os.path.getsize, paths)), coverage
    )
    trimming.write_trimmed(source, temporary, ids, info, request.type, _converted)
    written = read_header(temporary)
    check_draft(written)
    compared: tuple[int, float | None, bool] = 0, None, False
    if request.verify:
        send(Loading(VERIFYING, 0.0))
        compared = compare(source, settings, temporary, request.type)
        written = read_header(temporary)
    if _stamps(paths) != before:
        raise IntegrityError(f"{header.path} was changed while it was trimmed", "trim it again")
    os.replace(temporary, request.out)
    sync_folder(Path(request.out).parent)
    verified, difference, exact_context = compared
    return Trimmed(
        n_kept=len(ids),
        n_vocab=header.n_vocab,
        coverage=coverage,
        source_bytes=header.file_bytes,
        n_bytes=written.file_bytes,
        source_step_bytes=step_bytes(source.header, source),
        step_bytes=step_bytes(written, source),
        verified=verified,
        difference=difference,
        exact_context=exact_context,
    )


def _stamps(paths: Sequence[str]) -> list[tuple[int, int]]:
    """Sizes of files, and when they were changed. Raises OSError."""
    return [(stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, paths)]


def _source(request: Trim) -> trimming.TrimSource:
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
    return trimming.trim_source(header, request.inside, possible)


def _counts(settings: ModelSettings, request: Trim) -> Counter[int]:
    """How often each token is in the texts and in earlier prompts. Raises UsageError for an empty text."""
    counts = Counter(request.seen)
    if not request.texts:
        return counts
    with closing(LlamaModel(replace(settings, n_gpu_layers=0), vocab_only=True)) as model:
        for name, text in request.texts:
            before = counts.total()
            for piece in pieces(text, _PIECE):
                counts.update(model.tokenize(piece, False, False))
            if counts.total() == before:
                raise UsageError(f": {name} has no text", option="texts")
    return counts


def _coverage(ids: NDArray[np.int64], counts: Counter[int]) -> float | None:
    kept = set(ids.tolist())
    total = counts.total()
    return sum(n for token, n in counts.items() if token in kept) / total if total else None


def _check_type(source: trimming.TrimSource, kind: str) -> None:
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


def _check_room(temporary: Path, source: trimming.TrimSource, ids: NDArray[np.int64]) -> None:
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


def step_bytes(header: Header, source: trimming.TrimSource) -> int:
    """Bytes of weights that a step of the draft reads: without embeddings that are only looked up."""
    if source.head is None:
        return header.bytes_per_token
    names = {t.name for t in header.tensors}
    tied = not any(source.is_output(name) for name in names)
    mine = [t for t in header.tensors if t.name in {s.name for s in source.tensors}]
    return sum(
        t.n_bytes for t in mine if tied or not t.name.endswith((trimming.EMBEDDINGS, "embed_tokens.weight"))
    )
