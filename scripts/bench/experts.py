"""What decodes of mixtures of experts take by their number of rows, with the kernels and in llama.cpp.

usage: python -m scripts.bench.experts MODEL [--rows 1,2,3,4,6,8,12,16] [--runs 30] [--threads N]

MODEL: with the demo model's vocabulary, as scripts.bench.random_shapes writes; it reads documentation. The
rows of a decode are those of the text (as copies are, which are mostly right), or the first is that of the
text and the others are tokens from elsewhere in it (as wrong guesses are): they may reach more experts. Two
processes, with the kernels and with SPECLLAMA_KERNELS=off, measure in turn, in every run at another place.
Prints for each number of rows, as JSON: medians in milliseconds, of text and of guesses; the median of the
ratios of kernels to llama.cpp, both of text; and of guesses to text, with the kernels. Each ratio with the
points that a quarter of them is below and above. Run nothing else on the machine.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts import cli
from scripts.bench.llm import Llm, start_llama
from specllama.errors import SpecllamaError
from specllama.gguf.header import read_model
from specllama.models.demo import DemoStore

TEXTS = Path(__file__).parents[2] / "docs"
LENGTH, FIRST = 1024, 256  # tokens of the text, and before the first decode
KINDS = ("on", "off")
_opened: dict[str, Any] = {}  # of a process that measures


def open_model(path: str, n_threads: int, ids: Sequence[int]) -> None:
    """Open the model in this process, and read the text."""
    from specllama.config.load import ModelSettings
    from specllama.core.interfaces import BatchRow
    from specllama.llama.context import LlamaContext
    from specllama.llama.model import LlamaModel

    model = LlamaModel(ModelSettings(path=path, n_threads=n_threads, n_threads_batch=n_threads))
    context = LlamaContext(model, n_ctx=2 * LENGTH)
    for begin in range(0, len(ids), 64):
        part = ids[begin : begin + 64]
        context.decode([BatchRow(t, begin + i, 0, i == len(part) - 1) for i, t in enumerate(part)])
    _opened.update(model=model, context=context, state=context.save(0), row=BatchRow)


def decode_seconds(n_past: int, ids: Sequence[int]) -> float:
    """The time of a decode of these ids after the first n_past of the text."""
    context, row = _opened["context"], _opened["row"]
    context.load(0, _opened["state"])
    context.truncate(0, n_past)
    started = time.perf_counter()
    context.decode([row(t, n_past + i, 0, True) for i, t in enumerate(ids)])
    return time.perf_counter() - started


def text_ids() -> list[int]:
    with Llm(Path(DemoStore().path), n_threads=1, n_ctx=64) as model:
        ids: list[int] = []
        for path in sorted(TEXTS.glob("*.md")):
            ids += model.tokenize(path.read_text("utf-8"))
            if len(ids) >= LENGTH:
                break
    return ids[:LENGTH]


def spread(ratios: Sequence[float]) -> list[float]:
    """The median, and the points that a quarter is below and above."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return [round(x, 3) for x in (middle, low, high)]


def measure(processes: dict[str, ProcessPoolExecutor], ids: Sequence[int], n: int, n_runs: int) -> Any:
    """The figures of n rows."""
    rng = random.Random(n)
    seconds: dict[tuple[str, str], list[float]] = {(k, r): [] for k in KINDS for r in ("text", "guesses")}
    for _ in range(n_runs):
        at = rng.randrange(FIRST, LENGTH - n)
        rows = {"text": ids[at : at + n], "guesses": [ids[at], *rng.choices(ids, k=n - 1)]}
        cells = list(seconds)
        rng.shuffle(cells)
        for kind, source in cells:
            run = processes[kind].submit(decode_seconds, at, rows[source])
            seconds[kind, source].append(run.result())

    def ratio(a: tuple[str, str], b: tuple[str, str]) -> list[float]:
        return spread([x / y for x, y in zip(seconds[a], seconds[b], strict=True)])

    return {
        "rows": n,
        "ms": {f"{k} {r}": round(1000 * statistics.median(s), 2) for (k, r), s in seconds.items()},
        "kernels_to_llama_cpp": ratio(("on", "text"), ("off", "text")),
        "guesses_to_text": ratio(("on", "guesses"), ("on", "text")),
        "guesses_to_text_llama_cpp": ratio(("off", "guesses"), ("off", "text")),
    }


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("model", type=Path)
    p.add_argument("--rows", default="1,2,3,4,6,8,12,16", help="rows of the decodes")
    p.add_argument("--runs", type=cli.whole(4), default=30, help="decodes of each number of rows")
    p.add_argument("--threads", type=cli.threads, help="of each process")
    given = p.parse_args()
    cli.check_kernels_variable()
    if not given.model.is_file():
        p.error(f"{given.model} is not a file")
    rows = [int(n) for n in given.rows.split(",") if n.isdigit() and 0 < int(n) <= 64]
    if not rows or len(rows) < given.rows.count(",") + 1:
        p.error(f"--rows {given.rows}: give numbers from 1 to 64")
    n_vocab = read_model(given.model).n_vocab
    start_llama()
    ids = text_ids()
    if n_vocab <= max(ids):
        p.error(f"{given.model} has {n_vocab} tokens and not the demo model's vocabulary")
    with ExitStack() as stack:
        processes = {}
        for kind in KINDS:
            os.environ["SPECLLAMA_KERNELS"] = kind  # of the process that begins now
            one = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
            processes[kind] = stack.enter_context(one)
            one.submit(open_model, str(given.model), given.threads, ids).result()
        for n in rows:
            print(json.dumps(measure(processes, ids, n, given.runs)), flush=True)


if __name__ == "__main__":
    cli.run(main, SpecllamaError)
