"""`specllama pair-check`: two headers compared, as a table for people or one object for programs.

Never loads llama.cpp. Text from the files is escaped before it is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from specllama.cli import console
from specllama.cli.formatting import side_by_side, wrapped
from specllama.cli.models_show import Row, params
from specllama.cli.progress import library
from specllama.config.load import DRAFT_VOCABS
from specllama.errors import IncompatiblePairError, Note, UsageError, warning
from specllama.gguf.check import check_tokenizer
from specllama.gguf.header import Header
from specllama.gguf.trimmed import read_trim
from specllama.heads import read_head, unusable_head
from specllama.heads.check import check_draft, check_model
from specllama.heads.kind import HeadInfo
from specllama.json_types import JsonObject
from specllama.models.foreign_drafts import PAYS, DraftRecord, MeasuredDrafts, foreign_draft, left_out
from specllama.models.prepare import find_draft, own_draft
from specllama.models.resolve import Library, ResolvedModel
from specllama.models.trim import changed_source
from specllama.pair.check import (
    COSTLY_DRAFT,
    HeadVerdict,
    PairVerdict,
    check_any,
    check_head,
    check_pair,
    costs,
    step_bytes,
)
from specllama.pair.overlap import overlap
from specllama.pair.vocab import Overlap, Vocab, end_ids, shown
from specllama.text.terminal import printable


def report(
    target: Header, draft: Header, verdict: PairVerdict | HeadVerdict, usable: bool, shared: Overlap | None
) -> JsonObject:
    """The object of --json, schema specllama.pair-check/1; texts are null where a vocabulary lacks the id.

    usable: whether the draft can be used; shared: what the vocabularies share, where known.
    """
    v = vocabularies(verdict, target)
    return {
        "schema": "specllama.pair-check/1",
        "verdict": verdict.verdict,
        "ok": usable,
        "reason": verdict.reason,
        "target": {row.key: row.value for row in _rows(target, v.target, target.n_params)},
        "draft": {row.key: row.value for row in _rows(draft, v.draft, draft.n_params)},
        "differing": [d._asdict() for d in v.differing],
        "n_differing": v.n_differing,
        "first_difference": v.first_difference._asdict() if v.first_difference else None,
        "head": _about_head(target, verdict.head) if isinstance(verdict, HeadVerdict) else None,
        "translation": shared
        and {"n_shared": shared.n_shared, "n_tokens": shared.n_ordinary, "share": round(shared.share, 6)},
        "notes": [str(note) for note in verdict.notes],
    }


def vocabularies(verdict: PairVerdict | HeadVerdict, target: Header) -> PairVerdict:
    """The comparison of the vocabularies; a head inside the target has the target's."""
    if isinstance(verdict, PairVerdict):
        return verdict
    return verdict.vocabulary or check_pair(target, target)


def _rows(header: Header, vocab: Vocab, n_params: int) -> list[Row]:
    """The properties of one file. n_params: elements of its tensors."""
    pre = printable(vocab.pre or "default") if vocab.kind == "bpe" else "none"
    bos = f"{vocab.named(vocab.bos_id)}, {'added' if vocab.add_bos else 'not added'}"
    eos = f"{vocab.named(vocab.eos_id)}, {'added' if vocab.add_eos else 'not added'}"
    # fmt: off
    return [
        Row("path", header.path, "file", printable(header.path)),
        Row("name", header.name, "name", printable(header.name)),
        Row("architecture", header.architecture),
        Row("quant", header.quant, "quant", header.quant or "none"),
        Row("params", header.n_params, "params", params(n_params) or "none"),
        Row("bytes_per_token", header.bytes_per_token),
        Row("tokenizer", vocab.kind, "tokenizer", vocab.kind),
        Row("pre", vocab.pre, "pre", pre),
        Row("n_tokens", vocab.n_tokens, "tokens", str(vocab.n_tokens)),
        Row("bos_id", vocab.bos_id, "bos", bos),
        Row("eos_id", vocab.eos_id, "eos", eos),
        Row("add_bos", vocab.add_bos),
        Row("add_eos", vocab.add_eos),
        Row("end_ids", sorted(end_ids(header, vocab))),
        Row("chat_template", header.chat_template is not None),
        Row("n_ctx_train", header.n_ctx_train, "context", str(header.n_ctx_train or "unknown")),
        Row("trimmed", _about_trim(header)),
    ]
    # fmt: on


def _about_trim(header: Header) -> JsonObject | None:
    """The source of a trimmed draft, None for other files."""
    trim = read_trim(header)
    if trim is None:
        return None
    coverage = None if trim.coverage is None else round(trim.coverage, 6)
    return {"source": trim.source, "n_kept": trim.n_kept, "n_vocab": trim.n_vocab, "coverage": coverage}


