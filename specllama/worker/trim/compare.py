"""Compares a trimmed file with its source: both are loaded, and decode the same tokens.

Rows of kept tokens have to be the source's, bit for bit unless the output matrix has another type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specllama.config.load import ModelSettings
from specllama.core.head_interfaces import HeadRow
from specllama.core.interfaces import BatchRow
from specllama.errors import IntegrityError
from specllama.gguf.header import Header, read_header
from specllama.gguf.trimmed import TrimInfo, read_trim
from specllama.llama.context import LlamaContext
from specllama.llama.heads.context import HeadContext
from specllama.llama.heads.functions import unsupported
from specllama.llama.heads.host import NoTarget
from specllama.llama.model import LlamaModel
from specllama.llama.trimmed import TrimmedContext
from specllama.models.trim.plan import TrimSource
from specllama.models.trim.write import kept_rows, row_indexes, set_embeddings, tensor_bytes

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
N_ROWS = 16  # that are compared, of each kind
_N_CTX = 256
_ROUNDING = 1e-2  # of the spread of logits: more is no rounding


@dataclass(frozen=True, slots=True)
class Comparison:
    """n_rows: rows of logits that were compared. difference: the greatest, None where none were.
    exact_context: whether tokens that the draft lacks are read as by its source.
    """

    n_rows: int = 0
    difference: float | None = None
    exact_context: bool = False


def compare(source: TrimSource, settings: ModelSettings, path: Path, retype: str) -> Comparison:
    """Compare the file at `path` with its source. Where the source reads tokens that are not kept in another
    way, their embeddings are removed from the file.

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
        with _model(written, mtp=head.kind.nextn_layers, is_head=True):
            return Comparison(exact_context=source.keeps_tokenizer)
    theirs = _head_rows(settings, source, trim, trim.ids)
    ours = _head_rows(written, source, trim, np.arange(trim.n_kept) if trim.shortened else trim.ids)
    return Comparison(len(ours), _difference(theirs, ours, retype, path), source.keeps_tokenizer)


def _compare_models(
    settings: ModelSettings, written: ModelSettings, header: Header, trim: TrimInfo, retype: str
) -> Comparison:
    rng = np.random.default_rng(0)
    kept = rng.choice(trim.ids, min(N_ROWS, trim.n_kept), replace=False)
    others = np.setdiff1d(np.arange(trim.n_vocab), trim.ids)
    mixed = kept.copy()
    if len(others):
        mixed[::3] = rng.choice(others, len(mixed[::3]))
    with _model(settings) as model:
        context = LlamaContext(model, _N_CTX, 1, N_ROWS)
        theirs = [_rows(context, ids.tolist()) for ids in (kept, mixed)]
        context.close()
    with _model(written) as model:
        ours = _trimmed_rows(model, header, replace(trim, rest_offset=0), kept.tolist())
        difference = _difference(theirs[0][:, trim.ids], ours[:, trim.ids], retype, Path(header.path))
        if not trim.rest_offset:
            return Comparison(len(ours), difference, not len(others))
        # Some models scale the embeddings of ids, not those that they are given.
        scales = {1.0, math.sqrt(header.n_embd)}
        by_scale = {s: _trimmed_rows(model, header, replace(trim, scale=s), mixed.tolist()) for s in scales}
    wanted = theirs[1][:, trim.ids]
    scale = min(by_scale, key=lambda s: float(np.abs(wanted - by_scale[s][:, trim.ids]).max()))
    exact = _close(wanted, by_scale[scale][:, trim.ids], retype)
    set_embeddings(Path(header.path), trim.rest_offset if exact else 0, scale)
    return Comparison((1 + exact) * len(ours), difference, exact)


def _trimmed_rows(model: LlamaModel, header: Header, trim: TrimInfo, ids: Sequence[int]) -> Rows:
    context = TrimmedContext(model, header, trim, lambda _token: 0, _N_CTX, 1, N_ROWS)
    try:
        return _rows(context, ids)
    finally:
        context.close()


def _rows(context: LlamaContext, ids: Sequence[int]) -> Rows:
    context.truncate(0, 0)
    return context.decode([BatchRow(t, i, 0, True) for i, t in enumerate(ids)]).copy()


def _head_rows(settings: ModelSettings, source: TrimSource, trim: TrimInfo, ids: Ids) -> Rows:
    """The kept tokens' logits of a head after random hidden states. ids: of the kept tokens, in this file."""
    head, rng = source.head, np.random.default_rng(0)
    assert head is not None
    mtp = head.kind.nextn_layers
    n_features = head.n_embd_target * max(1, len(head.target_layers))
    tokens = ids[rng.choice(trim.n_kept, N_ROWS)].tolist()
    with _model(settings, mtp=mtp, is_head=head.own_file or settings.path != source.header.path) as model:
        alone = NoTarget(model, n_outputs_max=N_ROWS)
        context = HeadContext(model, alone, _N_CTX, encodes=head.kind.encodes, n_features=n_features)
        try:
            hidden = context.hidden(0, rng.standard_normal((N_ROWS, n_features), np.float32))
            rows = [HeadRow(token, i, 0, hidden[i], True) for i, token in enumerate(tokens)]
            return context.decode(rows)[0][:, ids].copy()
        finally:
            context.close()


def _difference(theirs: Rows, ours: Rows, retype: str, path: Path) -> float:
    """The greatest difference of logits. Raises IntegrityError for one that is no rounding, unless the output
    matrix has another type.
    """
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


def _same_bytes(source: TrimSource, written: Header, ids: Ids, retype: str) -> None:
    """Raises IntegrityError unless each tensor has the source's bytes in the rows that are kept."""
    by_name = {t.name: t for t in written.tensors}
    rows = row_indexes(source, ids)
    for t in source.tensors:
        if retype and source.is_output(t.name):
            continue
        ours, theirs = tensor_bytes(written, by_name[t.name]), tensor_bytes(source.header, t)
        if source.has_rows(t.name):
            theirs = kept_rows(theirs, t, rows)
        if not np.array_equal(ours, theirs):
            raise IntegrityError(f"{written.path}: tensor {t.name!r} is not the source's", "trim it again")


@contextmanager
def _model(settings: ModelSettings, mtp: bool = False, is_head: bool = False) -> Iterator[LlamaModel]:
    model = LlamaModel(settings, with_head=mtp, is_head=is_head)
    try:
        yield model
    finally:
        model.close()
