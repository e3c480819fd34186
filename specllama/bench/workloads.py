"""The prompts and texts of a bench: the built-in workloads, `--prompts` and `--text` files.

Reads and checks files. Knows no models and no chat templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from specllama.bench.runner import BenchCase, ForcedText
from specllama.config.text_file import read_text
from specllama.errors import UsageError
from specllama.json_types import JsonObject, why_not_json
from specllama.regular_file import table_of

MAX_PROMPTS = 10_000
MAX_CHARACTERS = 1 << 20  # of one prompt
MAX_BYTES = 64 << 20  # of a file
MAX_NAME = 40  # characters
TOTAL = "all"  # names the row over all workloads, so no workload may have this name
TEXT = "text"  # the workload of a plain --text file
PROMPT_SHARE = 4  # the prompt is about a quarter of a plain text

_PROMPTS_SHAPE = 'it has to be an object of lists of texts: {"chat": ["Who was Ada Lovelace?", ...], ...}'
_TEXTS_SHAPE = (
    'it has to be an object of lists: {"edit": [{"prompt": "Rename ...", "text": "def ..."}, ...], ...}'
)
_Tasks = TypeVar("_Tasks")

WORKLOADS: Mapping[str, tuple[str, ...]] = {
    name: tuple(prompts) for name, prompts in table_of(__file__).items()
}


def load_prompts(path: str | None) -> Mapping[str, tuple[str, ...]]:
    """The workloads of a `--prompts` file: a JSON object, name → list of prompts; the built-in ones for None.

    Raises NotFoundError if there is no such file, UsageError if its content is wrong.
    """
    if path is None:
        return WORKLOADS
    where = f"--prompts: {path}"
    data = _parse_json(read_text(path, "prompts", MAX_BYTES), where, _PROMPTS_SHAPE)
    checked = _check_workloads(data, where, _PROMPTS_SHAPE, "prompt", _text_problem)
    return {name: tuple(prompts) for name, prompts in checked.items()}


def load_texts(path: str) -> dict[str, tuple[ForcedText, ...]]:
    """The workloads of a `--text` file, whose texts are written whatever the model would write.

    A *.json file is an object, name → list of {"prompt", "text"}, with prompts as in a chat. Any other file
    is one text: its beginning is the prompt, the rest is written. Raises NotFoundError if there is no such
    file, UsageError if its content is wrong.
    """
    where, text = f"--text: {path}", read_text(path, "text", MAX_BYTES)
    if not path.lower().endswith(".json"):
        if "\0" in text:
            raise UsageError(f"{where} is not a text, it holds NUL bytes")
        if wrong := _text_problem(text):
            raise UsageError(f"{where} {wrong}")
        prompt, rest = split_text(text)
        if not rest.strip():
            raise UsageError(f"{where} is too short to be split into a prompt and its continuation")
        return {TEXT: (ForcedText(prompt, rest, raw=True),)}
    data = _parse_json(text, where, _TEXTS_SHAPE)
    entries_of = _check_workloads(data, where, _TEXTS_SHAPE, "entry", _entry_problem)
    return {
        name: tuple(ForcedText(e["prompt"], e["text"]) for e in entries)
        for name, entries in entries_of.items()
    }


def split_text(text: str) -> tuple[str, str]:
    """A prompt and its continuation: split at the first line end after a quarter of the text, else before a
    word, else anywhere. The prompt is never empty and at most half of a text of two characters or more.
    """
    least = max(1, len(text) // PROMPT_SHARE)
    most = max(least, len(text) // 2)
    at = text.find("\n", least - 1, most) + 1 or text.find(" ", least, most)
    at = at if at > 0 else least
    return text[:at], text[at:]


def select(workloads: Mapping[str, _Tasks], names: str | None) -> dict[str, _Tasks]:
    """The workloads in a comma-separated list, in its order; all of them for None. Raises UsageError."""
    if names is None:
        return dict(workloads)
    selected = [name.strip() for name in names.split(",") if name.strip()]
    if not selected:
        raise UsageError("--workloads names none", f"there are: {', '.join(workloads)}")
    for name in selected:
        if name not in workloads:
            raise UsageError(f"--workloads: no workload {name!r}", f"there are: {', '.join(workloads)}")
    return {name: workloads[name] for name in selected}


def cases(
    workloads: Mapping[str, tuple[str | ForcedText, ...]], temperatures: Iterable[float]
) -> list[BenchCase]:
    """Every prompt at every temperature."""
    return [
        BenchCase(name, i, task, t) if isinstance(task, str) else BenchCase(name, i, task.prompt, t, task)
        for t in temperatures
        for name, tasks in workloads.items()
        for i, task in enumerate(tasks, 1)
    ]


def _parse_json(text: str, where: str, shape: str) -> Any:
    """Raises UsageError with a message that starts with `where` and `shape` as its hint."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {why_not_json(error)}", shape) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> JsonObject:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} appears twice")
    return unique


def _check_workloads(
    data: Any, where: str, shape: str, noun: str, problem: Callable[[Any], str]
) -> dict[str, list[Any]]:
    """A JSON object of non-empty lists under names that a workload may have.

    noun: what an item is called in messages; problem: what is wrong with an item, "" for nothing. Raises
    UsageError with a message that starts with `where` and `shape` as its hint.
    """
    if not isinstance(data, dict) or not data:
        raise UsageError(
            f"{where} has no workloads" if data == {} else f"{where} is not a JSON object", shape
        )
    for name, items in data.items():
        if not name.strip() or not name.isprintable() or len(name) > MAX_NAME or name == TOTAL:
            message = f"{where}: {name[:MAX_NAME]!r} cannot name a workload"
            raise UsageError(message, f"1 to {MAX_NAME} printable characters, not {TOTAL!r}")
        if not isinstance(items, list) or not items:
            raise UsageError(f"{where}: {name} has to be a list with at least one {noun}", shape)
        for i, item in enumerate(items, 1):
            if wrong := problem(item):
                raise UsageError(f"{where}: {noun} {i} of {name} {wrong}", shape)
    n = sum(map(len, data.values()))
    if n > MAX_PROMPTS:
        raise UsageError(f"{where} has {n} {noun}s, {MAX_PROMPTS} are allowed")
    return dict(data)


def _text_problem(text: Any) -> str:
    """Why this cannot be a prompt or a text to write; "" if it can."""
    if not isinstance(text, str):
        return f"is not a text but {json.dumps(text)[:40]}"
    if not text.strip():
        return "is empty"
    if len(text) > MAX_CHARACTERS:
        return f"has {len(text)} characters, {MAX_CHARACTERS} are allowed"
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "has half a character (a lone surrogate)"
    return ""


def _entry_problem(entry: Any) -> str:
    if not isinstance(entry, dict):
        return f"is not an object but {json.dumps(entry)[:40]}"
    if entry.keys() != {"prompt", "text"}:
        return f"has to have 'prompt' and 'text', not {', '.join(map(repr, entry)) or 'nothing'}"[:200]
    for name in ("prompt", "text"):
        if wrong := _text_problem(entry[name]):
            return f"has a {name} that {wrong}"
    return ""