def _about_head(target: Header, head: HeadInfo) -> JsonObject:
    return {
        "kind": head.kind.name,
        "in_target": not head.own_file,
        **{name: getattr(head, name) for name in ("n_layer", "n_embd", "n_embd_target")},
        "target_layers": list(head.target_layers),
        **{name: getattr(head, name) for name in ("n_proposed", "n_chained", "n_draft_max")},
        "block_size": head.block_size or None,
        **{name: getattr(head, name) for name in ("own_embeddings", "own_output", "weight_bytes")},
        "step_bytes": step_bytes(target, head),
    }


def translation_notes(
    target: Header, draft: Header, shared: Overlap | None, problem: str, translates: bool
) -> Iterator[Note]:
    """The notes on a draft that llama.cpp refuses. shared: what the vocabularies share, None if its tokens
    cannot be translated, because of this problem. translates: whether --draft-vocab is auto.
    """
    if shared is None:
        yield Note(f"its tokens cannot be translated: {problem}")
        return
    can = "its tokens are translated" if translates else "can draft with --draft-vocab auto"
    yield Note(f"{shared.label}, {can}")
    yield from costs(target, draft)
    record = MeasuredDrafts(target).of(draft)
    if record is not None:
        yield Note(_measured(record))
    elif 0 < draft.bytes_per_token < target.bytes_per_token:  # others cannot pay, which `costs` says
        yield Note(_not_measured(target, draft))


def _measured(record: DraftRecord) -> str:
    if record.pays:
        return f"{record.label}: -md auto uses it, with --draft-vocab auto"
    text = f"{record.label}: -md auto leaves it out, as it needs {PAYS:.2f} x"
    if record.acceptance is None or record.needed is None:
        return text
    if record.needed >= 1:
        return f"{text}; no draft can pay at these costs"
    shares = [f"{100 * share:.0f} %" for share in (record.acceptance, record.needed)]
    return f"{text}; {shares[0]} of its tokens were right, and drafts pay from {shares[1]} here"


def _not_measured(target: Header, draft: Header) -> str:
    text = (
        f"-md auto uses it only if it was measured to pay here, from {PAYS:.2f} x: "
        "specllama tune -m MAIN -md DRAFT --draft-vocab auto"
    )
    ratio = draft.bytes_per_token / target.bytes_per_token
    if not 0.01 <= ratio < COSTLY_DRAFT:  # `costs` says it of costly ones
        return text
    return f"{text}; by its size alone more than {100 * ratio:.0f} % of its tokens must be right"


MAX_SHOWN = 20  # differing ids of a compatible pair
MAX_SHOWN_REFUSED = 5  # of an incompatible one, where there can be thousands


def pair_check(given: Mapping[str, Any]) -> int:
    """Print whether the draft, a model or a head, can propose tokens for the target; returns the exit code.

    given: target and draft by path or name; without a draft that with which `run` uses the target. Files may
    be vocabularies without weights. For a model that is on the hub and not on disk, only the header is read,
    and nothing is kept. Raises NotFoundError, UsageError, GGUFError, IntegrityError, AccessError,
    NetworkError, IncompatiblePairError for what cannot be read or run.
    """
    known = library()
    main = known.find(_named(given, "target", "model", "MAIN"), "MAIN")
    target = _header(known, main, check_model)
    mode, shared = given.get("draft_vocab", "strict"), None
    if mode not in DRAFT_VOCABS:
        raise UsageError(f"must be one of {', '.join(DRAFT_VOCABS)}, not {mode!r}", option="draft_vocab")
    translates = mode == "auto"
    if (name := _draft_name(given)) is not None:
        other = find_draft(known, name, "DRAFT")
    else:
        # What was measured with one of another vocabulary is in the table or the error; a note says so only
        # where it would be used if tokens were translated.
        other = (
            own_draft(known, main, target)
            or foreign_draft(Library() if translates else known, main, target, translates)
            or main
        )
    draft = target if other is main else _header(known, other, check_draft)
    verdict: PairVerdict | HeadVerdict
    verdict = _inner_head(main.path, target, translates) if other is main else check_any(target, draft)
    notes = list[Note]()
    if not verdict.ok and isinstance(verdict, PairVerdict):
        shared, problem = overlap(target, draft)
        notes += translation_notes(target, draft, shared, problem, translates)
    elif not verdict.ok and translates:
        notes.append(Note("--draft-vocab is of no use to a head, which needs the target's own vocabulary"))
    if name := changed_source(draft):
        notes.append(warning(f"{printable(name)} has changed since it was trimmed: trim it again"))
    verdict = replace(verdict, notes=(*verdict.notes, *notes))
    usable = verdict.ok or (shared is not None and translates)
    about = report(target, draft, verdict, usable, shared)
    console.report(given, about, _lines(target, draft, verdict, usable, console.width()))
    return 0 if usable else IncompatiblePairError.exit_code


