"""The figures of a chat: the line below an answer, the read-out of the last one, totals of the session."""

from __future__ import annotations

from dataclasses import dataclass, field

from specllama.cli import readout
from specllama.client.stream import GenerationResult
from specllama.core.gain import gain
from specllama.core.stats import RunStats
from specllama.wording import counted


def turn_line(answer: GenerationResult) -> str:
    """Rate, speed-up, acceptance, prompt tokens evaluated and reused, time to first token, if measured."""
    stats = answer.stats
    measured = gain(stats, answer.plain)
    parts = [
        f"{stats.decode_tps:.1f} t/s" if stats.decode_tps else "",
        measured.in_words(),
        f"accept {100 * stats.n_accept / stats.n_drafted:.0f} % of {stats.n_drafted}"
        if stats.n_drafted
        else "",
        f"forced {stats.n_forced_accept}" if stats.n_forced else "",
        f"prompt {stats.n_evaluated} evaluated, {stats.n_reused} reused",
        f"first token {stats.ttft_seconds:.3f} s" if stats.n_predict else "",
    ]
    return " · ".join(part for part in parts if part)


@dataclass(slots=True)
class Totals:
    """Figures of all answers of a session."""

    last: GenerationResult | None = None
    answers: int = 0
    n_decoded: int = 0  # tokens after the first of each answer
    sum: RunStats = field(default_factory=RunStats)

    def add(self, answer: GenerationResult) -> None:
        """Count an answer that has ended."""
        self.last, self.answers = answer, self.answers + 1
        for name in ("n_prompt", "n_reused", "n_evaluated", "n_predict", "n_drafted", "n_accept"):
            setattr(self.sum, name, getattr(self.sum, name) + getattr(answer.stats, name))
        self.n_decoded += max(0, answer.stats.n_predict - 1)
        self.sum.decode_seconds += answer.stats.decode_seconds

    def lines(self, n_ctx: int) -> list[str]:
        """The full read-out of the last answer, and the totals."""
        if self.last is None:
            return ["no answer yet"]
        stats, total = self.last.stats, self.sum
        used = stats.n_prompt + stats.n_predict
        rate, written = "", counted(total.n_predict, "token")
        if total.decode_seconds > 0:
            rate = f" at {self.n_decoded / total.decode_seconds:.1f} t/s"
        lines = [
            *readout.lines(stats, self.last.plain, self.last.off_reason, self.last.seed),
            f"context   = {used} of {n_ctx} tokens after it",
            "",
            f"session   = {counted(self.answers, 'answer')}, {written} written{rate}",
            f"            {counted(total.n_evaluated, 'prompt token')} evaluated, {total.n_reused} reused",
        ]
        if total.n_drafted:
            share = 100 * total.n_accept / total.n_drafted
            lines.append(f"            {total.n_drafted} drafted, {total.n_accept} accepted ({share:.1f} %)")
        return lines
