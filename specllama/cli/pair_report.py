"""The object of `pair-check --json`, schema specllama.pair-check/1; texts are null where a vocabulary lacks
the id.
"""

from __future__ import annotations

from typing import TypedDict

from specllama.gguf.header import Header
from specllama.gguf.trimmed import read_trim
from specllama.heads.kind import HeadInfo
from specllama.json_types import JsonObject
from specllama.pair.check import PairVerdict, check_pair
from specllama.pair.head_check import HeadVerdict, step_bytes
from specllama.pair.shared_tokens import Overlap
from specllama.pair.vocab import Vocab, end_ids


class TrimReport(TypedDict):
    """What a trimmed draft was made from. coverage: see TrimInfo."""

    source: str
    n_kept: int
    n_vocab: int
    coverage: float | None


class FileReport(TypedDict):
    """A file of the pair: what its header says."""

    path: str
    name: str
    architecture: str
    quant: str
    params: int
    bytes_per_token: int
    tokenizer: str
    pre: str
    n_tokens: int
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    end_ids: list[int]
    chat_template: bool
    n_ctx_train: int
    trimmed: TrimReport | None


class HeadReport(TypedDict):
    """A head, and what it needs of its target; see HeadInfo."""

    kind: str
    in_target: bool
    n_layer: int
    n_embd: int
    n_embd_target: int
    target_layers: list[int]
    n_proposed: int
    n_chained: int
    n_draft_max: int | None
    block_size: int | None
    own_embeddings: bool
    own_output: bool
    weight_bytes: int
    step_bytes: int


class TranslationReport(TypedDict):
    """The tokens that vocabularies share, of those that the draft has; see Overlap."""

    n_shared: int
    n_tokens: int
    share: float


class PairReport(TypedDict):
    """The whole object. ok: whether the draft can be used."""

    schema: str
    verdict: str
    ok: bool
    reason: str
    target: FileReport
    draft: FileReport
    differing: list[JsonObject]
    n_differing: int
    first_difference: JsonObject | None
    head: HeadReport | None
    translation: TranslationReport | None
    notes: list[str]


def report(
    target: Header,
    draft: Header,
    verdict: PairVerdict | HeadVerdict,
    usable: bool,
    shared: Overlap | None,
) -> PairReport:
    """The object. usable: whether the draft can be used; shared: what the vocabularies share, where known."""
    v = vocabularies(verdict, target)
    return {
        "schema": "specllama.pair-check/1",
        "verdict": verdict.verdict,
        "ok": usable,
        "reason": verdict.reason,
        "target": _about(target, v.target),
        "draft": _about(draft, v.draft),
        "differing": [d._asdict() for d in v.differing],
        "n_differing": v.n_differing,
        "first_difference": v.first_difference._asdict() if v.first_difference else None,
        "head": _about_head(target, verdict.head) if isinstance(verdict, HeadVerdict) else None,
        "translation": None
        if shared is None
        else {"n_shared": shared.n_shared, "n_tokens": shared.n_ordinary, "share": round(shared.share, 6)},
        "notes": [str(note) for note in verdict.notes],
    }


def vocabularies(verdict: PairVerdict | HeadVerdict, target: Header) -> PairVerdict:
    """The comparison of the vocabularies; a head inside the target has the target's."""
    if isinstance(verdict, PairVerdict):
        return verdict
    return verdict.vocabulary or check_pair(target, target)


def _about_head(target: Header, head: HeadInfo) -> HeadReport:
    return {
        "kind": head.kind.name,
        "in_target": not head.own_file,
        "n_layer": head.n_layer,
        "n_embd": head.n_embd,
        "n_embd_target": head.n_embd_target,
        "target_layers": list(head.target_layers),
        "n_proposed": head.n_proposed,
        "n_chained": head.n_chained,
        "n_draft_max": head.n_draft_max,
        "block_size": head.block_size or None,
        "own_embeddings": head.own_embeddings,
        "own_output": head.own_output,
        "weight_bytes": head.weight_bytes,
        "step_bytes": step_bytes(target, head),
    }


def _about(header: Header, vocab: Vocab) -> FileReport:
    return {
        "path": header.path,
        "name": header.name,
        "architecture": header.architecture,
        "quant": header.quant,
        "params": header.n_params,
        "bytes_per_token": header.bytes_per_token,
        "tokenizer": vocab.kind,
        "pre": vocab.pre,
        "n_tokens": vocab.n_tokens,
        "bos_id": vocab.bos_id,
        "eos_id": vocab.eos_id,
        "add_bos": vocab.add_bos,
        "add_eos": vocab.add_eos,
        "end_ids": sorted(end_ids(header, vocab)),
        "chat_template": header.chat_template is not None,
        "n_ctx_train": header.n_ctx_train,
        "trimmed": _about_trim(header),
    }


def _about_trim(header: Header) -> TrimReport | None:
    """What a trimmed draft was made from, None for other files."""
    trim = read_trim(header)
    if trim is None:
        return None
    coverage = None if trim.coverage is None else round(trim.coverage, 6)
    return {"source": trim.source, "n_kept": trim.n_kept, "n_vocab": trim.n_vocab, "coverage": coverage}
