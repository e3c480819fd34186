"""Files that clients read: written atomically, after a copy of what was there. Each change keeps what is not
its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specllama.cli.launch.client import ClientFile
from specllama.errors import ResourceError, UsageError
from specllama.json_types import JsonObject
from specllama.regular_file import read_regular

COPY = ".before-specllama"
_MAX_BYTES = 4 << 20
_PRIVATE = 0o600
_ITEM = re.compile(r"^-(?=\s|$)", re.M)


def changed(file: ClientFile) -> tuple[str | None, str]:
    """The text of the file, None if there is none, and the new one. Raises UsageError."""
    try:
        data = read_regular(file.path, _MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise UsageError(f"{file.path} is too large for a file of settings")
        before: str | None = data.decode("utf-8")
    except FileNotFoundError:
        before = None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file.path} cannot be read: {error}", "it was left as it is") from None
    try:
        return before, file.change(before)
    except UsageError as error:
        raise error.prefixed(f"{file.path}: ") from None


def write(file: ClientFile) -> Path | None:
    """Change the file, if the change changes anything. The first time, a copy of what was there stays next to
    it, and later ones do not replace it. Returns the path of a new copy. Raises UsageError, ResourceError.
    """
    before, after = changed(file)
    if before == after:
        return None
    path = file.path.resolve()  # a link stays one
    copy = path.with_name(path.name + COPY)
    made = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if before is not None and not file.own and not copy.exists():
            shutil.copy2(path, copy)
            made = copy
    except OSError as error:
        raise _unwritable(path, error) from None
    _replace(path, after, keeps_mode=before is not None and not file.own)
    return made


def _replace(path: Path, text: str, keeps_mode: bool) -> None:
    """Write a file as a whole. keeps_mode: it has that of the file before. Raises ResourceError."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "w", -1, "utf-8") as f:
            f.write(text)
        if keeps_mode:
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> ResourceError:
    return ResourceError(f"{path} cannot be written: {error.strerror or error}")


def remove_entry(path: Path, entry: Mapping[str, Any]) -> bool:
    """Remove the item with these values from a YAML list of objects; a file with nothing else is removed.
    Returns whether there was one. Raises UsageError, ResourceError.
    """
    before, after = changed(ClientFile(path, yaml_without(entry)))
    if before is None or before == after:
        return False
    path = path.resolve()
    if after.strip():
        _replace(path, after, keeps_mode=True)
        return True
    try:
        path.unlink()  # an empty one is no list, which its reader may not expect
    except OSError as error:
        raise _unwritable(path, error) from None
    return True


def parsed_object(text: str) -> JsonObject:
    """A JSON object. Raises UsageError for another text."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is not JSON: {error}", "it was left as it is; correct or move it") from None
    if not isinstance(parsed, dict):
        raise UsageError("is not a JSON object", "it was left as it is; correct or move it")
    return parsed


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> JsonObject:
    """The old object with the values of the new one, objects within merged."""
    entries = dict(old)
    for name, value in new.items():
        before = entries.get(name)
        entries[name] = (
            merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
        )
    return entries


def yaml_item(name: str, item: Mapping[str, Any]) -> Callable[[str | None], str]:
    """A change that puts an item into a YAML list of objects, instead of the one with the same `name`. The
    text of other items stays as it is, with its comments.
    """

    block = "- " + "\n  ".join(f"{key}: {json.dumps(value)}" for key, value in item.items()) + "\n"

    def change(text: str | None) -> str:
        text = text or ""
        old = _yaml_list(text)
        if not old:
            kept = re.sub(r"(?m)^\[ *\]", "", text).strip()
            return (kept + "\n" if kept else "") + block
        same = [i for i, one in enumerate(old) if isinstance(one, dict) and one.get(name) == item[name]]
        ends = [match.start() for match in _ITEM.finditer(text)] + [len(text)]
        if len(ends) != len(old) + 1:
            raise _cannot_extend(block)
        before = text[: ends[same[0]]] if same else text.rstrip("\n") + "\n"
        after = before + block + (text[ends[same[0] + 1] :] if same else "")
        index = same[0] if same else len(old)
        if _yaml_list(after) != [*old[:index], dict(item), *old[index + 1 :]]:
            raise _cannot_extend(block)
        return after

    return change


def yaml_without(entry: Mapping[str, Any]) -> Callable[[str | None], str]:
    """A change that removes the item with these values from a YAML list of objects. The text of other items
    stays as it is.
    """

    def change(text: str | None) -> str:
        text = text or ""
        old = _yaml_list(text)
        same = [i for i, one in enumerate(old) if isinstance(one, dict) and entry.items() <= one.items()]
        ends = [match.start() for match in _ITEM.finditer(text)] + [len(text)]
        if not same or len(ends) != len(old) + 1:
            return text
        after = text[: ends[same[0]]] + text[ends[same[0] + 1] :]
        return after if _yaml_list(after) == [*old[: same[0]], *old[same[0] + 1 :]] else text

    return change


def _cannot_extend(block: str) -> UsageError:
    return UsageError("is a list in a form that cannot be extended", f"add this to it:\n{block.rstrip()}")


def _yaml_list(text: str) -> list[Any]:
    import yaml  # type: ignore[import-untyped]

    try:
        items = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"is not YAML: {reason}", "it was left as it is; correct or move it") from None
    if items is None:
        return []
    if not isinstance(items, list):
        raise UsageError("is not a list", "it was left as it is; correct or move it")
    return items
