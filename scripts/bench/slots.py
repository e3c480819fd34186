"""How much the logits and the greedy text of a request change when other requests run at the same time.

usage: python -m scripts.bench.slots [-m TARGET] [--prompts N] [--others 1,3,7] [-n TOKENS] [-t N] [-fa MODE]
                                     [--show N]

Each request runs alone, then in one batch with others; plain decoding, no drafter. Its logits when it runs
alone, decoded row by row in an empty cache, are compared with those of the same ids among others: `layout`,
where only the cells of the cache interleave, and `batch`, where the rows are decoded together too.
epsilon is the 99.9 % quantile of the change of the margin between the two best tokens. A text may differ only
where its margin is within 2 epsilon; the exit code is 1 if one differs elsewhere.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scripts import cli
from scripts.bench.measuring import CHATML
from scripts.bench.measuring.extraction import records, unrelated
from scripts.figures import quantile
from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Generation, Request, common_prefix
from specllama.data import EMBEDDED_TARGET
from specllama.errors import SpecllamaError
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from specllama.worker.calibrate import margin_change

Rows = NDArray[np.float32]
SLOTS = 8


class Text(NamedTuple):
    """A prompt, the text written when it runs alone, and the logits of each of its tokens."""

    prompt: list[int]
    ids: list[int]
    rows: Rows


def prompts(model: LlamaModel, n: int) -> list[list[int]]:
    """Prompts of many lengths: short questions, records, sources."""
    names = ("zip", "os.walk", "shutil.copytree", "json.dumps", "sorted", "re.sub", "pathlib.Path", "open")
    found = [f"What does {name} do?" for name in names]
    found += [exchange.prompt for exchange in records(8, 1)]
    found += [exchange.prompt for exchange in unrelated(n, 1, 60)]
    texts = [found[i % 3 * 8 + i // 3] if i < 24 else found[i] for i in range(min(n, len(found)))]
    return [model.tokenize(CHATML.format(text), model.adds_bos, True) for text in texts]


def empty(context: LlamaContext) -> None:
    """Empty the cache of all sequences."""
    for seq in range(SLOTS):
        context.truncate(seq, 0)


def prefill(context: LlamaContext, ids: Sequence[int], seq: int) -> None:
    for at in range(0, len(ids), context.n_batch):
        part = ids[at : at + context.n_batch]
        context.decode([BatchRow(t, at + i, seq, False) for i, t in enumerate(part)])


def write(context: LlamaContext, requests: Sequence[Request], end_ids: Sequence[int]) -> list[Generation]:
    """Runs the requests together, without drafts."""
    empty(context)
    engine = Engine(context, Fixed([], 0), end_ids=end_ids, clock=time.perf_counter)
    found = [engine.submit(request) for request in requests]
    while engine.busy:
        engine.step()
    return found


def reference(context: LlamaContext, prompt: list[int], ids: list[int]) -> Text:
    """The text with the logits of each of its tokens, decoded alone, row by row."""
    empty(context)
    prefill(context, prompt[:-1], 0)
    known, rows = [*prompt, *ids], []
    for at in range(len(prompt) - 1, len(known) - 1):
        rows.append(context.decode([BatchRow(known[at], at, 0, True)])[0].copy())
    return Text(prompt, ids, np.stack(rows))


def among(
    context: LlamaContext, texts: Mapping[int, Text], together: bool
) -> Iterator[tuple[int, int, Rows]]:
    """(sequence, index of the token, its logits) for all texts, with interleaved cells of the cache.

    together: their rows are in one decode too.
    """
    empty(context)
    for seq, text in texts.items():
        prefill(context, text.prompt[:-1], seq)
    for j in range(max(len(text.ids) for text in texts.values())):
        batch = []
        for seq, (prompt, ids, _) in texts.items():
            if j < len(ids):
                at = len(prompt) - 1 + j
                batch.append(BatchRow([*prompt, *ids][at], at, seq, True))
        for rows in [batch] if together else [[row] for row in batch]:
            for row, got in zip(rows, context.decode(rows), strict=True):
                yield row.seq_id, j, got


def margin(row: Rows) -> float:
    second, best = np.partition(row, -2)[-2:]
    return float(best - second)


def measure(args: argparse.Namespace) -> bool:
    """Prints the figures; returns whether every divergence is a near-tie."""
    model = LlamaModel(
        ModelSettings(path=str(args.model), n_threads=args.threads, flash_attn=args.flash_attn)
    )
    context = LlamaContext(model, args.ctx, SLOTS)
    end_ids, params = sorted(model.end_ids), SamplingParams(temperature=0, max_tokens=args.n)
    requests = [Request(ids, params, 1) for ids in prompts(model, args.prompts)]
    texts = [
        reference(context, list(request.prompt), write(context, [request], end_ids)[0].output)
        for request in requests
    ]
    n_tokens, kept = sum(len(text.ids) for text in texts), True
    print(f"{args.model.name}: {len(texts)} greedy texts, {n_tokens} tokens, {SLOTS} slots")
    rng = random.Random(1)
    for k in args.others:
        changes: dict[str, list[float]] = {"layout": [], "batch": []}
        flips: list[tuple[int, int, float]] = []
        for i, text in enumerate(texts):
            others = rng.sample([j for j in range(len(texts)) if j != i], k)
            order = [*others, i]
            rng.shuffle(order)
            own, seqs = order.index(i), {seq: texts[j] for seq, j in enumerate(order)}
            for name, together in (("layout", False), ("batch", True)):
                for seq, j, row in among(context, seqs, together):
                    if seq == own:
                        changes[name].append(margin_change(text.rows[j], row))
            got = write(context, [requests[j] for j in order], end_ids)[own].output
            at = common_prefix(got, text.ids)
            if got != text.ids:
                flips.append((i, at, margin(text.rows[min(at, len(text.rows) - 1)])))
        epsilon = {name: quantile(found, 0.999) for name, found in changes.items()}
        limit = 2 * max(epsilon.values())
        above = [flip for flip in flips if flip[2] > limit]
        epsilons = ", ".join(f"epsilon of {name} {value:.3g}" for name, value in epsilon.items())
        print(f"  with {k} others: {epsilons} ({len(changes['batch'])} rows)")
        print(
            f"    {len(flips)} of {len(texts)} texts diverge, {len(above)} of them where the margin is above "
            "2 epsilon"
        )
        for i, at, found in flips[: args.show]:
            print(f"      prompt {i}, token {at}: margin {found:.3g}")
        kept = kept and not above
    context.close()
    model.close()
    return kept


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("-m", "--model", type=Path, default=EMBEDDED_TARGET)
    parser.add_argument("--prompts", type=int, default=24, help="texts that are compared")
    parser.add_argument(
        "--others", type=cli.whole_list(1), default=[1, 3, 7], help="numbers of other requests"
    )
    parser.add_argument("-n", type=int, default=64, help="tokens of a text")
    parser.add_argument("-c", "--ctx", type=int, default=8192)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-fa", "--flash-attn", default="auto")
    parser.add_argument("--show", type=int, default=10, help="divergences to list")
    args = parser.parse_args()
    if args.n < 1 or not all(1 <= k < min(SLOTS, args.prompts) for k in args.others):
        parser.error(f"--others takes numbers from 1 to {SLOTS - 1}, below --prompts")
    try:
        sys.exit(0 if measure(args) else 1)
    except SpecllamaError as error:
        parser.error(error.message)


if __name__ == "__main__":
    main()
