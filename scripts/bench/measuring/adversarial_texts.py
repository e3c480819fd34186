"""Texts, as ids, for which drafts cease to be accepted or never are."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

STRETCH = 50  # copied tokens, followed by as many new ones
MODULES = (
    "argparse.py", "ast.py", "bdb.py", "calendar.py", "configparser.py", "csv.py", "difflib.py", "doctest.py",
    "fractions.py", "ftplib.py", "heapq.py", "inspect.py", "locale.py", "mailbox.py", "optparse.py", "pdb.py",
    "pickle.py", "random.py", "shutil.py", "smtplib.py", "statistics.py", "tarfile.py", "textwrap.py",
    "threading.py", "turtle.py", "uuid.py", "zipfile.py",
)  # fmt: skip


def sources(n: int, seed: int, library: Path | None = None) -> list[str]:
    """Sources of `n` modules of this Python's standard library, in random order."""
    root = library or Path(sysconfig.get_paths()["stdlib"])
    paths = [root / name for name in MODULES if (root / name).is_file()]
    chosen = random.Random(seed).sample(paths, min(n, len(paths)))
    return [path.read_text("utf-8") for path in chosen]


def switching(prompt: Sequence[int], new: Sequence[int], n: int, rng: random.Random) -> list[int]:
    """`n` ids: STRETCH from a random place of the prompt, then STRETCH of `new`, and so on."""
    found: list[int] = []
    fresh = _stretches(new)
    while len(found) < n:
        at = rng.randrange(max(1, len(prompt) - STRETCH))
        found += [*prompt[at : at + STRETCH], *next(fresh)]
    return found[:n]


def dropping(own: Sequence[int], new: Sequence[int], n: int) -> list[int]:
    """`n` ids: one half is the model's own text, the other one it would not write: another text, reversed."""
    first = list(own[: n // 2])
    return [*first, *reversed(new[: n - len(first)])]


def noise(words: Sequence[int], n: int, rng: random.Random) -> list[int]:
    """`n` ids, uniformly random."""
    return rng.choices(words, k=n)


def _stretches(new: Sequence[int]) -> Iterator[Sequence[int]]:
    while True:
        for at in range(0, len(new) - STRETCH + 1, STRETCH):
            yield new[at : at + STRETCH]
