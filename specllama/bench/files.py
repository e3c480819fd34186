"""Files that say what is to be measured: read, bounded and checked. Knows no models and no templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specllama.errors import NotFoundError, UsageError

MOST_PROMPTS = 10_000
MOST_CHARACTERS = 1 << 20  # of one prompt
MOST_BYTES = 64 << 20  # of a file
LONGEST_NAME = 40
TOTAL = "all"  # the rows over all workloads; none may be called so


def text_of(path: str, flag: str) -> str:
    """The text of a file. Raises NotFoundError without it, UsageError naming what is wrong with it."""
    if not path.strip() or "\0" in path:
        raise UsageError(f"{flag} needs the path of a file")
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)  # it may be a device without an end
        if len(raw) > MOST_BYTES:
            raise UsageError(f"{flag}: {path} is larger than {MOST_BYTES >> 20} MiB")
        return raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise NotFoundError(f"{flag}: there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"{flag}: {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag}: {path} is not UTF-8, at byte {error.start}") from None


def json_of(text: str, where: str, shape: str) -> Any:
    """What the JSON text says. Raises UsageError, its message beginning with `where`, `shape` as the hint."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UsageError(f"{where} is no JSON: {why}", shape) from None


def by_workload(
    found: Any, where: str, shape: str, what: str, problem: Callable[[Any], str]
) -> dict[str, list[Any]]:
    """The lists of a JSON object, each under a name that a workload may have.

    what: the word for an item; problem: what is wrong with one, "" for nothing. Raises UsageError as
    `json_of`.
    """
    if not isinstance(found, dict) or not found:
        raise UsageError(f"{where} has no workloads" if found == {} else f"{where} is no JSON object", shape)
    for name, items in found.items():
        if not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME or name == TOTAL:
            raise UsageError(
                f"{where}: {name[:LONGEST_NAME]!r} cannot name a workload",
                f"1 to {LONGEST_NAME} printable characters, without {TOTAL!r}",
            )
        if not isinstance(items, list) or not items:
            raise UsageError(f"{where}: {name} has to be a list with at least one {what}", shape)
        for i, item in enumerate(items, 1):
            if wrong := problem(item):
                raise UsageError(f"{where}: {what} {i} of {name} {wrong}", shape)
    n = sum(map(len, found.values()))
    if n > MOST_PROMPTS:
        raise UsageError(f"{where} has {n} {what}s, {MOST_PROMPTS} are allowed")
    return dict(found)


def problem(text: Any) -> str:
    """Why this cannot be a prompt, or the text behind one; "" where it can."""
    if not isinstance(text, str):
        return f"is no text but {json.dumps(text)[:40]}"
    if not text.strip():
        return "is empty"
    if len(text) > MOST_CHARACTERS:
        return f"has {len(text)} characters, {MOST_CHARACTERS} are allowed"
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "has half a character (a lone surrogate)"
    return ""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found
