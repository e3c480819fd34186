"""Make specllama/data/ from two f16 GGUFs: quantise target and draft with llama.cpp and write the model card.

usage: python -m training.make_data TARGET_F16 DRAFT_F16
       python -m training.make_data TARGET_F16 DRAFT_F16 --measure    # costs of each type; writes
       nothing

This one command replaces the embedded pair by a better-trained one. The default types are the fastest by
--measure: for the target, of those that choose as f16 does in 99 of 100 tokens; for the draft, of those that
agree with the target as often as the f16 draft does.
"""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import gguf

from scripts import cli
from scripts.bench.llm import FTYPES, Llm, ModelFileError, measure, quantize, start_llama
from training import agreement

DATA = Path(__file__).resolve().parents[2] / "specllama" / "data"
TARGET, DRAFT, CARD = "pydoc-target.gguf", "pydoc-draft.gguf", "CARD.md"
MEASURED = ("f16", "q8_0", "q4_0", "q4_0_pure")
WIDTHS = (1, 4, 8)
MAX_BYTES = 25_000_000  # limit of the whole wheel; f16 exceeds it

HEAD_SECTION = "\n# The SmolLM2 head\n"
INIT = '"""The embedded pair, two GGUF files; CARD.md says what they are."""\n'
CARD_TEXT = """\
# The pydoc pair

Two very small language models that come with specllama, so that speculative decoding can be tried and
measured without a download. They know a little about the Python standard library: what a function does,
short sources; they rename variables in code, turn text into JSON and repeat what they are given.

| | target | draft |
|---|---|---|
| file | `{target.name}` | `{draft.name}` |
| parameters | {target.n_params:.1f} M | {draft.n_params:.1f} M |
| shape | {target.shape} | {draft.shape} |
| weights | {target.kind} | {draft.kind} |
| size | {target.megabytes:.1f} MB | {draft.megabytes:.1f} MB |
| same greedy token as its f16 file | {target.as_f16:.1%} | {draft.as_f16:.1%} |

One vocabulary of {n_vocab} byte-level BPE tokens, ChatML template, end of turn `<|im_end|>`, context
{n_ctx} tokens (trained on 512).

## Where draft and target agree

Share of tokens for which both choose the same, over {n_tokens} tokens that the f16 target wrote greedily:

| {kinds} |
|{rules}|
| {shares} |

## Training text and licence

Trained on the sources and docstrings of the Python standard library, which are under the PSF License 2.0
(copyright Python Software Foundation); the weights have the same licence (PSF-2.0). The people in the JSON
tasks are invented from word lists. `python -m training` reproduces the training.

## Limits

- Far too small for facts: explanations sound right but often are not, and sources are recalled in part.
- English only, one turn at a time, prompts worded as in training. The pair is for trying specllama and for
  measuring speed; its answers say nothing about those of real models.
- Up to some hundred tokens JSON and repeat tasks are nearly always right, and renames mostly.

## Checksums (SHA-256)

| file | |
|---|---|
| `{target.name}` | `{target.sha256}` |
| `{draft.name}` | `{draft.sha256}` |
| target in f16 | `{target.source_sha256}` |
| draft in f16 | `{draft.source_sha256}` |

Made by `python -m training.make_data --target-type {target.kind} --draft-type {draft.kind}`; its
`--measure` measures the types on your machine.
"""


class Entry(NamedTuple):
    """One model's column of the card. n_params in millions, megabytes of 10^6 bytes, as_f16 a share."""

    name: str
    n_params: float
    shape: str
    kind: str
    megabytes: float
    as_f16: float
    sha256: str
    source_sha256: str


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def shape(path: Path) -> str:
    """Width, blocks, heads and feed-forward size in words."""
    fields = gguf.GGUFReader(path).fields

    def value(key: str) -> int:
        return int(fields[f"llama.{key}"].contents())

    try:
        return (
            f"{value('embedding_length')} wide, {value('block_count')} blocks, "
            f"{value('attention.head_count')} heads ({value('attention.head_count_kv')} of keys and values), "
            f"feed-forward {value('feed_forward_length')}"
        )
    except KeyError as e:
        raise cli.BadInput(f"{path}: not a model of architecture llama (no {e})") from None


def head_section(card: Path) -> str:
    """What an earlier card says about the SmolLM2 head, which is not made here; "" if nothing."""
    found = card.read_text() if card.exists() else ""
    at = found.find(HEAD_SECTION)
    return found[at:] if at >= 0 else ""


def is_f16(path: Path) -> bool:
    return all(t.tensor_type.name in ("F16", "F32") for t in gguf.GGUFReader(path).tensors)


