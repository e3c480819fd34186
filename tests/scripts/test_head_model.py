"""The demo model's head in torch: batches, and unrolled steps against drafting token by token."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")  # of the extra `train`, which the tests do not install

from scripts.demo_pair.head import batches, shards  # noqa: E402
from scripts.demo_pair.head.model import Batch, Head, Shape, accepted, draw, losses  # noqa: E402
from tests.support.head_texts import random_text  # noqa: E402


def _samples(lengths: tuple[tuple[int, int], ...], width: int = 12) -> list[batches.Sample]:
    found = []
    for i, (n_prompt, n) in enumerate(lengths):
        entry = shards.Entry(str(i), "chat", 0, 0, n_prompt, n)
        found.append(batches.Sample(entry, random_text(n, width, i)))
    return found


def test_a_batch_pairs_features_with_the_next_token() -> None:
    samples = _samples(((3, 9), (5, 7)))
    tokens = np.arange(0, 40, 2)
    table = batches.to_head(tokens, 40)
    used = batches.columns((8, 2), (2, 5, 8), 4)
    assert used.tolist() == [8, 9, 10, 11, 0, 1, 2, 3]
    batch = batches.make(samples, table, used, 2)
    for i, (entry, text) in enumerate(samples):
        assert batch.tokens[i, : entry.n - 1].tolist() == text.tokens[1:].tolist()
        assert batch.features[i, 3].tolist() == text.features[3][used].astype(np.float32).tolist()
        for learnt, row in enumerate(range(entry.n_prompt - 2, entry.n - 1)):
            assert batch.rows[i, learnt] == row
            for step in range(2):
                at = row + 1 + step
                if at >= entry.n:
                    assert batch.best[i, learnt, step] == batches.PADDED
                    continue
                assert batch.next_tokens[i, learnt, step] == text.tokens[at]
                first = int(text.top["id"][at, 0])
                expected = first // 2 if first % 2 == 0 else batches.NOT_OF_HEAD
                assert batch.best[i, learnt, step] == expected
                of_head = text.top["id"][at] % 2 == 0
                share = np.exp(text.top["logit"][at].astype(np.float32))
                assert batch.weights[i, learnt, step].sum().item() == pytest.approx(
                    share[of_head].sum() / share.sum(), rel=1e-5
                )


def test_tokens_of_the_head_are_the_frequent_ones() -> None:
    samples = _samples(((2, 60), (2, 60)))
    counted = np.bincount(np.concatenate([text.top["id"][1:, 0] for _, text in samples]), minlength=40)
    chosen = batches.choose_tokens(samples, 20, (0, 1, 2)).tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 20
    assert {0, 1, 2, int(counted.argmax())} <= set(chosen)
    assert batches.choose_tokens(samples, 100, ()).tolist() == list(range(100))


def test_groups_hold_every_text_once() -> None:
    samples = _samples(tuple((2, n) for n in range(4, 60)))
    groups = list(batches.shuffled(samples, 100, np.random.default_rng(0)))
    assert sorted(s.entry.key for group in groups for s in group) == sorted(s.entry.key for s in samples)
    assert all(sum(s.entry.n for s in group) < 160 for group in groups)


@pytest.fixture
def head() -> Head:
    torch.manual_seed(0)
    shape = Shape(n_embd=8, n_head=2, n_head_kv=1, n_ff=16, n_features=12, n_draft=20)
    return Head(shape, torch.randn(40, 8)).requires_grad_(False)


def test_unrolled_steps_are_those_of_drafting(head: Head) -> None:
    """Step by step: the cache holds the pairs of true features, then each step's own hidden row."""
    samples = _samples(((3, 9), (5, 7)))
    table = batches.to_head(np.arange(20), 40)
    batch = batches.make(samples, table, np.arange(12), 3)
    found = head.steps(batch, 3)
    for i, (entry, text) in enumerate(samples):
        tokens = torch.from_numpy(text.tokens.astype(np.int64))
        for learnt, row in enumerate(range(entry.n_prompt - 2, entry.n - 1)):
            g = head.fc(torch.from_numpy(text.features[: row + 1].astype(np.float32)))[None]
            read = tokens[None, 1 : row + 2]
            for step in range(min(3, entry.n - 1 - row)):
                if step:
                    read = torch.cat((read, tokens[None, None, row + 1 + step]), 1)
                rows = torch.arange(row + step, row + step + 1)[None]
                single = Batch(read, g, rows, *(torch.zeros(1, 1, 1, dtype=torch.long),) * 4)
                logits, hidden = _one_step(head, single)
                assert torch.allclose(logits, found[step][i, learnt], atol=1e-5)
                g = torch.cat((g, hidden[None, None]), 1)


def _one_step(head: Head, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and hidden row of the last pair, from g instead of features, attended in plain loops."""
    s = head.shape
    positions = torch.arange(batch.tokens.shape[1])[None]
    x = head.inputs(batch.tokens, batch.features)
    k, v = head.keys_values(x, positions)
    q = head.queries(x, positions)[0, -1]
    heads = []
    for i in range(s.n_head):
        of = i * s.n_head_kv // s.n_head
        share = (k[0, :, of] @ q[i] / s.n_embd_head**0.5).softmax(0)
        heads.append(share @ v[0, :, of])
    hidden = head.finish(torch.cat(heads)[None], batch.features[0, -1:])[0]
    return head.output(head.output_norm(hidden)), hidden


def test_losses_are_lowest_where_the_drafts_are_right() -> None:
    samples = _samples(((3, 9), (5, 7)))
    batch = batches.make(samples, batches.to_head(np.arange(40), 40), np.arange(12), 2)
    n = batch.best.shape[:2]
    right = [torch.zeros(*n, 40) for _ in range(2)]
    for step, rows in enumerate(right):
        rows.scatter_(2, batch.best[:, :, step].clamp(min=0)[..., None], 30.0)
    wrong = [rows.roll(1, -1) for rows in right]
    low, high = losses(right, batch, 1.0), losses(wrong, batch, 1.0)
    assert low.tolist() == pytest.approx([0, 0], abs=1e-4)
    assert (high > 25).all()
    counts, tried = accepted(right, batch)
    assert tried.tolist() == [(batch.best[:, :, step] >= 0).sum() for step in range(2)]
    assert counts.tolist() == tried.tolist()
    assert accepted(wrong, batch)[0].tolist() == [0, 0]
    assert accepted(wrong, batch)[1].tolist() == [tried[0], 0]


def test_a_sample_of_all_tokens_has_the_whole_loss(head: Head) -> None:
    samples = _samples(((3, 5), (4, 5)))
    batch = batches.make(samples, batches.to_head(np.arange(20), 40), np.arange(12), 2)
    whole = losses(head.steps(batch, 2), batch, 0.5)
    sample = draw(batch, 20, 100)
    assert sample.tokens.sort().values.tolist() == list(range(20))
    assert torch.allclose(losses(head.steps(batch, 2, sample), sample.batch, 0.5), whole, atol=1e-5)
    few = draw(batch, 20, 2)
    n_rest = 20 - (len(few.tokens) - 2)
    assert n_rest > 2
    assert few.shift[-2:].exp().sum().item() == pytest.approx(n_rest, rel=1e-5)
    assert (few.shift[:-2] == 0).all()
