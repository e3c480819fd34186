"""What the page costs: in the browser, and on the server's side by the trace that it asks for.

usage: python -m tests.browser.measure [-m MODEL] [--runs N] [-n TOKENS]

Needs Chromium and its driver. Prints, of the page, for answers of 2,000 made-up tokens of five kinds: the
longest time without a frame (0: none above 50 ms), the processor time per token, and its growth from the
beginning of the answer to its end; then the time from Enter to the first character on the screen, without
the engine's own time to its first token; the first paint with content of a page that nothing is cached
of; and how long a conversation of 200 answers of 400 tokens takes to open. Of the server: the processor
time of server and engine, and the time of an answer, with the trace over without, as the median of pairs.
Run nothing else on the machine.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from tests.support.browser import browser
from tests.support.campaigns import command_parser
from tests.support.page_pace import (
    TEXTS,
    first_character,
    first_paint,
    long_conversation,
    opened,
    streamed,
)
from tests.support.serving import QUESTION, Server

N_TOKENS = 2000


def main() -> None:
    parser = command_parser("tests.browser.measure", __doc__)
    parser.add_argument("-m", "--model", default="pydoc")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("-n", "--n-tokens", type=int, default=400)
    args = parser.parse_args()
    with TemporaryDirectory() as home, Server(Path(home), "-m", args.model, "-np", "1") as server:
        cost_of_trace(server, args.runs, args.n_tokens)
        with browser(server.url) as page:
            page.ready()
            for name, text in TEXTS.items():
                page.press("New conversation")
                pace = streamed(page, text, N_TOKENS)
                work = median(pace.work_ms)
                frame, growth = pace.longest_task_ms, pace.growth
                print(
                    f"{name}: {frame:.0f} ms without a frame, {work:.2f} ms of work a token, x {growth:.2f}"
                )
            first = sorted(first_character(page) for _ in range(args.runs))
            print(f"Enter to the first character: median {median(first):.0f} ms, longest {first[-1]:.0f} ms")
            painted = [first_paint(page) for _ in range(args.runs)]
            times = sorted(ms for ms, _ in painted)
            size = max(n for _, n in painted) / 1000
            print(f"first paint: median {median(times):.0f} ms, longest {times[-1]:.0f} ms; {size:.0f} kB")
            long_conversation(page)
            times = []
            for _ in range(args.runs):
                page.ready()
                times.append(opened(page))
            print(f"opening 200 answers: median {median(times):.0f} ms, longest {max(times):.0f} ms")


def cost_of_trace(server: Server, runs: int, n: int) -> None:
    """Print what the trace adds, by pairs of the same request."""
    processes = [psutil.Process(server.process.pid), server.engine()]

    def spent(trace: bool) -> tuple[float, float]:
        """(processor seconds, seconds) of one answer."""
        before = sum(sum(p.cpu_times()[:2]) for p in processes)
        began = time.perf_counter()
        reply = server.chat(
            QUESTION, stream=True, max_tokens=n, ignore_eos=True, seed=1,
            speculation={"trace": trace, "memory": False},
        )  # fmt: skip
        assert reply.status == 200
        return sum(sum(p.cpu_times()[:2]) for p in processes) - before, time.perf_counter() - began

    spent(True)
    pairs = []
    for i in range(runs):
        order = (True, False) if i % 2 else (False, True)
        pairs.append({trace: spent(trace) for trace in order})
    for k, name in enumerate(("processor time", "time")):
        ratios = [pair[True][k] / pair[False][k] for pair in pairs]
        sums = sum(pair[True][k] for pair in pairs) / sum(pair[False][k] for pair in pairs)
        middle, whole = 100 * (median(ratios) - 1), 100 * (sums - 1)
        print(f"trace, {name}: {middle:+.1f} % (median of {runs} pairs), {whole:+.1f} % in sum")


if __name__ == "__main__":
    main()
