"""Makes pairs of models that are as slow as large ones, for measurements, from a small pair.

usage: python -m scripts.bench.make_pair --out DIR
       python -m scripts.bench.make_pair --out DIR --types q4_0 --draft-costs 0.07
       python -m scripts.bench.make_pair --out DIR --random-vocab 128256

Extra blocks with zero output projections keep every logit of the source (checked bit for bit in f16) and
take as much time as real blocks of their size. The target is padded to --target-params and written in every
type; for each type and each of --draft-costs the draft is padded until one of its decodes takes that share of
the target's t(1) on this machine. With --experts the target's extra blocks are mixtures of experts, of which
a token takes --used. DIR/pairs.json lists the pairs with their measurements, each as soon as it is made.
Needs no torch.

--random-vocab N writes random-Nk.gguf and random-Nk-draft.gguf instead: random weights and N tokens in the
vocabulary, for measurements of time and memory outside the model. It goes without the other options.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scripts import cli
from scripts.bench import random_vocab
from scripts.bench.llm import FTYPES, Llm, ModelFileError, measure, quantize, start_llama
from scripts.bench.padding import NotPaddable, Padding, Source, read_source, write_padded

DATA = Path(__file__).resolve().parents[2] / "specllama" / "data"
TYPES = ("f16", "q8_0", "q4_0", "q4_k_m")
COSTS = (0.02, 0.07, 0.15)
TARGET_BLOCKS = 24
DRAFT_BLOCKS, DRAFT_FF = 16, 2048  # most extra blocks of the draft, of about this feed-forward size or more
TOLERANCE = 0.05  # of a draft's cost
MAX_TRIES = 5  # sizes tried for a draft
TEXT = "import json\n\ndef load(path):\n    with open(path) as f:\n        return json.load(f)\n" * 6
MANIFEST = "pairs.json"


class DraftTiming(NamedTuple):
    """A padded draft: its padding, its t(1) and the target's at the same time, in milliseconds."""

    padding: Padding
    t1: float
    t1_target: float

    @property
    def ratio(self) -> float:
        return self.t1 / self.t1_target


def check_same_logits(source: Path, padded: Path) -> None:
    """Raises ModelFileError unless both files give equal logits, bit for bit, in one batch and one by one."""
    with Llm(source, n_threads=1) as a, Llm(padded, n_threads=1) as b:
        ids = a.tokenize(TEXT)
        off = [np.abs(a.decode(ids) - b.decode(ids)).max()]
        a.truncate(0)
        b.truncate(0)
        for token in ids[:32]:
            off.append(np.abs(a.decode([token]) - b.decode([token])).max())
        if not np.max(off) == 0:  # also true for NaN
            raise ModelFileError(f"{padded}: logits differ from the source's by up to {np.max(off)}")


