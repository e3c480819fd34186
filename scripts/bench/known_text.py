"""What known text gains: a file that is rewritten, forms over a restart, and what a useless corpus costs.

usage: python -m scripts.bench.known_text rewrite MODEL [--lines 300] [--runs 3]
       python -m scripts.bench.known_text forms MODEL [--forms 20] [--runs 3]
       python -m scripts.bench.known_text corpus MODEL [--tokens 400] [--runs 5] [--corpus PATH]

Texts are given, not the model's own, so that any MODEL does. rewrite: a source file of so many lines, with a
renamed variable, a new argument and a deleted branch, written after a prompt that has the old file: plainly,
with the copies of the prompt alone, and with the old file as the prediction. forms: JSON objects of one form
with other values, without earlier ones, after as many in the same process, and after as many in an earlier
one. corpus: prose with a corpus that has nothing in common with it and without, in turn. Rates are tokens per
second, medians of all texts; prints JSON. Run nothing else on the machine.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts import cli
from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.config.load import LoadSettings, ModelSettings
from specllama.prefix_disk.directory import default_directory

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "specllama" / "core" / "scheduler.py"
PROSE = ROOT / "docs" / "exactness.md"
_MOST_SECONDS = 60.0  # to wait for the disk


def write(client: EngineClient, prompt: str, text: str, **more: Any) -> tuple[float, Any]:
    """Write a given text after a prompt: (tokens per second, the counters)."""
    request = m.Generate(client.next_id(), m.TextInput(prompt), {"temperature": 0.0}, forced=text, **more)
    for event in client.generate(request):
        if isinstance(event, m.Done):
            return (event.stats.n_predict - 1) / event.stats.decode_seconds, event.stats
    raise SystemExit("no answer")


def edited(old: str) -> str:
    """The file with a renamed variable, a new argument, and without one branch."""
    new = re.sub(r"\bgeneration\b", "task", old)
    new, n_argument = re.subn(r"(def observe\(self, first: int, n: int)", r"\1, weight: float = 1.0", new)
    new, n_branch = re.subn(r"\n        if round_seconds is None:\n.*", "", new, count=1)
    if new == old or not n_argument:
        raise SystemExit(f"{SOURCE} has changed: it has no such lines any more; or --lines is too small")
    return new if n_branch else new.replace("\n\n\n", "\n\n", 1)


def rewrite(load: LoadSettings, n_lines: int, n_runs: int) -> dict[str, Any]:
    old = "".join(SOURCE.read_text("utf-8").splitlines(True)[:n_lines])
    new, prompt = edited(old), f"Rewrite this file:\n{old}\nThe new file:\n"
    ways: dict[str, dict[str, Any]] = {
        "plain": {"speculate": False}, "copies": {}, "prediction": {"prediction": old},
    }  # fmt: skip
    rates: dict[str, list[float]] = {name: [] for name in ways}
    drafted = {}
    with EngineClient() as client:
        client.load(load)
        for run in range(n_runs + 1):
            for name, way in ways.items():
                rate, stats = write(client, prompt, new, memory=False, **way)
                if run:  # the first one learns
                    rates[name].append(rate)
                drafted[name] = {"rounds": stats.rounds, "n_accept": stats.n_accept, **stats.drafted_by}
    found = {name: statistics.median(each) for name, each in rates.items()}
    return {"tokens": stats.n_predict, "drafted": drafted, "rates": found} | {
        "prediction_over_plain": found["prediction"] / found["plain"],
        "prediction_over_copies": found["prediction"] / found["copies"],
    }


def form(number: int) -> str:
    """A filled form, each of other values."""
    rng = random.Random(number)
    word = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=8))
    return json.dumps(
        {
            "customer": {"name": word.title(), "mail": f"{word}@example.org", "known": rng.random() < 0.5},
            "order": {"number": rng.randrange(10**6), "currency": "EUR", "total": rng.randrange(10**4)},
            "delivery": {"street": f"{word} {rng.randrange(99)}", "country": "Norway", "express": False},
            "comment": None,
        },
        indent=2,
    )


def forms(load: LoadSettings, n_forms: int, n_runs: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"without": [], "same process": [], "after a restart": []}

    def fill(client: EngineClient, first: int, name: str, memory: bool = True) -> None:
        for number in range(first, first + n_forms):
            rate, _ = write(client, "A filled form:\n", form(number), memory=memory)
            if name:
                rates[name].append(rate)

    for run in range(n_runs):
        first = 3 * run * n_forms
        with EngineClient() as client:
            client.load(load)
            fill(client, first, "without", memory=False)
            fill(client, first, "")
            fill(client, first + n_forms, "same process")
            until, files = time.monotonic() + _MOST_SECONDS, default_directory()
            while not list(files.glob("*.memory")) and time.monotonic() < until:
                time.sleep(0.05)
        with EngineClient() as client:
            client.load(load)
            fill(client, first + 2 * n_forms, "after a restart")
        for file in files.glob("*.memory"):
            file.unlink()
    found = {name: statistics.median(each) for name, each in rates.items()}
    before, same = found["without"], found["same process"]
    gains = {"gain": same / before, "gain_after_a_restart": found["after a restart"] / before}
    return {"rates": found, **gains, "share_of_gain": gains["gain_after_a_restart"] / gains["gain"]}


def corpus(load: LoadSettings, n_tokens: int, n_runs: int, path: Path) -> dict[str, Any]:
    prose, rates = PROSE.read_text("utf-8"), dict[str, list[float]](with_corpus=[], without=[])
    with EngineClient() as one, EngineClient() as other:
        one.load(replace(load, memory_from=(str(path),)), measure_when_idle=True)
        other.load(load, measure_when_idle=True)
        until = time.monotonic() + _MOST_SECONDS
        while not one.notices and time.monotonic() < until:  # the line that says what was read
            time.sleep(0.05)
        for run in range(n_runs + 1):
            text = prose[run * 500 : run * 500 + 4 * n_tokens]
            pair = (("with_corpus", one), ("without", other))
            for name, client in pair if run % 2 else pair[::-1]:
                rate, stats = write(client, "A page:\n", text, memory=False)
                if run:
                    rates[name].append(rate)
    ratios = [a / b for a, b in zip(rates["with_corpus"], rates["without"], strict=True)]
    return {"read": one.notices, "tokens": stats.n_predict, "ratios": ratios} | {
        "median_ratio": statistics.median(ratios)
    }


def strange_words(path: Path) -> Path:
    """A file of words that no text has."""
    rng = random.Random(1)
    words = ("".join(rng.choices("qxzjkvw", k=rng.randrange(3, 9))) for _ in range(50_000))
    path.write_text(" ".join(words), "utf-8")
    return path


def main() -> None:
    parser = cli.parser(__doc__)
    parser.add_argument("what", choices=("rewrite", "forms", "corpus"))
    parser.add_argument("model", type=Path, help="the target's file")
    parser.add_argument("--draft", type=Path, help="a draft model's file")
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--forms", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=400, help="of a text, about")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--corpus", type=Path, help="files for `corpus`")
    parser.add_argument("--ctx", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    models = [
        ModelSettings(path=str(path), n_ctx=given.ctx, n_threads=given.threads)
        for path in (given.model, given.draft)
        if path is not None
    ]
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SPECLLAMA_CACHE"] = str(Path(directory) / "cache")
        load = LoadSettings(
            target=models[0],
            draft=models[1] if len(models) > 1 else None,
            cache_disk=1 << 30 if given.what == "forms" else 0,
        )
        if given.what == "rewrite":
            report = rewrite(load, given.lines, given.runs)
        elif given.what == "forms":
            report = forms(load, given.forms, given.runs)
        else:
            path = given.corpus or strange_words(Path(directory) / "words.txt")
            report = corpus(load, given.tokens, given.runs, path)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
