"""The prompt that asks a model to fill a gap, in the layout of llama-server's /infill: the repository's name
and other texts, then the text before and after the gap, each cut to what one decode may hold.

Knows the fill-in-the-middle tokens of the vocabulary. Texts are cut before they are tokenised.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from specllama.client.protocol import Infill, InfillChunk
from specllama.core.prefix.boundaries import Boundary, Kind, distances
from specllama.errors import NotSupportedError
from specllama.llama.model import LlamaModel
from specllama.llama.special_tokens import FimTokens, fim_tokens

_REPOSITORY, _FILE = "myproject\n", "filename\n"  # llama-server's names for what it is not told
_BETWEEN = "\n\n--- snippet ---\n\n"  # before another text, where the vocabulary has no token for that
_KEPT_FOR_TEXT, _KEPT_SHARE = 512, 8  # tokens of the context, or 1/8 of it, that other texts leave free
_ANCHOR_SHARE, _ANCHOR_TOKENS = 8, 8  # of the tokens before the gap the first 1/8 may be left out; see _start


def infill_ids(model: LlamaModel, infill: Infill, n_ctx: int, n_batch: int) -> list[int]:
    """The ids of a prompt. n_batch: most tokens of prefix and suffix together.

    Without `extra`, prefix and suffix are used whole. Raises NotSupportedError where the vocabulary has no
    tokens for it, UsageError for texts that cannot be tokenised.
    """
    fim = fim_tokens(model)
    if fim.missing:
        raise NotSupportedError(
            f"the model cannot fill in the middle: its vocabulary has no token for {', '.join(fim.missing)}",
            "use a model for code that was trained to",
        )
    prompt = model.tokenize(infill.prompt, False, False)
    if infill.extra is None:
        prefix = model.tokenize(infill.prefix, False, False)
        suffix = model.tokenize(infill.suffix, False, False)
        return _joined(model, fim, [], [*prefix, *prompt], suffix, infill.suffix_first)
    kept = min(_KEPT_FOR_TEXT, n_ctx // _KEPT_SHARE)
    n_batch = min(n_batch, n_ctx - kept - 4)
    n_prefix, n_suffix = 3 * (n_batch // 4), max(0, n_batch // 4 - (2 + len(prompt)))
    longest = model.longest_token
    prefix = model.tokenize(infill.prefix[-(n_prefix + 1) * longest :], False, False)
    prefix = prefix[_start(model, prefix, n_prefix) :]
    suffix = model.tokenize(infill.suffix[: n_suffix * longest], False, False)[:n_suffix]
    extra = _extra_ids(model, fim, infill.extra, n_ctx - n_batch - kept - 4)
    return _joined(model, fim, extra, [*prefix, *prompt], suffix, infill.suffix_first)


def infill_boundaries(model: LlamaModel, ids: Sequence[int]) -> list[Boundary]:
    """The positions up to which later prompts may share such a prompt: the end of the other texts, and that
    of the text before the gap, which grows there; and those at growing distances from the end.
    """
    fim, n = fim_tokens(model), len(ids)
    starts = sorted(n - 1 - ids[::-1].index(i) for i in (fim.prefix, fim.suffix) if i in ids)
    kinds: tuple[Kind, Kind] = ("system", "user")
    boundaries = [Boundary(at, kind) for at, kind in zip(starts, kinds, strict=False) if at]
    return [*boundaries, *(boundary for boundary in distances(n) if boundary.n not in starts)]


def _joined(
    model: LlamaModel,
    fim: FimTokens,
    extra: list[int],
    prefix: list[int],
    suffix: list[int],
    suffix_first: bool,
) -> list[int]:
    """All parts in order. prefix: with the beginning of what fills the gap."""
    parts = [[fim.prefix, *prefix], [fim.suffix, *suffix]]
    first, second = reversed(parts) if suffix_first else parts
    bos = [model.bos_id] if model.adds_bos and model.bos_id >= 0 else []
    return [*extra, *bos, *first, *second, fim.middle]


def _start(model: LlamaModel, ids: Sequence[int], n: int) -> int:
    """Where the last n ids begin, or a little later: at the line, of those in the first part of them, whose
    first tokens have the lowest checksum.

    If the gap moves on by a line, that line is most often the same one, so that what was evaluated before it
    is reused; the last n ids themselves would begin at another token with every character (winnowing:
    Schleimer, Wilkerson, Aiken, SIGMOD 2003).
    """
    start = len(ids) - n
    if start <= 0:
        return 0
    lines = [i for i in range(start, start + n // _ANCHOR_SHARE) if model.piece(ids[i - 1]).endswith(b"\n")]
    return min(lines, key=lambda i: (_checksum(ids[i : i + _ANCHOR_TOKENS]), i), default=start)


def _checksum(ids: Sequence[int]) -> int:
    return zlib.crc32(b"".join(i.to_bytes(4, "little") for i in ids))


def _extra_ids(model: LlamaModel, fim: FimTokens, chunks: Sequence[InfillChunk], n: int) -> list[int]:
    """The last n ids of the repository's name, the other texts, and the file's name."""
    if n <= 0:
        return []
    parts = [[fim.separator, *model.tokenize(_FILE, False, False)]] if fim.separator >= 0 else []
    size = sum(map(len, parts))
    for chunk in reversed(chunks):
        if size >= n:
            break
        text = model.tokenize(chunk.text[-n * model.longest_token :], False, False)
        parts += [text, _heading(model, fim, chunk)]
        size += len(text) + len(parts[-1])
    if fim.repository >= 0:
        parts.append([fim.repository, *model.tokenize(_REPOSITORY, False, False)])
    return [i for part in reversed(parts) for i in part][-n:]


def _heading(model: LlamaModel, fim: FimTokens, chunk: InfillChunk) -> list[int]:
    if fim.separator < 0:
        return model.tokenize(_BETWEEN, False, False)
    return [fim.separator, *model.tokenize(f"{chunk.filename}\n", False, False)]
