"""Texts that are given: `bench --text` measures how fast they are written, not what a model would write."""

from __future__ import annotations

import json
from typing import Any

from specllama.bench import files
from specllama.bench.samples import Given
from specllama.errors import UsageError

NAME = "text"  # the workload that a plain text is
PROMPT_SHARE = 4  # the first of so many parts of a plain text is the prompt
_SHAPE = 'it has to be an object of lists: {"edit": [{"prompt": "Rename ...", "text": "def ..."}, ...], ...}'


def load(path: str) -> dict[str, tuple[Given, ...]]:
    """The given texts of a file, by workload.

    A file called *.json is an object, workload to list of {"prompt", "text"}, the prompts as of chats. Any
    other is one text that is gone on with behind its first part. Raises NotFoundError without the file,
    UsageError naming what is wrong in it.
    """
    where, text = f"--text: {path}", files.text_of(path, "--text")
    if not path.lower().endswith(".json"):
        return {NAME: (_plain(text, where),)}
    found = files.by_workload(files.json_of(text, where, _SHAPE), where, _SHAPE, "entry", _problem)
    return {name: tuple(Given(e["prompt"], e["text"]) for e in entries) for name, entries in found.items()}


def cut(text: str) -> tuple[str, str]:
    """The prompt and what is written behind it: cut at the first end of a line behind a quarter of the text,
    else in front of a word, else anywhere.
    """
    least = max(1, len(text) // PROMPT_SHARE)
    most = max(least, len(text) // 2)
    at = text.find("\n", least - 1, most) + 1 or text.find(" ", least, most)
    at = at if at > 0 else least
    return text[:at], text[at:]


def _plain(text: str, where: str) -> Given:
    if "\0" in text:
        raise UsageError(f"{where} is no text, it holds NUL bytes")
    if wrong := files.problem(text):
        raise UsageError(f"{where} {wrong}")
    prompt, rest = cut(text)
    if not rest.strip():
        raise UsageError(f"{where} is too short to be cut into a prompt and a text behind it")
    return Given(prompt, rest, raw=True)


def _problem(entry: Any) -> str:
    if not isinstance(entry, dict):
        return f"is no object but {json.dumps(entry)[:40]}"
    if entry.keys() != {"prompt", "text"}:
        return f"has to have 'prompt' and 'text', not {', '.join(map(repr, entry)) or 'nothing'}"[:200]
    for name in ("prompt", "text"):
        if wrong := files.problem(entry[name]):
            return f"has a {name} that {wrong}"
    return ""
