"""How many machines a number of users needs: arithmetic with measured times of decodes, simulated.

usage: python -m scripts.bench.capacity [--users 1000] [--per-hour 12] [--prompt 3000] [--answer 300]
           [--first 3] [--rate 10] [--slots 64] [--acceptance 0.7] [--draft-cost 0.05] [--minutes 20]
           [--curve ROWS:MS,ROWS:MS...]

One machine answers requests that arrive at random moments. A decode of n rows takes the time of the curve;
prompts are read in pieces between the decodes, as far as no earlier prompt has had them. With drafts a
text has as many draft tokens in a decode as gain most at its number of texts, each accepted with the same
probability; a step of the draft model costs a share of a decode of one row. The most requests an hour are
those at which 95 of 100 first tokens come in time and the median text is as fast as asked. Prints tables in
Markdown. No queue, no network and no client is slow here: what is measured behind a router is less.
"""

from __future__ import annotations

import random
from argparse import ArgumentTypeError
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from scripts import cli

# Milliseconds of a decode of n rows: docs/benchmarks.md, 8 B Q4_K_M on an H100; 512 rows are its prefill.
CURVE = "1:3.70,9:7.91,16:8.10,512:65.8"
REUSED = (0.0, 0.5, 0.9)  # shares of a prompt that an earlier one has had
MOST_DRAFTED, PIECE = 15, 512  # draft tokens of a text in a decode; tokens of a prompt between two decodes
STEPS = 14  # of the search for the most requests an hour, each of which halves the interval


@dataclass(frozen=True)
class Load:
    """Of a user: tokens of a prompt and an answer, seconds to a first token, tokens a second."""

    prompt: int
    answer: int
    first: float
    rate: float


def curve_of(text: str) -> tuple[tuple[int, float], ...]:
    """The points of `--curve`, in seconds. Raises ArgumentTypeError."""
    try:
        pairs = [(int(n), float(ms) / 1000) for n, ms in (one.split(":") for one in text.split(","))]
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not ROWS:MS,ROWS:MS") from None
    if len(pairs) < 2 or not all(a < b and 0 < x <= y for (a, x), (b, y) in pairwise(pairs)):
        raise ArgumentTypeError("needs two points or more, with more rows and more time each")
    return tuple(pairs)


def seconds_of(curve: Sequence[tuple[int, float]]) -> Callable[[float], float]:
    """The time of a decode by its number of rows, linear between the points and beyond them."""

    def seconds(rows: float) -> float:
        i = min(max(1, bisect_left(curve, (rows, 0.0))), len(curve) - 1)
        (x0, y0), (x1, y1) = curve[i - 1], curve[i]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)

    return seconds


@dataclass(frozen=True)
class Machine:
    """seconds: of a decode, by its rows. acceptance: probability that a draft token is the target's. draft:
    seconds of a step of the draft model, 0 for no drafts.
    """

    seconds: Callable[[float], float]
    acceptance: float = 0.0
    draft: float = 0.0

    def decode(self, n_texts: int) -> tuple[float, float, int]:
        """(Seconds of a round, tokens that each text gains in it, draft tokens of each): the fastest."""
        choices = []
        for k in range(MOST_DRAFTED + 1 if self.draft else 1):
            tokens = sum(self.acceptance**i for i in range(k + 1))
            choices.append((self.seconds(n_texts * (k + 1)) + k * self.draft, tokens, k))
        return min(choices, key=lambda one: one[0] / one[1])


