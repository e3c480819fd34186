"""Sessions replayed through the prefix store: the tokens that are evaluated, by the memory that there is.

usage: python -m scripts.bench.prefix_sessions [--file FILE ...] [--seeds 5]

Replays requests through the engine on a table in place of a model, whose caches are cut anywhere ("full") or
at partial states alone ("rollback"), with several budgets of memory. FILE: a session, as a list of bodies of
chat completions, of whose texts four characters count as a token; sessions are mixed at random. Without
files, sessions are made up: agents that share a system prompt, go on, retry and start subagents, and chats of
one turn. Prints JSON: the tokens that were evaluated by budget, and the share of the ids in memory at the end
that another text has too.
"""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts import cli
from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.prefix.stored import Boundary
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.testing import TableContext

N_VOCAB, N_ANSWER, N_SLOTS, SCALE = 64, 6, 2, 10  # made-up lengths are a tenth of real ones
Turn = tuple[list[int], list[Boundary]]


def ids(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(4, N_VOCAB) for _ in range(n)]


def session(rng: random.Random, system: list[int], n_turns: int) -> Iterator[Turn]:
    """The prompts of an agent: each goes on, begins a subagent, or tries again."""
    text, places = list(system), [Boundary(len(system), "system")]
    for _ in range(n_turns):
        places = [*places, Boundary(len(text), "user")]
        text = [*text, *ids(rng, rng.randrange(200, 1500) // SCALE)]
        yield text, places[-4:]
        if rng.random() < 0.2:
            part = [*system, *ids(rng, 800 // SCALE)]
            yield part, [Boundary(len(system), "system")]
        if rng.random() < 0.15:
            yield text, places[-4:]


def made_up(rng: random.Random) -> list[list[Turn]]:
    """Sessions of agents, and chats of one turn."""
    systems = [ids(rng, rng.randrange(4000, 9000) // SCALE) for _ in range(3)]
    agents = [list(session(rng, rng.choice(systems), rng.randrange(4, 14))) for _ in range(8)]
    chats = [[(ids(rng, rng.randrange(300, 4000) // SCALE), [])] for _ in range(30)]
    return [*agents, *chats]


def recorded(path: Path) -> list[Turn]:
    """The prompts of a file of requests, with the starts of user messages."""
    found = list[Turn]()
    for body in json.loads(path.read_text("utf-8")):
        text, places = "", list[Boundary]()
        for message in [{"role": "tools", "content": body.get("tools", [])}, *body["messages"]]:
            if message["role"] == "user" and text:
                places.append(Boundary(len(text) // 4, "user"))
            text += json.dumps(message)
        tokens = [4 + zlib.crc32(text[i : i + 4].encode()) % (N_VOCAB - 4) for i in range(0, len(text), 4)]
        found.append((tokens, places[-4:]))
    return found


def mixed(rng: random.Random, sessions: Sequence[list[Turn]]) -> list[Turn]:
    """The turns of several sessions, a few of which are active at a time."""
    waiting, active, found = list(sessions), list[list[Turn]](), list[Turn]()
    rng.shuffle(waiting)
    while waiting or active:
        while waiting and len(active) < 5:
            active.append(list(waiting.pop()))
        one = rng.choice(active)
        found.append(one.pop(0))
        active = [each for each in active if each]
    return found


def replay(turns: Sequence[Turn], memory: Any, budget: float) -> tuple[int, float]:
    """(Tokens evaluated, the share of the ids in memory at the end that another text has too)."""
    ticks = itertools.count()
    target = TableContext(N_VOCAB, 1 << 18, N_SLOTS, memory, n_batch=512)
    target.partial_bytes = 50
    engine = Engine(
        target,
        Fixed([], 0),
        end_ids={3},
        clock=lambda: next(ticks) * 1e-4,
        room=lambda _: True,
        cache_budget=budget,
    )
    n = 0
    for prompt, places in turns:
        params = SamplingParams(temperature=1.0, max_tokens=N_ANSWER, ignore_eos=True)
        generation = engine.submit(Request(prompt, params, 7, boundaries=places))
        while engine.busy:
            engine.step()
        n += generation.stats.n_evaluated
    texts = engine.scheduler.store.state_cache.texts
    shared, held = sum(t.n_shared for t in texts), sum(len(t.ids) for t in texts)
    return n, shared / max(1, held)


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("--file", type=Path, nargs="*", default=[], help="recorded sessions")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for memory in ("full", "rollback"):
        for budget in (1000, 2000, 3000, 5000, 10_000):
            evaluated, shares = 0, list[float]()
            for seed in range(given.seeds):
                rng = random.Random(seed)
                sessions = [recorded(path) for path in given.file] or made_up(rng)
                turns = mixed(rng, sessions)
                n, share = replay(turns, memory, budget)
                evaluated += n
                shares.append(share)
            found[f"{memory} {budget}"] = {
                "evaluated": evaluated,
                "shared": round(sum(shares) / len(shares), 3),
            }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
