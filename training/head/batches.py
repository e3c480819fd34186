"""Batches of texts for the head: what it reads, and what the target would have written at each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from training.head.model import Batch
from training.head.shards import Entry, Shard, Text

PADDED, NOT_OF_HEAD = -1, -2  # values of Batch.best


class Sample(NamedTuple):
    """A text with what is known about it."""

    entry: Entry
    text: Text


def load(folder: Path, n_features: int) -> list[Sample]:
    """The texts of all shards in the folder, in the order of their keys. n_features: numbers of a row."""
    names = sorted(path.stem for path in folder.glob("*.jsonl"))
    found = [
        Sample(entry, shard.text(entry))
        for shard in (Shard(folder, name, n_features) for name in names)
        for entry in shard.entries
    ]
    return sorted(found, key=lambda sample: (sample.entry.kind, sample.entry.key))


def choose_tokens(samples: Sequence[Sample], n: int, always: Sequence[int]) -> NDArray[np.int64]:
    """`n` tokens that the head can draft, ascending: `always`, then those that the target most often finds
    probable in the samples, then the first of the vocabulary.
    """
    counts: Counter[int] = Counter()
    for entry, text in samples:
        top = text.top[entry.n_prompt - 1 :]
        shares = np.exp(top["logit"].astype(np.float32))
        ids = top["id"][shares > 0]
        for token, share in zip(ids.tolist(), shares[shares > 0].tolist(), strict=True):
            counts[token] += share
    order = [*always, *(token for token, _ in counts.most_common()), *range(n)]
    return np.array(sorted(list(dict.fromkeys(order))[:n]), np.int64)


def to_head(tokens: NDArray[np.int64], n_vocab: int) -> NDArray[np.int64]:
    """For each token of the vocabulary its number in the head, NOT_OF_HEAD for those it lacks."""
    table = np.full(n_vocab, NOT_OF_HEAD, np.int64)
    table[tokens] = np.arange(len(tokens))
    return table


def columns(layers: Sequence[int], kept: Sequence[int], n_embd: int) -> NDArray[np.int64]:
    """Where the features of `layers` are in rows that hold those of the `kept` layers."""
    return np.concatenate([np.arange(n_embd) + n_embd * kept.index(layer) for layer in layers])


def feature_scale(samples: Sequence[Sample], used: NDArray[np.int64]) -> NDArray[np.float32]:
    """The root mean square of every feature over some texts, without their extreme first tokens."""
    few = samples[:: max(1, len(samples) // 200)]
    rows = np.concatenate([text.features[1:][:, used] for _, text in few]).astype(np.float32)
    return np.sqrt((rows**2).mean(0)) + np.float32(1e-3)


def make(samples: Sequence[Sample], table: NDArray[np.int64], used: NDArray[np.int64], n_step: int) -> Batch:
    """A batch of the samples. table: of `to_head`; used: of `columns`."""
    n_rows = max(entry.n for entry, _ in samples) - 1
    firsts = [max(0, entry.n_prompt - 2) for entry, _ in samples]
    n_learnt = max(entry.n - 1 - first for (entry, _), first in zip(samples, firsts, strict=True))
    n, n_top = len(samples), samples[0].text.top["id"].shape[1]
    tokens = np.zeros((n, n_rows), np.int64)
    features = np.zeros((n, n_rows, len(used)), np.float32)
    rows = np.zeros((n, n_learnt), np.int64)
    next_tokens = np.zeros((n, n_learnt, n_step), np.int64)
    ids = np.zeros((n, n_learnt, n_step, n_top), np.int64)
    weights = np.zeros((n, n_learnt, n_step, n_top), np.float32)
    best = np.full((n, n_learnt, n_step), PADDED, np.int64)
    for i, ((entry, text), first) in enumerate(zip(samples, firsts, strict=True)):
        tokens[i, : entry.n - 1] = text.tokens[1:]
        features[i, : entry.n - 1] = text.features[: entry.n - 1][:, used]
        learnt = entry.n - 1 - first
        rows[i, :learnt] = first + np.arange(learnt)
        shares = np.exp(text.top["logit"].astype(np.float32))
        shares /= np.maximum(shares.sum(1, keepdims=True), 1e-9)
        mapped = table[text.top["id"].astype(np.int64)]
        shares[mapped < 0] = 0
        for step in range(n_step):
            of = slice(first + 1 + step, entry.n)  # rows of the text that the step's drafts follow
            m = learnt - step
            if m <= 0:
                break
            next_tokens[i, :m, step] = text.tokens[of]
            ids[i, :m, step], weights[i, :m, step] = np.maximum(mapped[of], 0), shares[of]
            best[i, :m, step] = mapped[of][:, 0]
    arrays = (tokens, features, rows, next_tokens, ids, weights, best)
    return Batch(*(torch.from_numpy(array) for array in arrays))


def shuffled(samples: Sequence[Sample], n_rows: int, rng: np.random.Generator) -> Iterator[list[Sample]]:
    """The samples in groups of similar length with about `n_rows` rows each, in random order."""
    noise = rng.uniform(0, 40, len(samples))
    order = sorted(range(len(samples)), key=lambda i: samples[i].entry.n + noise[i])
    groups: list[list[Sample]] = [[]]
    for i in order:
        if sum(sample.entry.n for sample in groups[-1]) >= n_rows:
            groups.append([])
        groups[-1].append(samples[i])
    for i in rng.permutation(len(groups)):
        yield groups[i]
