"""What is asked: the package's own workloads, and prompts of a file. Knows no models and no templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from specllama.bench import files
from specllama.bench.samples import Given, Unit
from specllama.errors import UsageError

_Tasks = TypeVar("_Tasks")

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


_SHAPE = 'it has to be an object of lists of texts: {"chat": ["Who was Ada Lovelace?", ...], ...}'


def load(path: str) -> dict[str, tuple[str, ...]]:
    """The workloads of a file: a JSON object, name → list of prompts.

    Raises NotFoundError without the file, UsageError naming what is wrong in it.
    """
    where = f"--prompts: {path}"
    return check(files.json_of(files.text_of(path, "--prompts"), where, _SHAPE), where)


def check(found: Any, where: str) -> dict[str, tuple[str, ...]]:
    """The same from what JSON gave. Raises UsageError, its message beginning with `where`."""
    checked = files.by_workload(found, where, _SHAPE, "prompt", files.problem)
    return {name: tuple(prompts) for name, prompts in checked.items()}


def chosen(workloads: Mapping[str, _Tasks], names: str | None) -> dict[str, _Tasks]:
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


def units(workloads: Mapping[str, tuple[str | Given, ...]], temperatures: Iterable[float]) -> list[Unit]:
    """Every prompt at every temperature."""
    return [
        Unit(name, i, task, t) if isinstance(task, str) else Unit(name, i, task.prompt, t, task)
        for t in temperatures
        for name, tasks in workloads.items()
        for i, task in enumerate(tasks, 1)
    ]
