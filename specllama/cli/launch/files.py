"""Files that clients read: written atomically, after a copy of what was there. Each change keeps what is
not its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama import wire
from specllama.cli.launch.client import Client, ClientFile, ClientSettings
from specllama.cli.launch.server import ServeCommand
from specllama.config.store import cache_dir
from specllama.errors import ResourceError, SpecllamaError, UsageError
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


# Entries for a server that `launch` has started, in files that a client keeps.
#
# They are removed when the server ends, those of a launch that was killed by the next one. A record of each
# stands in the cache while its launch runs, which holds a lock that the system releases.


_MAX_RECORD_BYTES = 64 * 1024  # of a record


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record: the entry in the file of a client."""

    path: str
    entry: Mapping[str, Any]


def _folder() -> Path:
    return cache_dir() / "launch" / "entries"


@contextlib.contextmanager
def entry_while_running(file: ClientFile) -> Iterator[None]:
    """Remove the entry of a file at the end of the block, also after a crash. Raises ResourceError if its
    record cannot be written.
    """
    from filelock import FileLock

    assert file.entry is not None
    record = _folder() / f"{secrets.token_hex(8)}.json"
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(record.with_suffix(".lock")):
            with record.open("x", encoding="utf-8") as new:
                new.write(wire.to_json(_Entry(str(file.path), file.entry)))
            try:
                yield
            finally:
                with contextlib.suppress(SpecllamaError):  # the next launch tries again
                    remove_entry(file.path, file.entry)
                    record.unlink(missing_ok=True)
    except OSError as error:
        raise ResourceError(f"{record.parent} cannot be written: {error.strerror or error}") from None
    record.with_suffix(".lock").unlink(missing_ok=True)


def remove_left() -> list[Path]:
    """Remove the entries of launches that were killed. Returns the files that were changed; what cannot be
    read or changed is left for the next time.
    """
    from filelock import FileLock, Timeout

    changed = []
    for record in sorted(_folder().glob("*.json")) if _folder().is_dir() else ():
        lock = FileLock(record.with_suffix(".lock"))
        with contextlib.suppress(OSError, ValueError, SpecllamaError, Timeout):
            with lock.acquire(blocking=False):
                left = wire.from_file(_Entry, record, _MAX_RECORD_BYTES)
                changed += [Path(left.path)] if remove_entry(Path(left.path), left.entry) else []
                record.unlink()
            record.with_suffix(".lock").unlink(missing_ok=True)
    return changed


# What `launch --print` shows: a script for the shell, without the key itself.


SHOWN_KEY = "$SPECLLAMA_API_KEY"
"""Instead of the server's key."""


def printed(
    client: Client, settings: ClientSettings, arguments: Sequence[str], own: ServeCommand | None
) -> str:
    """The lines. own: the server that would be started, if one would."""
    return "".join(f"{line}\n" for line in _lines(client, settings, arguments, own))


def _lines(
    client: Client, settings: ClientSettings, arguments: Sequence[str], own: ServeCommand | None
) -> Iterator[str]:
    if own is not None:
        yield f"{shlex.join(['specllama', 'serve', *own.flags])} &"
    for file in settings.files:
        before, after = changed(file)
        yield f"# {file.path} " + ("stays as it is" if before == after else "becomes:")
        if before != after:
            yield from (f"#   {line}" for line in after.splitlines())
    yield from (f"unset {name}" for name in settings.removed)
    for name, value in settings.variables.items():
        quoted = f'"{value}"' if value == SHOWN_KEY else shlex.quote(value)
        yield f"export {name}={quoted}"
    yield shlex.join([client.program, *settings.arguments, *arguments])
