"""`specllama pair-check`: two headers compared, as a table for people or one object for programs.

Never loads llama.cpp. Text from the files is escaped before it is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specllama.cli import console
from specllama.cli.download import library
from specllama.cli.formatting import columns, table, wrapped
from specllama.errors import IncompatiblePairError
from specllama.gguf.check import check_model, check_tokenizer
from specllama.gguf.header import Header
from specllama.models.resolve import Library
from specllama.pair.check import PairVerdict, check_pair
from specllama.pair.vocab import Vocab, end_ids, shown
from specllama.text.terminal import printable

EXAMPLES = """
Examples:
  specllama pair-check main.gguf draft.gguf
  specllama pair-check 8B 1B
  specllama pair-check user/repo:Q4_K_M hf:user/other-repo --json

Reads the headers only, on the hub too. The exit code is 0 where the draft can be used, 7 where it cannot.
"""
MAX_SHOWN = 20  # differing ids of a compatible pair
MAX_SHOWN_REFUSED = 5  # of an incompatible one, where there can be thousands


def pair_check(given: Mapping[str, Any]) -> int:
    """Print whether the draft can propose tokens for the target; returns the exit code.

    given: target and draft by path or name; files may be vocabularies without weights. For a model that is
    on the hub and not on disk, only the header is read, and nothing is kept. Raises NotFoundError,
    UsageError, GGUFError, IntegrityError, AccessError, NetworkError for what cannot be read or run.
    """
    known = library()
    headers = _header(known, given["target"], "MAIN"), _header(known, given["draft"], "DRAFT")
    verdict = check_pair(*headers)
    if given.get("json"):
        # As ASCII: UTF-8 would pass on control characters from the files.
        console.data(json.dumps(_object(*headers, verdict)) + "\n")
    else:
        lines = _lines(*headers, verdict, columns(sys.stdout))
        console.data("".join(f"{line}\n" for line in lines))
    return 0 if verdict.ok else IncompatiblePairError.exit_code


def _header(known: Library, name: str, argument: str) -> Header:
    header = known.header(known.find(name, argument))
    if header.tensors or not len(header.tokens):
        check_model(header)
    else:
        check_tokenizer(header)
    return header


def _object(target: Header, draft: Header, v: PairVerdict) -> dict[str, Any]:
    """Schema specllama.pair-check/1; texts are null where the vocabulary lacks the id."""
    return {
        "schema": "specllama.pair-check/1",
        "verdict": v.verdict,
        "ok": v.ok,
        "reason": v.reason,
        "target": _about(target, v.target),
        "draft": _about(draft, v.draft),
        "differing": [d._asdict() for d in v.differing],
        "n_differing": v.n_differing,
        "first_difference": v.first_difference._asdict() if v.first_difference else None,
        "notes": [str(note) for note in v.notes],
    }


def _about(header: Header, vocab: Vocab) -> dict[str, Any]:
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
    }


def _lines(target: Header, draft: Header, v: PairVerdict, width: int | None) -> Iterator[str]:
    yield from _compared(_rows(target, v.target), _rows(draft, v.draft), width)
    yield ""
    yield from wrapped(f"{v.verdict}: {v.reason}", width)
    most = MAX_SHOWN if v.ok else MAX_SHOWN_REFUSED
    for d in v.differing[:most]:
        yield from wrapped(f"{d.id}: target {shown(d.target)}, draft {shown(d.draft)}", width, "  ", "    ")
    if v.n_differing > most:
        yield f"  and {v.n_differing - most} more"
    if not v.ok:
        hint = "Choose a draft of the target's own family, or run without one: -md none."
        yield from wrapped(hint, width)
    for note in v.notes:
        yield from wrapped(str(note) if note.severity == "warning" else f"note: {note}", width)


def _rows(header: Header, vocab: Vocab) -> list[tuple[str, str]]:
    """Properties of one file that are compared: label and text."""
    params = header.n_params
    unit, size = ("B", 1e9) if params >= 1e9 else ("M", 1e6)
    return [
        ("file", printable(header.path)),
        ("name", printable(header.name)),
        ("quant", header.quant or "none"),
        ("params", f"{params / size:.3g} {unit}" if params else "none"),
        ("tokenizer", vocab.kind),
        ("pre", printable(vocab.pre or "default") if vocab.kind == "bpe" else "none"),
        ("tokens", str(vocab.n_tokens)),
        ("bos", f"{vocab.named(vocab.bos_id)}, {'added' if vocab.add_bos else 'not added'}"),
        ("eos", f"{vocab.named(vocab.eos_id)}, {'added' if vocab.add_eos else 'not added'}"),
        ("context", str(header.n_ctx_train or "unknown")),
    ]


def _compared(
    target: Sequence[tuple[str, str]], draft: Sequence[tuple[str, str]], width: int | None
) -> Iterator[str]:
    """Both files side by side, or one below the other where `width` columns are too few for that."""
    rows = [(name, a, b) for (name, a), (_, b) in zip(target, draft, strict=True)]
    lines = list(table(("", "target", "draft"), rows, left=(0, 1, 2), gap=2))
    if width is None or max(map(len, lines)) <= width:
        yield from lines
        return
    for title, about in (("target", target), ("draft", draft)):
        yield title
        for name, text in about:
            yield from wrapped(f"{name} {text}", width, "  ", "    ")