def write_data(sources: tuple[Path, Path], kinds: tuple[str, str], out: Path, n_threads: int) -> None:
    """Quantise both into `out`, compare them with their sources, write the card. Nothing if too large."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as tmp, ExitStack() as stack:
        files = Path(tmp) / TARGET, Path(tmp) / DRAFT
        for source, file, kind in zip(sources, files, kinds, strict=True):
            quantize(source, file, kind, n_threads=n_threads)
        n_bytes = sum(f.stat().st_size for f in files)
        if n_bytes > MAX_BYTES:
            raise cli.BadInput(
                f"{n_bytes / 1e6:.1f} MB together, more than {MAX_BYTES / 1e6:.0f} MB: choose other types"
            )
        f16 = [stack.enter_context(Llm(p, n_threads=1)) for p in sources]
        made = [stack.enter_context(Llm(p, n_threads=1)) for p in files]
        if made[0].n_vocab != made[1].n_vocab:
            raise cli.BadInput(
                f"vocabularies differ: target {made[0].n_vocab} tokens, draft {made[1].n_vocab}"
            )
        if made[0].n_params <= made[1].n_params:
            raise cli.BadInput("the draft is not smaller than the target; give TARGET_F16 first")
        texts = agreement.write_texts(f16[0])
        chosen = [agreement.choices(m, texts) for m in made]
        entries = [
            Entry(
                file.name,
                made[i].n_params / 1e6,
                shape(source),
                kind,
                file.stat().st_size / 1e6,
                agreement.agreement(chosen[i], agreement.choices(f16[i], texts)),
                sha256(file),
                sha256(source),
            )
            for i, (source, file, kind) in enumerate(zip(sources, files, kinds, strict=True))
        ]
        shares = agreement.by_kind(texts, *chosen)
        card = CARD_TEXT.format(
            target=entries[0],
            draft=entries[1],
            n_vocab=f"{made[0].n_vocab:,}",
            n_ctx=f"{int(gguf.GGUFReader(sources[0]).fields['llama.context_length'].contents()):,}",
            n_tokens=sum(len(c) for c in chosen[0]),
            kinds=" | ".join(shares),
            rules="---|" * (len(shares) - 1) + "---",
            shares=" | ".join(f"{s:.2f}" for s in shares.values()),
        )
        for file in files:
            file.replace(out / file.name)
    (out / CARD).write_text(card + head_section(out / CARD))
    if not (out / "__init__.py").exists():
        (out / "__init__.py").write_text(INIT)
    for e in entries:
        print(f"{out / e.name}: {e.kind}, {e.megabytes:.1f} MB, as f16 in {e.as_f16:.1%} of the tokens")
    print(f"{out / CARD}: draft = target in " + ", ".join(f"{k} {s:.2f}" for k, s in shares.items()))


def print_measurements(sources: tuple[Path, Path], rounds: int, n_threads: int) -> None:
    """Size, t(n) and agreement of every type of target and draft, all loaded at once and timed in turns."""
    names = [(who, kind) for who in ("target", "draft") for kind in MEASURED]
    with tempfile.TemporaryDirectory() as tmp, ExitStack() as stack:
        llms, sizes = {}, {}
        for who, kind in names:
            file = Path(tmp) / f"{who}-{kind}.gguf"
            quantize(sources[who == "draft"], file, kind, n_threads=n_threads)
            sizes[who, kind] = file.stat().st_size / 1e6
            llms[f"{who}-{kind}"] = stack.enter_context(Llm(file, n_threads=1))
        texts = agreement.write_texts(llms["target-f16"])
        chosen = {name: agreement.choices(llm, texts) for name, llm in llms.items()}
        for llm in llms.values():
            llm.set_threads(n_threads)
        times = measure(llms, WIDTHS, rounds=rounds)
    print(f"{n_threads} threads, medians of {rounds} rounds, {sum(map(len, chosen['target-f16']))} tokens")
    heads = [f"t({n}) ms" for n in WIDTHS]
    print(
        f"{'':17}{'MB':>6}",
        *(f"{h:>9}" for h in heads),
        f"{'= f16':>8}",
        "   = target of " + ", ".join(MEASURED),
    )
    for who, kind in names:
        mine = chosen[f"{who}-{kind}"]
        shares = [agreement.agreement(mine, chosen[f"target-{k}"]) for k in MEASURED]
        print(
            f"{who:7}{kind:10}{sizes[who, kind]:6.1f}",
            *(f"{times[f'{who}-{kind}'][n]:9.3f}" for n in WIDTHS),
            f"{agreement.agreement(mine, chosen[f'{who}-f16']):8.2%}",
            "  ",
            *(f"{s:.2%}" for s in shares if who == "draft"),
        )


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("target", type=Path, metavar="TARGET_F16", help="target model, GGUF in f16")
    p.add_argument(
        "draft", type=Path, metavar="DRAFT_F16", help="draft model, GGUF in f16, the same vocabulary"
    )
    p.add_argument("--target-type", choices=FTYPES, default="q4_0", help="type of the target's weights")
    p.add_argument("--draft-type", choices=FTYPES, default="q4_0_pure", help="type of the draft's weights")
    p.add_argument("--out", type=Path, default=DATA, metavar="DIR", help="folder that the files go to")
    p.add_argument(
        "--measure", action="store_true", help="print size, t(n) and agreement of each type instead"
    )
    p.add_argument("--rounds", type=cli.whole(1), default=40, metavar="N", help="rounds of --measure")
    p.add_argument("--threads", type=cli.threads, metavar="N", help="threads of llama.cpp")
    a = p.parse_args()
    sources = cli.gguf_file(a.target), cli.gguf_file(a.draft)
    for path in sources:
        if not is_f16(path):
            raise cli.BadInput(
                f"{path}: its weights are not f16; quantised ones cannot be quantised well again"
            )
    start_llama()
    if a.measure:
        print_measurements(sources, a.rounds, a.threads)
    else:
        write_data(sources, (a.target_type, a.draft_type), a.out, a.threads)


if __name__ == "__main__":
    cli.run(main, ModelFileError)
