"""What a generation did and what it took: the figures that every front prints, times in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RunStats:
    """Counters of one sequence; times in seconds by the engine's clock.

    n_drafted: draft tokens that entered a verify batch, of these n_accept were emitted; n_discarded:
    drafted and not verified. n_forced, n_forced_accept: the same for tokens that a grammar forces, which are
    in no other figure but drafted_by. reached[j] / accepted_at[j]: rounds whose draft had more than j tokens
    that were not forced / whose token j of those was emitted. decode_seconds: from the first token to the
    end, n_predict - 1 tokens. plain_seconds: the plain rounds among that. round_seconds: rows of a decode to
    the number of such rounds and the seconds of their decodes.
    """

    n_prompt: int = 0
    n_reused: int = 0
    n_predict: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    n_discarded: int = 0
    n_forced: int = 0
    n_forced_accept: int = 0
    drafted_by: Counter[str] = field(default_factory=Counter)
    reached: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    rounds: int = 0
    plain_rounds: int = 0
    plain_seconds: float = 0.0
    encode_seconds: float = 0.0
    ttft_seconds: float = 0.0
    decode_seconds: float = 0.0
    verify_seconds: float = 0.0
    draft_seconds: float = 0.0
    sampling_seconds: float = 0.0
    near_ties: int = 0
    redecided: int = 0
    round_seconds: dict[int, tuple[int, float]] = field(default_factory=dict)

    def drafted(self, sources: Sequence[str], n_accept: int, n_discarded: int) -> None:
        """Count one verified draft: the source of each of its tokens, and how many of them were emitted."""
        guessed = [j < n_accept for j, source in enumerate(sources) if source != "grammar"]
        self.n_drafted += len(guessed)
        self.n_accept += sum(guessed)
        self.n_forced += len(sources) - len(guessed)
        self.n_forced_accept += min(n_accept, len(sources)) - sum(guessed)
        self.n_discarded += n_discarded
        for source in sources:
            self.drafted_by[source] += 1
        while len(self.reached) < len(guessed):
            self.reached.append(0)
            self.accepted_at.append(0)
        for j, accepted in enumerate(guessed):
            self.reached[j] += 1
            self.accepted_at[j] += accepted

    @property
    def acceptance_rate(self) -> float | None:
        return self.n_accept / self.n_drafted if self.n_drafted else None

    @property
    def accept_by_position(self) -> list[float]:
        return [a / n for a, n in zip(self.accepted_at, self.reached, strict=True)]

    @property
    def encode_tps(self) -> float | None:
        """Prompt tokens evaluated per second."""
        n = self.n_prompt - self.n_reused
        return n / self.encode_seconds if self.encode_seconds > 0 else None

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second behind the first."""
        n = self.n_predict - 1
        return n / self.decode_seconds if n > 0 and self.decode_seconds > 0 else None

    @property
    def plain_tps(self) -> float | None:
        """Tokens per second of the plain rounds of this run."""
        return self.plain_rounds / self.plain_seconds if self.plain_seconds > 0 else None

    @property
    def time_shares(self) -> dict[str, float]:
        """Seconds of decoding by what they went into; they add up to decode_seconds."""
        known = self.verify_seconds + self.draft_seconds + self.sampling_seconds
        return {
            "verify": self.verify_seconds,
            "draft": self.draft_seconds,
            "sampling": self.sampling_seconds,
            "other": max(0.0, self.decode_seconds - known),
        }

    def to_dict(self) -> dict[str, Any]:
        """As plain data, to cross a pipe; `from_dict` is the inverse."""
        data = {name: getattr(self, name) for name in self.__slots__}
        data["drafted_by"] = dict(self.drafted_by)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunStats:
        rounds = {int(n): (count, seconds) for n, (count, seconds) in data["round_seconds"].items()}
        return cls(**{**data, "drafted_by": Counter(data["drafted_by"]), "round_seconds": rounds})
