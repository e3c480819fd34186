"""The next turn after kill -9 and a restart, and how fast texts are written with prompts on disk and without.

usage: python -m scripts.bench.prefix_restart restart SHAPE [--tokens 8000] [--model PATH]
       python -m scripts.bench.prefix_restart rate SHAPE [--pairs 6] [--text 200] [--model PATH]

SHAPE: of scripts.bench.random_shapes, whose random weights are written to PATH, or to a temporary file,
unless they are there.

restart: an engine process evaluates a prompt, writes a few tokens, is killed once the state is on disk, and
another one goes on. rate: two engine processes, one with a directory of prompts and one without, write in
turn; the first one writes the state of a prompt to the disk meanwhile. Prints JSON. Run nothing else on the
machine.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts import cli
from scripts.bench.random_shapes import SHAPES, write
from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.config.load import LoadSettings, ModelSettings
from specllama.prefix_disk.directory import default_directory

_N_NEW, _N_ANSWER = 16, 4  # ids of the next turn, and of the answer before it
_N_PROMPT = 96  # ids of a prompt, for the rate
_MOST_SECONDS = 60.0  # to wait for the disk


def settings(path: Path, n_ctx: int, n_threads: int, disk: int) -> LoadSettings:
    target = ModelSettings(path=str(path), n_ctx=n_ctx, n_threads=n_threads)
    return LoadSettings(
        target=target, drafters=(), memory=False, calibrate=False, cache_disk=disk, kept_seconds=0.0
    )


def ask(client: EngineClient, ids: list[int], n: int) -> tuple[m.Done, list[int]]:
    """Evaluate ids and write n tokens: (the last message, the tokens)."""
    params = {"max_tokens": n, "temperature": 0.0, "ignore_eos": True}
    written = list[int]()
    for event in client.generate(m.Generate(client.next_id(), m.MixedInput([ids]), params)):
        if isinstance(event, m.Tokens):
            written += [i for item in event.items for i in item.ids]
        if isinstance(event, m.Done):
            return event, written
    raise SystemExit("no answer")


def wait_for_state() -> Path:
    """The file of a state, once there is one."""
    until = time.monotonic() + _MOST_SECONDS
    while not (states := list(default_directory().glob("*.state"))):
        if time.monotonic() > until:
            raise SystemExit("the state was not written")
        time.sleep(0.05)
    return states[0]


def prompt(n: int, seed: int = 5) -> list[int]:
    return [seed + i * 7 % 1900 for i in range(n)]


def restart(path: Path, n_tokens: int, n_threads: int) -> dict[str, Any]:
    loads = settings(path, n_tokens + 512, n_threads, 1 << 34)
    ids = prompt(n_tokens)
    with EngineClient() as client:
        client.load(loads)
        first, answer = ask(client, ids, _N_ANSWER)
        state_bytes = wait_for_state().stat().st_size
        os.kill(client.pid, signal.SIGKILL)
    with EngineClient() as client:
        client.load(loads)
        done, _ = ask(client, [*ids, *answer, *prompt(_N_NEW, 9)], 1)
    reading, again = first.stats.ttft_seconds, done.stats.ttft_seconds
    new = reading / n_tokens * done.stats.n_evaluated
    return {
        "tokens": n_tokens,
        "state_bytes": state_bytes,
        "read_seconds": round(reading, 2),
        "next_turn_seconds": round(again, 2),
        "next_turn_evaluated": done.stats.n_evaluated,
        "next_turn_from_disk": done.stats.n_from_disk,
        "share": round(again / reading, 4),
        "share_without_new_tokens": round(max(0.0, again - new) / reading, 4),
    }


def rate(path: Path, n_pairs: int, n_text: int, n_threads: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"on": [], "off": []}
    with EngineClient() as on, EngineClient() as off:
        on.load(settings(path, 1024, n_threads, 1 << 34))
        off.load(settings(path, 1024, n_threads, 0))
        for i in range(n_pairs + 1):
            order = (("on", on), ("off", off)) if i % 2 else (("off", off), ("on", on))
            for name, client in order:
                done, _ = ask(client, prompt(_N_PROMPT, 5 + 11 * i), n_text)
                if i:
                    rates[name].append((n_text - 1) / done.stats.decode_seconds)
                time.sleep(0.35)  # idle: the state is copied, and written during the next text
    ratios = [a / b for a, b in zip(rates["on"], rates["off"], strict=True)]
    found = {name: round(statistics.median(each), 3) for name, each in rates.items()}
    return {"tokens_per_second": found, "ratios": [round(r, 3) for r in ratios]} | {
        "median_ratio": round(statistics.median(ratios), 4),
        "n_states": len(list(default_directory().glob("*.state"))),
    }


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("what", choices=("restart", "rate"))
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--text", type=int, default=200, help="tokens of a text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, help="its file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SPECLLAMA_CACHE"] = str(Path(directory) / "cache")
        path = given.model or Path(directory) / f"{given.shape}.gguf"
        if not path.exists():
            write(path, SHAPES[given.shape])
        if given.what == "restart":
            report = restart(path, given.tokens, given.threads)
        else:
            report = rate(path, given.pairs, given.text, given.threads)
    print(json.dumps({"shape": given.shape} | report, indent=2))


if __name__ == "__main__":
    main()
