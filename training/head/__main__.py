"""Trains an EAGLE-3 head for SmolLM2-135M-Instruct and exports it.

usage: python -m training.head.write --model GGUF --out DIR/texts
       python -m training.head.write --model GGUF --out DIR/held-out --held-out
       python -m training.head --model GGUF --texts DIR/texts --held-out DIR/held-out --out DIR
       python -m training.head.acceptance --model GGUF --head DIR/head.gguf --texts DIR/held-out

The first two commands write texts with the target, the third trains, the last measures. The third writes
DIR/head.pt, weights from which the same command continues, and DIR/head.gguf, both again every few minutes;
texts may be added before it is repeated, and after its minutes it only writes the file. While the file
--pause exists, it rests. Needs torch (pip install ".[train]"). Takes an hour for the texts and another for
the training on two CPU cores.
"""

from __future__ import annotations

from pathlib import Path

from scripts import cli
from training.needed import need_packages


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--model", type=Path, required=True, metavar="GGUF", help="the target")
    p.add_argument("--texts", type=Path, required=True, metavar="DIR", help="of `write`")
    p.add_argument("--held-out", type=Path, metavar="DIR", help="texts of `write` to measure")
    p.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the head")
    p.add_argument("--minutes", type=float, default=60.0, metavar="M", help="length of the training")
    p.add_argument("--processes", type=cli.whole(1), default=2, metavar="N", help="processes")
    p.add_argument("--rank", type=cli.whole(0), metavar="I", help="start the one process I of them here")
    p.add_argument("--threads", type=cli.threads, default=1, metavar="N", help="threads of a process")
    p.add_argument("--port", type=cli.whole(1), default=29531, metavar="N", help="for the processes")
    p.add_argument("--rows", type=cli.whole(1), default=800, metavar="N", help="of a batch and process")
    p.add_argument("--steps", type=cli.whole(1), default=3, metavar="N", help="unrolled draft steps")
    p.add_argument("--single", type=float, default=0.4, metavar="X", help="share of the time with one step")
    p.add_argument("--first-choice", type=float, default=0.5, metavar="X", help="its weight in the loss")
    p.add_argument(
        "--others",
        type=cli.whole(0),
        default=512,
        metavar="N",
        help="random tokens in the loss in addition to the batch's candidates; 0 for all tokens",
    )
    p.add_argument("--layers", type=cli.whole_list(0), default=[2, 22, 29], metavar="L", help="of features")
    p.add_argument("--draft-tokens", type=cli.whole(8), default=8192, metavar="N", help="it can draft")
    p.add_argument("--ff", type=cli.whole(32), default=1536, metavar="N", help="feed-forward size")
    p.add_argument("--kv-heads", type=cli.whole(1), default=9, metavar="N", help="heads of keys and values")
    p.add_argument("--block", action="store_true", help="start from the target's last block")
    p.add_argument("--dropout", type=float, default=0.1, metavar="X", help="in training")
    p.add_argument("--rate", type=float, default=1e-3, metavar="X", help="learning rate")
    p.add_argument("--decay", type=float, default=0.4, metavar="X", help="share of the time it falls in")
    p.add_argument("--type", choices=("f16", "q8_0", "q5_0", "q4_0"), default="q4_0", help="of the matrices")
    p.add_argument("--save-minutes", type=float, default=5.0, metavar="M", help="between checkpoints")
    p.add_argument("--pause", type=Path, metavar="FILE", help="rest while this file exists")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    need_packages()
    from training.head import train

    train.run(a)


if __name__ == "__main__":
    cli.run(main, OSError)
