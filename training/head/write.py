"""Texts that the quantised target writes for the training prompts, with its layer inputs.

usage: python -m training.head.write --model GGUF --out DIR [--worker I --workers N] [--held-out]

Half of the answers are greedy, half are sampled at temperature 0.8. Several workers of one thread each are
faster than one of several threads where other programs run. Each appends to a shard of its own, DIR/I.*, and
the same command continues an interrupted one. While the file --pause exists, the work rests.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scripts import cli
from scripts.bench.llm import ModelFileError
from training.head import prompts, shards
from training.head.context import StreamContext

LAYERS = (2, 15, 22, 29)  # whose inputs are kept; the head uses three of them
TEMPERATURES = (0.0, 0.8)
BELOW_BEST = 8.0  # candidates: tokens whose logits are at most this far below the best
LOOP, LOOP_CHECK = (
    48,
    16,
)  # an answer ends when its last LOOP tokens repeat the ones before, checked this often
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class Job(NamedTuple):
    """A prompt to answer. key: of prompt and temperature."""

    key: str
    prompt: prompts.Prompt
    temperature: float


@dataclass
class Slot:
    """A sequence that is being written; rows: of each decode, layer inputs and most probable tokens."""

    job: Job
    tokens: list[int]
    n_prompt: int
    features: list[NDArray[np.float16]] = field(default_factory=list)
    top: list[NDArray[np.void]] = field(default_factory=list)


def render(prompt: prompts.Prompt) -> str:
    """The prompt in SmolLM2's chat template, up to where the answer begins."""
    if prompt.messages[0][0] == "":
        return prompt.messages[0][1]
    first = () if prompt.messages[0][0] == "system" else (("system", SYSTEM),)
    turns = (f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in (*first, *prompt.messages))
    return "".join(turns) + "<|im_start|>assistant\n"