def _draft_name(given: Mapping[str, Any]) -> str | None:
    """The name of the draft, None for that with which `run` uses the target. Raises UsageError."""
    if "draft" not in given and "draft_model" not in given:
        return None
    name = _named(given, "draft", "draft_model", "DRAFT")
    if name == "none":
        raise UsageError("DRAFT: none is no draft to check", "name one, or auto for what run uses with MAIN")
    return None if name == "auto" else name


def _named(given: Mapping[str, Any], argument: str, flag: str, shown_name: str) -> str:
    """The name of a model, given by its place or by a flag. Raises UsageError."""
    if argument in given and flag in given:
        raise UsageError(f"{shown_name} is given twice", "name it by its place or by its flag")
    name = given.get(argument, given.get(flag))
    if name is None:
        raise UsageError(f"{shown_name} is missing", "specllama pair-check MAIN [DRAFT]")
    return str(name)


def _header(known: Library, model: ResolvedModel, check: Callable[[Header], None]) -> Header:
    header = known.header(model)
    if header.tensors or not len(header.tokens):
        check(header)
    else:
        check_tokenizer(header)
    return header


def _inner_head(path: str, header: Header, translates: bool) -> HeadVerdict:
    """The verdict on the head inside a model. path: "" where it is not on disk. translates: whether a draft
    of another vocabulary was looked for too. Raises UsageError if it has none, IncompatiblePairError for one
    that llama.cpp does not run.
    """
    head = read_head(header)
    if head is not None:
        return check_head(header, head)
    if reason := unusable_head(header):
        message = f"{header.path}: its head cannot be used: {reason}"
        raise IncompatiblePairError(message, "Name a draft, or run it without one: -md none.")
    if translates and (draft := left_out(path, header)):
        raise UsageError(
            f"{header.path} has no head of its own, and -md auto leaves the draft known for it out: {draft}",
            "name it to see more: specllama pair-check MAIN DRAFT",
        )
    message = f"{header.path} has no head of its own, and no draft for it is known and on disk"
    raise UsageError(message, "name a draft too: specllama pair-check MAIN DRAFT")


def _lines(
    target: Header, draft: Header, verdict: PairVerdict | HeadVerdict, usable: bool, width: int | None
) -> Iterator[str]:
    v, second, other = vocabularies(verdict, target), "draft", "a draft of the target's own family"
    n_params, more = draft.n_params, list[tuple[str, str, str]]()
    if isinstance(verdict, HeadVerdict):
        second, other = "head", "a head that was made for the target"
        n_params, more = sum(t.n_elements for t in verdict.head.tensors), _head_rows(target, verdict.head)
    rows = zip(_rows(target, v.target, target.n_params), _rows(draft, v.draft, n_params), strict=True)
    lines = [(a.label, a.text, b.text) for a, b in rows if a.label]
    yield from side_by_side([*lines, *more], second, width)
    yield ""
    yield from wrapped(f"{verdict.verdict}: {verdict.reason}", width)
    most = MAX_SHOWN if verdict.ok else MAX_SHOWN_REFUSED
    for d in v.differing[:most]:
        yield from wrapped(f"{d.id}: target {shown(d.target)}, draft {shown(d.draft)}", width, "  ", "    ")
    if v.n_differing > most:
        yield f"  and {v.n_differing - most} more"
    if not usable:
        yield from wrapped(f"Choose {other}, or run without one: -md none.", width)
    for note in verdict.notes:
        yield from wrapped(str(note) if note.severity == "warning" else f"note: {note}", width)


def _head_rows(target: Header, head: HeadInfo) -> list[tuple[str, str, str]]:
    """The needs of a head of its target: label, the target's, the head's."""
    layers = str(head.n_layer_target or "unknown")
    if head.target_layers:
        layers = f"reads {', '.join(map(str, head.target_layers))}"
    elif head.kind.shares_cache:
        layers = "reads the last two"
    return [
        ("head", "none" if head.own_file else head.label, head.label),
        ("layers", str(target.n_layer_trunk), layers),
        ("hidden size", str(target.n_embd), f"reads {head.n_embd_target}"),
        ("proposes", "", f"{head.n_proposed} of {head.n_vocab}"),
    ]