class Maker:
    """Writes the models of a run into `out`; intermediate f16 files go to a temporary folder in it."""

    def __init__(self, out: Path, target: Source, draft: Source, n_threads: int, rounds: int) -> None:
        self.out, self.n_threads, self.rounds = out, n_threads, rounds
        self.target, self.draft = target, draft
        self._folder = tempfile.TemporaryDirectory(prefix="tmp-", dir=out)
        self.tmp = Path(self._folder.name)
        self.candidate = self.tmp / "candidate.gguf"

    def padded(self, name: str, source: Source, padding: Padding) -> Path:
        """The padded file in f16, its logits checked against the source's."""
        plain, path = self.tmp / f"{name}.gguf", self.tmp / f"{name}-{padding.n_blocks}x{padding.ff}.gguf"
        if not plain.exists():
            write_padded(source, plain, None)
        write_padded(source, path, padding)
        check_same_logits(plain, path)
        return path

    def make_targets(self, a: argparse.Namespace) -> dict[str, Path]:
        """The target in every type."""
        n_extra = a.target_params - self.target.n_params
        padding = self.target.fit(n_extra, a.target_blocks, a.experts, a.used if a.experts else 0)
        of = f" of {a.experts} experts" if a.experts else ""
        if not padding.n_blocks:
            raise NotPaddable(
                f"{a.target_params} parameters are too few for an extra block{of}: the source has "
                f"{self.target.n_params}"
            )
        f16 = self.padded("target", self.target, padding)
        blocks = f"{padding.n_blocks} extra blocks{of}, feed-forward {padding.ff}"
        if padding.n_blocks < a.target_blocks:
            blocks += f" ({a.target_blocks} blocks would need more --target-params)"
        print(f"target in f16: {blocks}; logits equal the source's bit for bit", flush=True)
        paths = {kind: self.out / f"bench-target-{kind}.gguf" for kind in a.types}
        for kind, path in paths.items():
            quantize(f16, path, kind, n_threads=self.n_threads)
        return paths

    def try_draft(self, target: Llm, kind: str, padding: Padding) -> DraftTiming:
        """Writes the draft with this padding to `candidate` and times it in turns with the target."""
        f16 = self.padded("draft", self.draft, padding)
        quantize(f16, self.candidate, kind, n_threads=self.n_threads)
        f16.unlink()
        with Llm(self.candidate, n_threads=self.n_threads) as draft:
            times = measure({"target": target, "draft": draft}, [1], rounds=self.rounds)
        return DraftTiming(padding, times["draft"][1], times["target"][1])

    def fit_draft(self, target: Llm, kind: str, cost: float, path: Path, floor: DraftTiming) -> DraftTiming:
        """Writes the draft whose t(1) is `cost` of the target's to `path`, and returns its timing.

        Time grows nearly linearly with the parameters, from that of the unpadded draft (`floor`). The first
        size is estimated from the target's speed, each further one from the line through the floor and the
        last size.
        """
        best, per_param = None, floor.t1_target / target.n_params
        for _ in range(MAX_TRIES):
            n_extra = max(0.0, (cost * floor.t1_target - floor.t1) / per_param)
            n_blocks = min(DRAFT_BLOCKS, round(n_extra / self.draft.block_params(DRAFT_FF)))
            tried = self.try_draft(target, kind, self.draft.fit(n_extra, n_blocks))
            if best is None or abs(tried.ratio - cost) < abs(best.ratio - cost):
                best = tried
                self.candidate.replace(path)
            if abs(tried.ratio - cost) <= TOLERANCE * cost or not tried.padding.n_blocks:
                break
            n_extra = tried.padding.n_blocks * self.draft.block_params(tried.padding.ff)
            per_param = max(tried.ratio * floor.t1_target - floor.t1, 0.05 * floor.t1) / n_extra
        assert best is not None
        return best

    def close(self) -> None:
        self._folder.cleanup()


def model_entry(path: Path, llm: Llm, t1: float) -> dict[str, object]:
    return {
        "file": path.name,
        "n_params": llm.n_params,
        "n_bytes": path.stat().st_size,
        "t1_ms": round(t1, 4),
    }


def print_pair(kind: str, cost: float, m: DraftTiming) -> None:
    extra = (
        f"{m.padding.n_blocks} x {m.padding.ff}" if m.padding.n_blocks else "unpadded, which is the cheapest"
    )
    print(
        f"{kind:9} cost {cost:g}: reached {m.ratio:.3f}, "
        f"t(1) {m.t1:.2f} of {m.t1_target:.2f} ms, draft {extra}",
        flush=True,
    )


def make_pairs(a: argparse.Namespace) -> None:
    """Writes targets, drafts and the manifest, and prints a line for each pair."""
    maker = Maker(a.out, read_source(a.target), read_source(a.draft), a.threads, a.rounds)
    pairs = list[dict[str, object]]()
    try:
        for kind, path in maker.make_targets(a).items():
            with ExitStack() as stack:
                target = stack.enter_context(Llm(path, n_threads=a.threads))
                floor = maker.try_draft(target, kind, Padding(0, 0))
                for cost in a.draft_costs:
                    draft_path = a.out / f"bench-draft-{kind}-c{cost:g}.gguf"
                    measured = maker.fit_draft(target, kind, cost, draft_path, floor)
                    with Llm(draft_path, n_threads=a.threads, n_ctx=64) as draft:
                        draft_entry = model_entry(draft_path, draft, measured.t1)
                    pairs.append(
                        {
                            "type": kind,
                            "cost": cost,
                            "ratio": round(measured.ratio, 4),
                            "target": model_entry(path, target, measured.t1_target),
                            "draft": draft_entry | asdict(measured.padding),
                        }
                    )
                    write_manifest(a, pairs)
                    print_pair(kind, cost, measured)
    finally:
        maker.close()
    print(a.out / MANIFEST)


def write_manifest(a: argparse.Namespace, pairs: list[dict[str, object]]) -> None:
    """Write the pairs so far, whole or not at all."""
    manifest = {"n_threads": a.threads, "rounds": a.rounds, "pairs": pairs}
    new = a.out / f"{MANIFEST}.tmp"
    new.write_text(json.dumps(manifest, indent=2) + "\n")
    new.replace(a.out / MANIFEST)


