"""Measures the promises of the engine: lossless text, speed against llama.cpp's tool, latency, memory.

usage: python -m scripts.bench.engine COMMAND ...

       lossless  -m TARGET -md DRAFT [--prompts FILE] [--per-workload N] [--draft-max 1-16]
       peer      --peer LLAMA-SPECULATIVE-SIMPLE --pairs DIR [--types ...] [--costs ...]
       gain      -m TARGET -md DRAFT     (run's default against plain decoding, by workload)
       ttft      -m TARGET -md DRAFT
       own-time  -m TARGET -md DRAFT     (with a 128k vocabulary, of scripts.bench.make_pair)
       rounds    [--vocab N] [--temp T]  (the engine's own time, with contexts that compute nothing)
       startup
       memory    --peer LLAMA-SPECULATIVE-SIMPLE -m TARGET -md DRAFT

A prompts file is a JSON object, workload to list of prompts; the default is a few prompts about the standard
library. Figures are medians; compared runs alternate. Run nothing else on the machine.
"""

from __future__ import annotations

from scripts import cli
from scripts.bench.engine.lossless import lossless
from scripts.bench.engine.peer import COSTS, TYPES, memory, peer
from scripts.bench.engine.rounds import rounds
from scripts.bench.engine.times import gain, own_time, startup, ttft
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument(
        "command", choices=["lossless", "peer", "gain", "ttft", "own-time", "rounds", "startup", "memory"]
    )
    parser.add_argument("-m", "--model", default=str(EMBEDDED_TARGET))
    parser.add_argument("-md", "--draft", default=str(EMBEDDED_DRAFT))
    parser.add_argument("--prompts")
    parser.add_argument("--per-workload", type=int, default=1)
    parser.add_argument("--draft-max", type=cli.whole_list(0), default=None)
    parser.add_argument("--peer", help="path of llama-speculative-simple, built from the same source")
    parser.add_argument("--pairs", help="directory that python -m scripts.bench.make_pair wrote")
    parser.add_argument("--types", type=lambda s: s.split(","), default=list(TYPES))
    parser.add_argument("--costs", type=lambda s: s.split(","), default=list(COSTS))
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("-n", type=int, default=64, help="tokens of a generation")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--show", type=int, default=20, help="divergences to list")
    parser.add_argument("-fa", "--flash-attn", default="auto")
    parser.add_argument("-t", "--threads", type=int, default=2)
    args = parser.parse_args()
    if args.draft_max is None:
        args.draft_max = list(range(1, 17)) if args.command == "lossless" else [3, 7, 15]
    if args.command in ("peer", "memory") and not args.peer:
        parser.error(f"{args.command} needs --peer")
    if args.command == "peer" and not args.pairs:
        parser.error("peer needs --pairs")
    {
        "lossless": lossless, "peer": peer, "gain": gain, "ttft": ttft, "own-time": own_time,
        "rounds": rounds, "startup": startup, "memory": memory,
    }[args.command](args)  # fmt: skip


if __name__ == "__main__":
    main()
