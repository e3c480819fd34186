"""The read-out of an answer: one verdict first, lines shorter than 80 columns, the seed."""

from __future__ import annotations

from typing import Any

import pytest

from specllama.cli.readout import PlainRate, lines, verdict
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
    "faster": (answer(), PLAIN, "faster: 1.25x plain (80.0 t/s)"),
    "slower": (answer(seconds=1.6), PLAIN, "slower: 0.78x plain (80.0 t/s)"),
    "alike": (answer(seconds=1.25), PLAIN, "cannot tell: 1.00x plain (80.0 t/s) is too close to call"),
    "stored": (answer(), PlainRate(80.0, "stored", 2), "faster: 1.25x plain (80.0 t/s, stored)"),
    "unknown": (
        answer(),
        PlainRate(None, "none", 2),
        "cannot tell: the speed of plain decoding is unknown; --compare measures it",
    ),
    "forced alone": (
        answer(drafted=0, n_forced=9, n_forced_accept=9),
        PLAIN,
        "faster: 1.25x plain (80.0 t/s)",
    ),
    "short": (
        answer(n=1, seconds=0.0),
        PLAIN,
        "cannot tell: the answer was too short; --compare measures it",
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
    assert not any("plain" in line or "drafted:" in line for line in shown[1:]), "it is said once"
    assert f"seed      = {7}" in shown


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