def best(logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ids and logits of the candidates of one row, the best first."""
    found = np.flatnonzero(logits > logits.max() - BELOW_BEST)
    order = np.argsort(-logits[found], kind="stable")
    return found[order], logits[found[order]]


def top_row(ids: NDArray[np.int64], logits: NDArray[np.float32]) -> NDArray[np.void]:
    """The first N_TOP candidates, relative to the best; missing ones have a logit of minus infinity."""
    row = np.zeros(1, shards.TOP)
    row["logit"] = -np.inf
    n = min(len(ids), shards.N_TOP)
    row["id"][0, :n], row["logit"][0, :n] = ids[:n], logits[:n] - logits[0]
    return row


def choose(
    ids: NDArray[np.int64], logits: NDArray[np.float32], temperature: float, rng: np.random.Generator
) -> int:
    if temperature == 0:
        return int(ids[0])
    return int(ids[np.argmax(logits / temperature + rng.gumbel(size=len(ids)))])


def loops(tokens: Sequence[int]) -> bool:
    """Whether the last LOOP tokens also stand a short distance earlier."""
    end = list(tokens[-LOOP:])
    return any(list(tokens[-LOOP - p : -p]) == end for p in range(1, LOOP + 1))


class Writer:
    """Answers jobs in many sequences at once. slots: what is written in each sequence, by its id."""

    def __init__(self, context: StreamContext, max_new: int, n_ctx: int, seed: int) -> None:
        self.context, self.max_new, self.n_ctx = context, max_new, n_ctx
        self.rng = np.random.default_rng(seed)
        self.slots: dict[int, Slot] = {}

    def start(self, job: Job, seq_id: int) -> Slot | None:
        """Decode a prompt; None if it is too long."""
        ids = self.context.model.tokenize(render(job.prompt), self.context.model.adds_bos, True)
        if len(ids) + self.max_new > self.n_ctx:
            return None
        self.context.clear(seq_id)
        rows = [(t, i, seq_id, i == len(ids) - 1) for i, t in enumerate(ids)]
        logits = self.context.decode(rows)
        slot = Slot(
            job, ids, len(ids), [self.context.layer_inputs(len(ids))], [np.zeros(len(ids) - 1, shards.TOP)]
        )
        self.advance(slot, logits[0])
        return slot

    def advance(self, slot: Slot, logits: NDArray[np.float32]) -> None:
        ids, values = best(logits)
        slot.top.append(top_row(ids, values))
        slot.tokens.append(choose(ids, values, slot.job.temperature, self.rng))

    def step(self) -> None:
        """Append a token to every sequence."""
        slots = sorted(self.slots.items())
        logits = self.context.decode([(s.tokens[-1], len(s.tokens) - 1, i, True) for i, s in slots])
        features = self.context.layer_inputs(len(slots))
        for i, (_, slot) in enumerate(slots):
            slot.features.append(features[i : i + 1])
            self.advance(slot, logits[i])

    def ended(self, slot: Slot) -> bool:
        n = len(slot.tokens) - slot.n_prompt
        if slot.tokens[-1] in self.context.model.end_ids or n > self.max_new:
            return True
        return n % LOOP_CHECK == 0 and n >= 2 * LOOP and loops(slot.tokens)


def jobs(found: Iterable[prompts.Prompt], seed: int, worker: int, workers: int) -> Iterator[Job]:
    """The jobs of a worker: every prompt at each temperature. seed: of the prompts, a part of the keys."""
    for i, prompt in enumerate(found):
        for k, temperature in enumerate(TEMPERATURES):
            if (2 * i + k) % workers == worker:
                yield Job(f"{seed}/{i}/{temperature:g}", prompt, temperature)


def text_of(slot: Slot) -> shards.Text:
    """What was decoded; the last token was chosen but not decoded."""
    tokens = np.array(slot.tokens[:-1], np.uint16)
    return shards.Text(tokens, np.concatenate(slot.features), np.concatenate(slot.top))


def main() -> None:
    p = cli.parser(__doc__)
    p.add_argument("--model", type=Path, required=True, metavar="GGUF", help="the target")
    p.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the shards")
    p.add_argument("--prompts", type=cli.whole(1), default=6000, metavar="N", help="number of prompts")
    p.add_argument("--held-out", action="store_true", help="answer the prompts that are only measured")
    p.add_argument("--seed", type=cli.whole(0), default=1, metavar="N", help="of the choice of prompts")
    p.add_argument("--worker", type=cli.whole(0), default=0, metavar="I", help="which worker this is")
    p.add_argument("--workers", type=cli.whole(1), default=1, metavar="N", help="number of workers")
    p.add_argument("--sequences", type=cli.whole(1), default=32, metavar="N", help="written at once")
    p.add_argument("--max-new", type=cli.whole(2), default=224, metavar="N", help="tokens of an answer")
    p.add_argument("--ctx", type=cli.whole(64), default=768, metavar="N", help="tokens of a sequence")
    p.add_argument("--threads", type=cli.threads, default=1, metavar="N", help="threads of the target")
    p.add_argument("--minutes", type=cli.whole(1), default=60, metavar="M", help="when to end")
    p.add_argument("--pause", type=Path, metavar="FILE", help="rest while this file exists")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * a.minutes
    context = StreamContext(a.model, LAYERS, a.sequences, a.ctx, a.threads)
    shard = shards.ShardWriter(a.out, str(a.worker), len(LAYERS) * context.n_embd)
    found = prompts.held_out() if a.held_out else prompts.training(a.prompts, a.seed)
    todo = (job for job in jobs(found, a.seed, a.worker, a.workers) if job.key not in shard.keys)
    writer = Writer(context, a.max_new, a.ctx, seed=len(shard.keys) * a.workers + a.worker)

    def fill(seq_id: int) -> None:
        slot = next((slot for job in todo if (slot := writer.start(job, seq_id))), None)
        if slot:
            writer.slots[seq_id] = slot

    for seq_id in range(a.sequences):
        fill(seq_id)
    started, n, reported = time.monotonic(), 0, time.monotonic()
    while writer.slots and time.monotonic() < until:
        while a.pause and a.pause.exists():
            time.sleep(2)
        writer.step()
        n += len(writer.slots)
        for seq_id, slot in list(writer.slots.items()):
            if writer.ended(slot):
                job = slot.job
                shard.add(job.key, job.prompt.kind, job.temperature, slot.n_prompt, text_of(slot))
                del writer.slots[seq_id]
                fill(seq_id)
        if time.monotonic() - reported > 30:
            reported = time.monotonic()
            print(f"{len(shard.keys)} texts, {n} tokens, {n / (reported - started):.0f} tokens/s", flush=True)


if __name__ == "__main__":
    cli.run(main, ModelFileError, OSError)
