"""Training of the pair in stages, each of which resumes after an interruption.

So that such small models learn in so little time: first copying, on repeated random tokens (they learn it
there in minutes, and hardly ever from text); then the draft is widened to the target; then text, with repeats
in every tenth batch; then the target is distilled into the draft.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

from training.corpus import SPECIALS
from training.model import DRAFT, TARGET, Transformer, widen

COPIED = 0.2  # loss (nats per token) at which copying is learnt
REPORT, SAVE = 50, 500  # steps
SAVE_SECONDS = 300.0
TARGET_COPY_SHARE = 0.2  # of the draft's time: the target inherits copying from the draft


@dataclass(frozen=True)
class Settings:
    """One run of the recipe. n_ctx tokens in each of the `batch` rows; copy_minutes for the draft."""

    steps_target: int
    steps_draft: int
    copy_minutes: float
    batch: int
    n_ctx: int
    device: str
    compile: bool


def train_tokenizer(docs: Sequence[str], n_vocab: int) -> Tokenizer:
    """Byte-level BPE, trained on every fourth document without its control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    parts: list[str] = []
    for doc in docs[::4]:
        for special in SPECIALS:
            doc = doc.replace(special, "\0")
        parts += doc.split("\0")
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(parts, trainer)
    return tokenizer


def encode(docs: Sequence[str], tokenizer: Tokenizer) -> NDArray[np.uint16]:
    """All documents as one stream of token ids, <|endoftext|> (0) after each."""
    parts = []
    for i in range(0, len(docs), 2000):
        for encoded in tokenizer.encode_batch(list(docs[i : i + 2000])):
            parts.append(np.array([*encoded.ids, 0], dtype=np.uint16))
    return np.concatenate(parts)


