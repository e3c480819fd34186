"""The names of the parts of a split model."""

from __future__ import annotations

import re

from specllama.errors import IntegrityError

_SPLIT_NAME = re.compile(r"(?s)(.*)-(\d{5})-of-(\d{5})\.gguf")


def part_form(n_parts: int) -> str:
    """How the first part of so many is named."""
    return f"…-00001-of-{n_parts:05d}.gguf"


def part_names(path: str, number: int, n_parts: int) -> list[str]:
    """The names of all parts, from the first one's path, which says that it is part `number`, counted from 0.
    Raises IntegrityError for another part, or another name.
    """
    match = _SPLIT_NAME.fullmatch(path)
    if number:
        hint = "Name the first part."
        if match:
            hint = f"Name the first part: {match[1]}-00001-of-{n_parts:05d}.gguf"
        raise IntegrityError(f"{path}: part {number + 1} of {n_parts} of a split model", hint)
    if not match or int(match[2]) != 1 or int(match[3]) != n_parts:
        reason = f"the first of {n_parts} parts must be named {part_form(n_parts)}"
        raise IntegrityError(f"{path}: {reason}", "Give the parts their original names.")
    return [f"{match[1]}-{i + 1:05d}-of-{n_parts:05d}.gguf" for i in range(n_parts)]
