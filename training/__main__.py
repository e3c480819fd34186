"""Trains the embedded pair on the standard library of the running Python: target, then draft.

usage: python -m training --out DIR
       python -m training.make_data DIR/target-f16.gguf DIR/draft-f16.gguf    # into specllama/data/

Writes DIR/target-f16.gguf (13 M parameters) and DIR/draft-f16.gguf (2 M). The same command continues after an
interruption; DIR/work holds corpus, tokenizer and checkpoints, and can be removed afterwards. Needs torch and
tokenizers (pip install ".[train]"). Takes minutes on a GPU, some hours on two CPU cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from scripts import cli
from training.needed import need_packages


def choose_device(name: str) -> str:
    """The torch device; `auto` is CUDA if there is one. Raises BadInput."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise cli.BadInput("--device cuda: torch finds no CUDA device here")
    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def check_settings(folder: Path, n_vocab: int) -> None:
    """Raises BadInput if the work was started with another vocabulary or another Python."""
    current = {"n_vocab": n_vocab, "python": "{}.{}".format(*sys.version_info)}
    path = folder / "settings.json"
    if path.exists() and (earlier := json.loads(path.read_text())) != current:
        raise cli.BadInput(
            f"{folder} was started with {earlier}, this is {current}; remove it or choose another --out"
        )
    path.write_text(json.dumps(current))


def train(a: argparse.Namespace) -> None:
    """Make corpus and tokenizer, train, export; parts that are finished are read from DIR/work."""
    import numpy as np
    import torch
    from tokenizers import Tokenizer

    from training import corpus, export
    from training import train as stages

    device = choose_device(a.device)
    torch.set_num_threads(a.threads)
    work: Path = a.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    check_settings(work, a.vocab)
    tokenizer_path, stream_path = work / "tokenizer.json", work / "tokens.npy"
    if not stream_path.exists():
        docs = corpus.documents()
        print(f"corpus: {len(docs)} documents, {sum(map(len, docs)) / 1e6:.1f} M characters", flush=True)
        stages.train_tokenizer(docs, a.vocab).save(str(tokenizer_path))
        np.save(stream_path, stages.encode(docs, Tokenizer.from_file(str(tokenizer_path))))
    tokenizer, stream = Tokenizer.from_file(str(tokenizer_path)), np.load(stream_path)
    print(f"{len(stream) / 1e6:.1f} M tokens of a vocabulary of {tokenizer.get_vocab_size()}", flush=True)
    settings = stages.Settings(
        steps_target=a.steps_target,
        steps_draft=a.steps_draft,
        copy_minutes=a.copy_minutes,
        batch=a.batch,
        n_ctx=a.ctx,
        device=device,
        compile=device == "cuda" or shutil.which("g++") is not None,
    )
    models = stages.train_pair(stream, tokenizer.get_vocab_size(), work, settings)
    for name, model in zip(("target", "draft"), models, strict=True):
        path = a.out / f"{name}-f16.gguf"
        export.write_gguf(model, tokenizer, f"pydoc-{name}", path)
        print(path)


def minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < 1e5:
        raise argparse.ArgumentTypeError(f"{text} is out of range")
    return value


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for models and work")
    p.add_argument(
        "--steps-target", type=cli.whole(1), default=9000, metavar="N", help="steps of text, target"
    )
    p.add_argument("--steps-draft", type=cli.whole(1), default=4000, metavar="N", help="steps of text, draft")
    p.add_argument(
        "--copy-minutes",
        type=minutes,
        default=15.0,
        metavar="M",
        help="minutes of training to copy for the draft; a fifth of them for the target",
    )
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to train")
    p.add_argument("--batch", type=cli.whole(1), default=6, metavar="N", help="rows of a batch")
    p.add_argument("--ctx", type=cli.whole(16), default=512, metavar="N", help="tokens of a row")
    p.add_argument("--vocab", type=cli.whole(300), default=4096, metavar="N", help="tokens of the vocabulary")
    p.add_argument("--threads", type=cli.threads, metavar="N", help="threads on the CPU")
    a = p.parse_args()
    if a.vocab > 65_536:
        p.error(f"argument --vocab: {a.vocab} is more than 65536")
    need_packages()
    train(a)


if __name__ == "__main__":
    cli.run(main, OSError)