def text_batch(stream: NDArray[np.uint16], s: Settings, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and next tokens, shape (batch, n_ctx); determined by the step, so that a run can resume."""
    starts = np.random.default_rng([3, step]).integers(0, len(stream) - s.n_ctx - 1, s.batch)
    rows = np.stack([stream[i : i + s.n_ctx + 1] for i in starts]).astype(np.int64)
    x = torch.from_numpy(rows).to(s.device)
    return x[:, :-1], x[:, 1:]


def repeats_loss(
    model: Transformer, n_vocab: int, rng: np.random.Generator, s: Settings, n_rows: int
) -> Tensor:
    """Loss on the second half of repeated random tokens, which only copying predicts.

    The period varies from batch to batch, so that the position alone does not suffice.
    """
    period = int(rng.integers(12, 48))
    once = torch.from_numpy(rng.integers(len(SPECIALS), n_vocab, (n_rows, period)))
    twice = torch.cat([once, once], 1).to(s.device)
    with torch.autocast(s.device, torch.bfloat16):
        logits = model(twice[:, :-1])
    return F.cross_entropy(logits.float()[:, period:].flatten(0, 1), twice[:, period + 1 :].flatten())


def update(optimizer: torch.optim.Optimizer, model: nn.Module, loss: Tensor, rate: float) -> None:
    """One optimizer step at this learning rate, with the gradient clipped to norm 1."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def save(state: dict[str, Any], path: Path) -> None:
    """Write a state atomically: an interruption leaves the old one."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def learn_to_copy(
    name: str, model: Transformer, rate: float, minutes: float, folder: Path, s: Settings
) -> None:
    """First stage: random repeats until copying is learnt, at most for `minutes`."""
    path = folder / f"{name}.copy.pt"
    if path.exists():
        model.load_state_dict(torch.load(path, map_location=s.device))
        return
    optimizer = torch.optim.AdamW(model.parameters(), rate, (0.9, 0.98), weight_decay=0.0, fused=True)
    rng, start, step = np.random.default_rng(0), time.monotonic(), 0
    while time.monotonic() - start < 60 * minutes:
        loss = repeats_loss(model, model.token_embd.num_embeddings, rng, s, 64)
        update(optimizer, model, loss, rate * min(1, (step + 1) / 50))
        step += 1
        if step % REPORT == 0:
            print(
                f"{name} copying {step}: loss {loss.item():.3f}, {time.monotonic() - start:.0f} s", flush=True
            )
        if loss.item() < COPIED:
            break
    save(model.state_dict(), path)


def learn_text(
    name: str,
    model: Transformer,
    stream: NDArray[np.uint16],
    n_steps: int,
    rate: float,
    folder: Path,
    s: Settings,
    teacher: Transformer | None = None,
) -> None:
    """Second stage: text, with repeats in every tenth batch; with a teacher, mostly distillation."""
    optimizer = torch.optim.AdamW(model.parameters(), rate, (0.9, 0.95), weight_decay=0.01, fused=True)
    path, step = folder / f"{name}.text.pt", 0
    if path.exists():
        state = torch.load(path, map_location=s.device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    forward: Callable[[Tensor], Tensor] = torch.compile(model) if s.compile else model
    rng = np.random.default_rng([2, step])
    first, start, saved, mean = step, time.monotonic(), time.monotonic(), math.nan
    while step < n_steps:
        x, y = text_batch(stream, s, step)
        with torch.autocast(s.device, torch.bfloat16):
            logits = forward(x)
        logits = logits.float().flatten(0, 1)
        loss = F.cross_entropy(logits, y.flatten())
        total = loss if teacher is None else 0.2 * loss + 0.8 * distance(logits, teacher, x, s)
        if step % 10 == 0:
            total = total + 0.5 * repeats_loss(model, model.token_embd.num_embeddings, rng, s, 16)
        cosine = 0.5 * (1 + math.cos(math.pi * step / n_steps))
        update(optimizer, model, total, rate * min(1, (step + 1) / 100) * (0.03 + 0.97 * cosine))
        step += 1
        mean = loss.item() if math.isnan(mean) else 0.98 * mean + 0.02 * loss.item()
        if step % REPORT == 0 or step == n_steps:
            speed = (step - first) * x.numel() / (time.monotonic() - start)
            print(f"{name} text {step}/{n_steps}: loss {mean:.3f}, {speed:.0f} tokens/s", flush=True)
        if step % SAVE == 0 or step == n_steps or time.monotonic() - saved > SAVE_SECONDS:
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
            saved = time.monotonic()


def distance(logits: Tensor, teacher: Transformer, x: Tensor, s: Settings) -> Tensor:
    """Kullback-Leibler divergence from the teacher's next-token probabilities, in nats per token."""
    with torch.no_grad(), torch.autocast(s.device, torch.bfloat16):
        goal = teacher(x).float().flatten(0, 1)
    return F.kl_div(
        F.log_softmax(logits, -1), F.log_softmax(goal, -1), reduction="batchmean", log_target=True
    )


def train_pair(
    stream: NDArray[np.uint16], n_vocab: int, folder: Path, s: Settings
) -> tuple[Transformer, Transformer]:
    """Run all stages; returns the trained target and draft. States are kept in `folder`."""
    torch.manual_seed(1)
    n_positions = max(s.n_ctx, 96)  # the repeats need up to 95
    target = Transformer(n_vocab, TARGET, n_positions).to(s.device)
    draft = Transformer(n_vocab, DRAFT, n_positions).to(s.device)
    print(f"target {target.n_params / 1e6:.1f} M parameters, draft {draft.n_params / 1e6:.1f} M", flush=True)
    learn_to_copy("draft", draft, 2e-3, s.copy_minutes, folder, s)
    widen(draft, target)
    learn_to_copy("target", target, 5e-4, TARGET_COPY_SHARE * s.copy_minutes, folder, s)
    learn_text("target", target, stream, s.steps_target, 1.5e-3, folder, s)
    target.eval().requires_grad_(False)
    learn_text("draft", draft, stream, s.steps_draft, 2e-3, folder, s, target)
    return target, draft
