"""Makes targets that are as slow as large ones, and heads for them, for measurements.

usage: python -m scripts.bench.make_heads --out DIR --kind eagle3 [--target GGUF --head GGUF]
       python -m scripts.bench.make_heads --out DIR --kind mtp [--target GGUF]

eagle3: the demo model and its EAGLE-3 head. mtp: the embedded target as architecture `mimo2`, and an MTP head
fitted by least squares (scripts/demo_pair/mtp_head.py) in a file of its own. Extra blocks with zero output
projections keep the target's logits and hidden states and take as much time as real blocks; the target is
written in every type. For each type and each of --costs the head's feed-forward layer is widened, with zero
output projections too, until the file has that share of the target's bytes: decodes of one row are bound by
memory, so this is about the share of t(1) that a step takes. DIR holds bench-target-TYPE.gguf and
bench-draft-TYPE-cCOST.gguf, the names that scripts.bench.peers expects. Needs no torch.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from scripts import cli
from scripts.bench.make_pair import DATA, TYPES, costs, count, types
from scripts.demo_pair import mtp_head
from scripts.demo_pair.corpus import documents
from scripts.demo_pair.llm import ModelFileError, quantize, start_llama
from scripts.demo_pair.mimo2 import mimo2_of
from scripts.demo_pair.padding import NotPaddable, Padding, read_source, write_padded
from specllama.errors import SpecllamaError
from specllama.models.demo import DemoStore

EAGLE3 = DATA / "smollm2-eagle3.gguf"
STEP = 32  # feed-forward sizes are multiples of this: the block of a quantised row
K_STEP = 256  # the same for K-quants
N_TOKENS = 150_000  # that an MTP head is fitted to


def padded(source: Path, out: Path, n_params: int) -> Path:
    """The target in f16 with extra blocks of its own size."""
    found = read_source(source)
    ff = found.value("feed_forward_length")
    n = max(0, round((n_params - found.n_params) / found.block_params(ff)))
    write_padded(found, out, Padding(n, ff))
    print(f"{out.name}: {n} extra blocks", flush=True)
    return out


def widest(n_bytes: int, write: Callable[[int], int], n_ff: int, step: int) -> int:
    """The feed-forward size, at least `n_ff`, with which the head has about `n_bytes`; write: writes the head
    of a size and returns its bytes.
    """
    least = write(n_ff)
    each = (write(n_ff + step) - least) / step
    return n_ff + max(0, round((n_bytes - least) / each / step)) * step


def write_eagle3(source: Path, out: Path, n_ff: int) -> int:
    """The EAGLE-3 head with a feed-forward size of `n_ff`; its bytes. Quantised tensors keep their types."""
    reader = gguf.GGUFReader(str(source))
    arch = "eagle3"
    writer = gguf.GGUFWriter(str(out), arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = n_ff if name == f"{arch}.feed_forward_length" else field.contents()
        writer.add_key_value(name, value, kind, sub)
    rng = np.random.default_rng(0)
    for t in reader.tensors:
        data: NDArray[np.generic] = np.asarray(t.data)
        role = t.name.removesuffix(".weight").rpartition(".")[2]
        if role in ("ffn_gate", "ffn_up") and n_ff > len(data):
            noise = rng.standard_normal((n_ff - len(data), int(t.shape[0])), np.float32) * np.float32(0.02)
            data = np.concatenate((data, gguf.quants.quantize(noise, t.tensor_type)))
        elif role == "ffn_down" and n_ff > int(t.shape[0]):
            zeros = np.zeros((len(data), n_ff - int(t.shape[0])), np.float32)
            data = np.concatenate((data, gguf.quants.quantize(zeros, t.tensor_type)), 1)
        writer.add_tensor(t.name, data, raw_dtype=t.tensor_type)
    _write(writer)
    return out.stat().st_size


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(a: argparse.Namespace) -> None:
    a.out.mkdir(parents=True, exist_ok=True)
    scratch = a.out / "tmp"
    scratch.mkdir(exist_ok=True)
    try:
        f16 = padded(a.target, scratch / "target.gguf", a.target_params)
        head: dict[str, NDArray[np.float32]] = {}
        if a.kind == "mtp":
            plain = scratch / "plain.gguf"
            write_padded(read_source(a.target), plain, None)
            head = mtp_head.fit(plain, documents(), N_TOKENS, K_STEP * 5)
            trunk = mimo2_of(f16, scratch / "trunk.gguf", part="trunk")
        for kind in a.types:
            target = a.out / f"bench-target-{kind}.gguf"
            quantize(trunk if head else f16, target, kind, n_threads=a.threads)
            for cost in a.costs:
                out = a.out / f"bench-draft-{kind}-c{cost:g}.gguf"

                def write(n_ff: int, kind: str = kind, out: Path = out) -> int:
                    if not head:
                        return write_eagle3(a.head, out, n_ff)
                    one = mimo2_of(f16, scratch / "head.gguf", head=mtp_head.widened(head, n_ff), part="head")
                    quantize(one, out, kind, n_threads=a.threads)
                    return out.stat().st_size

                n_ff = len(head["ffn_gate"]) if head else eagle3_ff(a.head)
                wanted = round(cost * target.stat().st_size)
                write(n_ff := widest(wanted, write, n_ff, K_STEP if head else STEP))
                share = out.stat().st_size / target.stat().st_size
                print(f"{kind:9} cost {cost:g}: {share:.3f} of the bytes, feed-forward {n_ff}", flush=True)
    finally:
        shutil.rmtree(scratch)


def eagle3_ff(path: Path) -> int:
    """The feed-forward size of an EAGLE-3 head."""
    return int(gguf.GGUFReader(str(path)).fields["eagle3.feed_forward_length"].contents())


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the files")
    p.add_argument("--kind", choices=("eagle3", "mtp"), required=True)
    p.add_argument("--target", type=Path, metavar="GGUF", help="llama model; default: demo, embedded target")
    p.add_argument("--head", type=Path, default=EAGLE3, metavar="GGUF", help="EAGLE-3 head of the target")
    p.add_argument("--target-params", type=count, default="600M", metavar="N", help="of the padded target")
    p.add_argument("--types", type=types, default=",".join(TYPES), metavar="T,T", help="types of the weights")
    p.add_argument("--costs", type=costs, default="0.05,0.15", metavar="C,C", help="bytes, of the target's")
    p.add_argument("--threads", type=cli.whole(1), default=2, metavar="N", help="of the quantisation")
    a = p.parse_args()
    if a.target is None:
        a.target = DATA / "pydoc-target.gguf" if a.kind == "mtp" else DemoStore().require()
    for path in (a.target, a.head):
        cli.gguf_file(path)
    start_llama()
    make(a)


if __name__ == "__main__":
    cli.run(main, ModelFileError, NotPaddable, OSError, SpecllamaError, ValueError)