def make_random(out: Path, n_vocab: int) -> None:
    """Writes the random pair and describes it."""
    name = f"random-{n_vocab // 1000}k"
    paths = out / f"{name}.gguf", out / f"{name}-draft.gguf"
    random_vocab.write_pair(*paths, n_vocab)
    with Llm(paths[0], n_threads=1) as target, Llm(paths[1], n_threads=1) as draft:
        ids = target.tokenize("<|im_start|>user\nthe answer<|im_end|>\n")
        ids += target.greedy(ids, 100)
        same = (target.choices(ids) == draft.choices(ids)).mean()
        for path, llm in zip(paths, (target, draft), strict=True):
            size = path.stat().st_size / 1e6
            print(f"{path}: {llm.n_vocab} tokens, {llm.n_params / 1e6:.1f} M parameters, {size:.0f} MB")
        print(f"draft = target in {same:.2f}")


def count(text: str) -> int:
    """A number of parameters: 600M, 0.6B or plain."""
    scale = {"K": 1e3, "M": 1e6, "B": 1e9}.get(text[-1:].upper(), 1)
    try:
        value = float(text if scale == 1 else text[:-1]) * scale
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 600M") from None
    if not 0 < value < 1e12:
        raise argparse.ArgumentTypeError(f"{text} is out of range")
    return round(value)


def types(text: str) -> list[str]:
    """A comma-separated list of types."""
    out = text.lower().split(",")
    for kind in out:
        if kind not in FTYPES:
            raise argparse.ArgumentTypeError(f"unknown type {kind!r}; possible are {', '.join(FTYPES)}")
    return out


def costs(text: str) -> list[float]:
    """A comma-separated list of shares of t(1)."""
    try:
        out = [float(c) for c in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 0.02,0.07") from None
    if not all(0 < c <= 1 for c in out):
        raise argparse.ArgumentTypeError(f"{text}: each must be over 0 and at most 1")
    return out


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--out", type=cli.folder, required=True, metavar="DIR", help="folder for the files")
    p.add_argument(
        "--target", type=Path, default=DATA / "pydoc-target.gguf", metavar="GGUF", help="llama model"
    )
    p.add_argument("--draft", type=Path, default=DATA / "pydoc-draft.gguf", metavar="GGUF", help="its draft")
    p.add_argument(
        "--target-params", type=count, default="600M", metavar="N", help="parameters of the target"
    )
    p.add_argument(
        "--target-blocks",
        type=cli.whole(1),
        default=TARGET_BLOCKS,
        metavar="N",
        help="extra blocks of the target",
    )
    p.add_argument(
        "--experts", type=cli.whole(0), default=0, metavar="N", help="of each extra block of the target"
    )
    p.add_argument("--used", type=cli.whole(1), metavar="N", help="experts that a token takes, 8 by default")
    p.add_argument(
        "--types", type=types, default=",".join(TYPES), metavar="T,T", help=f"of {', '.join(FTYPES)}"
    )
    p.add_argument(
        "--draft-costs",
        type=costs,
        default=",".join(map(str, COSTS)),
        metavar="C,C",
        help="t(1) of the drafts, as shares of the target's",
    )
    p.add_argument("--rounds", type=cli.whole(3), default=15, metavar="N", help="rounds of a measurement")
    p.add_argument("--threads", type=cli.threads, metavar="N", help="threads of llama.cpp")
    p.add_argument(
        "--random-vocab",
        type=cli.whole(random_vocab.MIN_VOCAB, 1 << 20),
        metavar="N",
        help="the random pair instead",
    )
    a = p.parse_args()
    if a.random_vocab:
        plain = vars(p.parse_args(["--out", str(a.out), "--random-vocab", str(a.random_vocab)]))
        for name, value in vars(a).items():
            if value != plain[name]:
                p.error(f"--random-vocab goes without --{name.replace('_', '-')}")
    if a.used and not a.experts:
        p.error("--used needs --experts")
    a.used = a.used or 8
    if a.used > a.experts > 0:
        p.error(f"--used {a.used} is more than --experts {a.experts}")
    a.out.mkdir(parents=True, exist_ok=True)
    start_llama()
    if a.random_vocab:
        make_random(a.out, a.random_vocab)
        return
    cli.gguf_file(a.target)
    cli.gguf_file(a.draft)
    make_pairs(a)


if __name__ == "__main__":
    cli.run(main, ModelFileError, NotPaddable, OSError)
