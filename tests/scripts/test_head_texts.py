"""The texts that the demo model's head is trained on: prompts, choice of tokens, shards. No model is run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts.demo_pair.head import prompts, shards, topics
from scripts.demo_pair.head.write import SYSTEM, best, choose, jobs, loops, render, top_row
from specllama.bench.workloads import WORKLOADS
from tests.support.head_texts import random_text


@pytest.fixture(scope="module")
def training() -> list[prompts.Prompt]:
    return list(prompts.training(300))


def test_training_prompts_are_of_all_kinds_and_fixed(training: list[prompts.Prompt]) -> None:
    assert training[:20] == list(prompts.training(20))
    assert {p.kind for p in training} == {*prompts.KINDS, "follow-up"}
    assert len(set(training)) == len(training)
    assert not [p.text for p in training if "{" in p.text[:20] or "  " in p.text.split("\n")[0][:20]]


def test_training_leaves_out_what_is_measured(training: list[prompts.Prompt]) -> None:
    measured = [text for texts in (*WORKLOADS.values(), *prompts.HELD_OUT.values()) for text in texts]
    assert not {p.messages[-1][1] for p in training} & set(measured)
    assert len(prompts.held_out()) == len(measured) == 36
    assert all(
        prompts.RESERVED.search(text) for text in ("Explain os.walk.", "What does shutil.copytree do?")
    )
    assert not [p for p in training if prompts.RESERVED.search(p.text)]


def test_lists_have_no_empty_or_repeated_items() -> None:
    for name, found in vars(topics).items():
        if name.isupper():
            assert all(found), name
            assert len(set(found)) == len(found), name
            assert all(item == item.strip() for item in found), name


def test_rendering() -> None:
    asked = render(prompts.Prompt("chat", (("user", "Hi!"),)))
    assert asked == (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(prompts.Prompt("raw", (("", "def f("),))) == "def f("
    other = render(prompts.Prompt("chat", (("system", "Be brief."), ("user", "Hi!"))))
    assert other.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")


def test_each_prompt_is_answered_once_at_each_temperature(training: list[prompts.Prompt]) -> None:
    shares = [list(jobs(training[:10], 1, worker, 3)) for worker in range(3)]
    keys = [job.key for share in shares for job in share]
    assert len(keys) == len(set(keys)) == 20
    assert {job.temperature for share in shares for job in share} == {0.0, 0.8}


def test_candidates_and_choice() -> None:
    logits = np.full(100, -5.0, np.float32)
    logits[[7, 3, 50]] = 9, 8, 4.5
    ids, values = best(logits)
    assert ids.tolist() == [7, 3, 50]
    row = top_row(ids, values)
    assert row["id"][0, :3].tolist() == [7, 3, 50]
    assert row["logit"][0, :4].tolist() == [0, -1, -4.5, -np.inf]
    rng = np.random.default_rng(0)
    assert choose(ids, values, 0, rng) == 7
    drawn = [choose(ids, values, 0.8, rng) for _ in range(4000)]
    expected = np.exp(values / 0.8) / np.exp(values / 0.8).sum()
    assert [drawn.count(i) / 4000 for i in ids] == pytest.approx(expected.tolist(), abs=0.03)


def test_loops_are_found_at_any_period() -> None:
    varied = list(range(200))
    assert not loops(varied)
    for period in (1, 7, 48):
        assert loops([*varied, *list(range(period)) * (96 // period + 1)])
    assert not loops([*varied, *range(60), *range(60)])  # the period is longer than what is compared


def test_a_shard_survives_an_interruption(tmp_path: Path) -> None:
    texts = [random_text(n, 8, n) for n in (5, 9, 4)]
    writer = shards.ShardWriter(tmp_path, "0", 8)
    for i in (0, 1):
        writer.add(f"key {i}", "chat", 0.8, 2, texts[i])
    writer.close()
    lines = tmp_path / "0.jsonl"
    lines.write_text(lines.read_text()[:-7])  # the line of the second text was not written to its end
    again = shards.ShardWriter(tmp_path, "0", 8)
    assert again.keys == {"key 0"}
    with pytest.raises(BlockingIOError):
        shards.ShardWriter(tmp_path, "0", 8)
    again.add("key 2", "chat", 0, 1, texts[2])
    again.close()
    shard = shards.Shard(tmp_path, "0", 8)
    assert [(e.key, e.start, e.n_prompt, e.n) for e in shard.entries] == [
        ("key 0", 0, 2, 5), ("key 2", 5, 1, 4)
    ]  # fmt: skip
    for entry, text in zip(shard.entries, (texts[0], texts[2]), strict=True):
        found = shard.text(entry)
        assert found.tokens.tolist() == text.tokens.tolist()
        assert found.features.tolist() == text.features.tolist()
        assert found.top.tobytes() == text.top.tobytes()
