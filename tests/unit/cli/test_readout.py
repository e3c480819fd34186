"""The read-out of an answer: one verdict first, lines shorter than 80 columns, the seed."""

from __future__ import annotations

from typing import Any

import pytest

from specllama.cli.readout import PlainRate, lines, summary, verdict
from specllama.core.stats import RunStats

ADVICE = "--compare measures it"


def answer(n: int = 101, seconds: float = 1.0, drafted: int = 40, **counts: Any) -> RunStats:
    """The figures of an answer of n tokens in this time, some of which were drafted."""
    given = {
        "n_predict": n,
        "n_drafted": drafted,
        "rounds": 60,
        "decode_seconds": seconds,
        "plain_rounds": 20,
    }
    return RunStats(**{**given, **counts})


PLAIN = PlainRate(80.0, "run", 20)
VERDICTS: dict[str, tuple[RunStats, PlainRate, str]] = {
    "faster": (answer(), PLAIN, "faster: 1.25x plain (1.23 - 1.28)"),
    "slower": (answer(seconds=1.6), PLAIN, "slower: 0.78x plain (0.77 - 0.80)"),
    "alike": (answer(seconds=1.25), PLAIN, "about as fast: 1.00x plain (0.98 - 1.02)"),
    "unclear": (
        answer(seconds=1.25),
        PlainRate(80.0, "run", 20, 0.25),
        "unclear: between 0.80x and 1.25x plain; --compare measures it",
    ),
    "by how much is unclear": (
        answer(rounds=30),
        PlainRate(50.0, "stored", 2, 0.3, "decodes were slower than at other times"),
        "faster, by how much is unclear: between 1.54x and 2.60x plain; decodes were slower than at other "
        "times; --compare measures it",
    ),
    "limited": (answer(rounds=84), PLAIN, "faster: at most 1.19x plain (1.11 - 1.19)"),
    "stored": (answer(), PlainRate(80.0, "stored", 2), "faster: 1.25x plain (1.23 - 1.28)"),
    "busy": (
        answer(stalled_seconds=0.3),
        PLAIN,
        "faster: 1.49x plain (1.23 - 1.67); the machine was busy with something else",
    ),
    "unknown": (
        answer(),
        PlainRate(None, "none", 2),
        "gain unknown: the speed of plain decoding is unknown; --compare measures it",
    ),
    "forced alone": (
        answer(drafted=0, n_forced=9, n_forced_accept=9),
        PLAIN,
        "faster: 1.25x plain (1.23 - 1.28)",
    ),
    "short": (
        answer(n=1, seconds=0.0),
        PLAIN,
        "gain unknown: the answer was too short",
    ),
    "nothing drafted": (answer(drafted=0), PLAIN, "nothing was drafted: --draft-max 0"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_first_line_is_one_verdict(name: str) -> None:
    stats, plain, expected = VERDICTS[name]
    off = "--draft-max 0" if name == "nothing drafted" else ""
    assert verdict(stats, plain, off, ADVICE) == expected
    shown = lines(stats, plain, off, 7, ADVICE)
    assert shown[0] == expected
    assert not any("drafted:" in line for line in shown[1:]), "it is said once"
    assert f"seed      = {7}" in shown


def test_the_summary_is_the_verdict_and_the_speeds() -> None:
    stats = answer(n_evaluated=79, encode_seconds=0.5)
    verdict_line, speeds = summary(stats, PlainRate(80.0, "stored", 2), "", 7, ADVICE)
    assert verdict_line == "faster: 1.25x plain (1.23 - 1.28)"
    assert speeds == "101 tokens at 100.0 t/s, prompt 79 tokens at 158.0 t/s, plain 80.0 t/s (stored), seed 7"
    reused = answer(n_prompt=1600, n_reused=1598, n_evaluated=2, encode_seconds=0.5)
    assert ", prompt 2 of 1600 tokens at 4.0 t/s" in summary(reused, PLAIN)[1]
    off = "drafts would not have paid, as 33 % of copied tokens were right; a decode of 2 rows"
    assert summary(answer(drafted=0, n=2), PLAIN, off)[0] == f"nothing was drafted: {off.split('; ')[0]}"
    assert summary(answer(1, 0.0, 0), PLAIN, "the answer is a single token")[1] == "1 token"


def test_the_reason_for_few_drafts_follows_the_verdict() -> None:
    shown = lines(answer(drafted=2), PLAIN, "the text hardly repeats anything")
    assert shown[0].startswith("faster: ")
    assert shown[-1] == "hardly anything was drafted: the text hardly repeats anything"


def test_no_line_of_figures_is_wider_than_80_columns() -> None:
    positions = {"reached": [50] * 16, "accepted_at": [50] * 16}
    sources = {"drafted_by": dict.fromkeys(("model", "copy", "memory"), 99999)}
    stats = answer(200_000, 98765.0, 50, n_accept=50, n_evaluated=131_072, encode_seconds=9999.0, **positions)
    stats.drafted_by.update(sources["drafted_by"])
    shown = lines(stats, PlainRate(123456.7, "stored", 2), "", 2**53)
    assert max(map(len, shown)) < 80, shown
    assert any(line.startswith("accept    = 100.0 %   by position 100 %") for line in shown)


def test_tokens_that_were_kept_on_the_disk_have_a_line() -> None:
    stats = answer()
    assert not any(line.startswith("kept") for line in lines(stats, PLAIN))
    stats.n_from_disk = 12269
    assert "kept      = 12269 tokens of the prompt from the disk" in lines(stats, PLAIN)
