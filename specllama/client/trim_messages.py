"""The messages of `trim`: the file to write, the progress, and the result."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Trim:
    """To the engine, which needs no model: write a trimmed copy of a draft; see worker/trim/.

    source: a draft model or a head. out: the file, which has the name `temporary` until it is whole. inside:
    the head inside a model. keep: tokens, None for as many as usual. texts: (name, text), whose tokens are
    kept first. seen: how often each id is in the texts of earlier prompts. type: of the output matrix, "" for
    that of the source. verify: compare what the file computes with its source. n_threads: 0 for the physical
    cores.
    """

    source: str
    out: str
    temporary: str
    inside: bool = False
    keep: int | None = None
    texts: list[tuple[str, str]] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    type: str = ""
    verify: bool = True
    n_threads: int = 0


@dataclass(frozen=True, slots=True)
class Trimmed:
    """From the engine: the file is written and verified.

    n_kept, n_vocab: tokens of the copy, and of the source's vocabulary. coverage: share of the tokens of
    the texts that are kept, None without texts. source_bytes, n_bytes: of the files. source_step_bytes,
    step_bytes: of the weights that a step reads, of source and copy. verified: rows of logits that are
    the source's, bit for bit unless the output has another type. difference: the greatest one of logits,
    None where rows were not compared. exact_context: whether the draft reads tokens that it lacks as its
    source does.
    """

    n_kept: int
    n_vocab: int
    coverage: float | None
    source_bytes: int
    n_bytes: int
    source_step_bytes: int
    step_bytes: int
    verified: int
    difference: float | None
    exact_context: bool