def simulate(
    machine: Machine, load: Load, n_new: int, per_second: float, n_slots: int, seconds: float
) -> bool:
    """Whether the machine keeps up. n_new: tokens of a prompt that have to be read."""
    rng = random.Random(1)
    rounds = [machine.decode(n) for n in range(1, n_slots + 1)]
    piece_seconds = machine.seconds(PIECE) / PIECE
    arrivals = list(_arrivals(rng, per_second, seconds))
    now, i, running, firsts, speeds = 0.0, 0, list[list[float]](), list[float](), list[float]()
    while i < len(arrivals) or running:
        if not running and arrivals[i] > now:
            now = arrivals[i]
        while i < len(arrivals) and arrivals[i] <= now and len(running) < n_slots:
            running.append([n_new, load.answer, arrivals[i], 0.0])  # to read, to write, arrived, first token
            i += 1
        reading = next((text for text in running if text[0] > 0), None)
        if reading is not None:
            n = min(PIECE, reading[0])
            reading[0] -= n
            now += n * piece_seconds
            if reading[0] <= 0:
                reading[3] = now
                firsts.append(now - reading[2])
        writing = [text for text in running if text[0] <= 0]
        if writing:
            took, tokens, _ = rounds[len(writing) - 1]
            now += took
            for text in writing:
                text[1] -= tokens
                if text[1] <= 0:
                    speeds.append(load.answer / (now - text[3]))
        running = [text for text in running if text[1] > 0]
        if i < len(arrivals) and now - arrivals[i] > 10 * load.first:
            return False  # the queue grows
    firsts.sort(), speeds.sort()
    late, slow = firsts[int(0.95 * (len(firsts) - 1))], speeds[len(speeds) // 2]
    return late <= load.first and slow >= load.rate


def _arrivals(rng: random.Random, per_second: float, seconds: float) -> Iterator[float]:
    at = rng.expovariate(per_second)
    while at < seconds:
        yield at
        at += rng.expovariate(per_second)


def most_per_hour(machine: Machine, load: Load, reused: float, n_slots: int, seconds: float) -> float:
    """Requests an hour with which the machine keeps up, 0 if not even one is fast enough."""
    n_new = max(1, round(load.prompt * (1 - reused)))
    own = n_new * machine.seconds(PIECE) / PIECE + load.answer * machine.decode(1)[0] / machine.decode(1)[1]
    low, high = 0.0, 4.0 * n_slots / own
    for _ in range(STEPS):
        middle = (low + high) / 2
        keeps_up = simulate(machine, load, n_new, middle, n_slots, seconds)
        low, high = (middle, high) if keeps_up else (low, middle)
    return 3600 * low


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--users", type=cli.whole(1), default=1000)
    parser.add_argument("--per-hour", type=cli.whole(1), default=12, help="requests of a user")
    parser.add_argument("--prompt", type=cli.whole(1), default=3000, help="tokens of a prompt")
    parser.add_argument("--answer", type=cli.whole(2), default=300, help="tokens of an answer")
    parser.add_argument("--first", type=cli.whole(1), default=3, help="seconds to a first token")
    parser.add_argument("--rate", type=cli.whole(1), default=10, help="tokens a second of a text")
    parser.add_argument("--slots", type=cli.whole(1), default=64)
    parser.add_argument("--acceptance", type=float, default=0.7)
    parser.add_argument("--draft-cost", type=float, default=0.05, help="of a step, in decodes of one row")
    parser.add_argument("--curve", type=curve_of, default=CURVE, help="milliseconds of a decode by its rows")
    parser.add_argument("--minutes", type=cli.whole(1), default=20, help="simulated")
    given = parser.parse_args()
    if not 0 <= given.acceptance < 1 or not 0 < given.draft_cost < 100:
        parser.error("--acceptance is from 0 to below 1, --draft-cost above 0")
    load = Load(given.prompt, given.answer, given.first, given.rate)
    seconds = seconds_of(given.curve)
    drafting = Machine(seconds, given.acceptance, given.draft_cost * seconds(1))
    print("| prompt reused | drafts | requests an hour | machines |\n|---|---|---|---|")
    for reused in REUSED:
        for drafts, machine in (("no", Machine(seconds)), ("yes", drafting)):
            most = most_per_hour(machine, load, reused, given.slots, 60.0 * given.minutes)
            n = ceil(given.users * given.per_hour / most) if most else "too slow"
            print(f"| {reused:.0%} | {drafts} | {most:,.0f} | {n} |")
    print("\n| texts at once | tokens/s without drafts | draft tokens | gain |\n|---|---|---|---|")
    for n in (1, 2, 4, 8, 16, 32, 64):
        took, tokens, k = drafting.decode(n)
        plain = n / seconds(n)
        print(f"| {n} | {plain:,.0f} | {k} | {n * tokens / took / plain:.2f} x |")


if __name__ == "__main__":
    main()
