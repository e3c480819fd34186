"""What is asked: the package's own workloads, and prompts of a file. Knows no models and no templates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specllama.bench.samples import Unit
from specllama.errors import NotFoundError, UsageError

MOST_PROMPTS = 10_000
MOST_CHARACTERS = 1 << 20  # of one prompt
MOST_BYTES = 64 << 20  # of a file
LONGEST_NAME = 40
TOTAL = "all"  # the rows over all workloads; none may be called so

_COUNT = (
    "def count(values):\n    total = 0\n    for value in values:\n        total += value\n    return total\n"
)
_PARSE = (
    "def parse(line):\n    name, _, text = line.partition('=')\n    name = name.strip()\n"
    "    if not name:\n        raise ValueError(line)\n    return name, text.strip()\n"
)
_STACK = (
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
    "        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()\n"
)
_COPY = (
    "def copy(source, target):\n    with open(source, 'rb') as file:\n        data = file.read()\n"
    "    with open(target, 'wb') as file:\n        file.write(data)\n    return len(data)\n"
)


def _code(text: str) -> str:
    return f"```python\n{text}```"


WORKLOADS: Mapping[str, tuple[str, ...]] = {
    "explain": (
        "What does shutil.copytree do?",
        "Explain os.walk.",
        "What is the difference between a list and a tuple?",
        "What does functools.lru_cache do?",
    ),
    "source": (
        "Show the source of textwrap.dedent.",
        "Show the source of bisect.insort.",
        "Write a Python function that checks whether a number is prime.",
        "Print the code of shutil.copyfile.",
    ),
    "json": (
        "Turn this into JSON: name Ada Lovelace, age 36, city London, active true",
        "Turn this into JSON: name Grace Hopper, age 85, city New York, job admiral, active false",
        "Extract the fields as JSON.\nname Alan Turing, age 41, city Manchester, job mathematician",
        f"Give the signature of this function as JSON:\n{_code(_COPY)}",
    ),
    "edit": (
        f"Rename `total` to `result` in this code:\n{_code(_COUNT)}",
        f"Rename `name` to `key` in this code:\n{_code(_PARSE)}",
        f"Rename `items` to `entries` in this code:\n{_code(_STACK)}",
        f"Rename `file` to `stream` in this code:\n{_code(_COPY)}",
    ),
    "free": (
        "Hello! What can you help me with?",
        "Why should a file be closed after it was read?",
        "Write a docstring for a function that merges two sorted lists.",
        "Write a few sentences about a program that counts the words of a book.",
    ),
}


def load(path: str) -> dict[str, tuple[str, ...]]:
    """The workloads of a file: a JSON object, name → list of prompts.

    Raises NotFoundError without the file, UsageError naming what is wrong in it.
    """
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)  # it may be a device without an end
        if len(raw) > MOST_BYTES:
            raise UsageError(f"--prompts: {path} is larger than {MOST_BYTES >> 20} MiB")
        found = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_once)
    except FileNotFoundError:
        raise NotFoundError(f"--prompts: there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"--prompts: {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompts: {path} is not UTF-8, at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UsageError(f"--prompts: {path} is no JSON: {why}", _SHAPE) from None
    return check(found, f"--prompts: {path}")


_SHAPE = 'it has to be an object of lists of texts: {"chat": ["Who was Ada Lovelace?", ...], ...}'


def check(found: Any, where: str) -> dict[str, tuple[str, ...]]:
    """The same from what JSON gave. Raises UsageError, its message beginning with `where`."""
    if not isinstance(found, dict) or not found:
        raise UsageError(f"{where} has no workloads" if found == {} else f"{where} is no JSON object", _SHAPE)
    workloads, n = {}, 0
    for name, prompts in found.items():
        if not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME or name == TOTAL:
            raise UsageError(
                f"{where}: {name[:LONGEST_NAME]!r} cannot name a workload",
                f"1 to {LONGEST_NAME} printable characters, without {TOTAL!r}",
            )
        if not isinstance(prompts, list) or not prompts:
            raise UsageError(f"{where}: {name} has to be a list with at least one prompt", _SHAPE)
        for i, prompt in enumerate(prompts, 1):
            if problem := _problem(prompt):
                raise UsageError(f"{where}: prompt {i} of {name} {problem}")
        n += len(prompts)
        workloads[name] = tuple(prompts)
    if n > MOST_PROMPTS:
        raise UsageError(f"{where} has {n} prompts, {MOST_PROMPTS} are allowed")
    return workloads


def _problem(prompt: Any) -> str:
    if not isinstance(prompt, str):
        return f"is no text but {json.dumps(prompt)[:40]}"
    if not prompt.strip():
        return "is empty"
    if len(prompt) > MOST_CHARACTERS:
        return f"has {len(prompt)} characters, {MOST_CHARACTERS} are allowed"
    if any("\ud800" <= c <= "\udfff" for c in prompt):
        return "has half a character (a lone surrogate)"
    return ""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found


def chosen(workloads: Mapping[str, tuple[str, ...]], names: str | None) -> dict[str, tuple[str, ...]]:
    """Those of the workloads that a list with commas names, in its order. Raises UsageError."""
    if names is None:
        return dict(workloads)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UsageError("--workloads names none", f"there are: {', '.join(workloads)}")
    for name in wanted:
        if name not in workloads:
            raise UsageError(f"--workloads: no workload {name!r}", f"there are: {', '.join(workloads)}")
    return {name: workloads[name] for name in wanted}


def units(workloads: Mapping[str, tuple[str, ...]], temperatures: Iterable[float]) -> list[Unit]:
    """Every prompt at every temperature."""
    return [
        Unit(name, i, prompt, temperature)
        for temperature in temperatures
        for name, prompts in workloads.items()
        for i, prompt in enumerate(prompts, 1)
    ]
