"""`specllama models verify`: whether downloaded files are still what the hub says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from specllama.cli import console
from specllama.cli.progress import DownloadProgress, library
from specllama.errors import IntegrityError
from specllama.json_types import JsonObject
from specllama.models.demo import DemoStore
from specllama.models.installed import InstalledModel, installed_models, select
from specllama.models.installed import verify as verify_file
from specllama.models.names import DEMO
from specllama.models.progress import DownloadState

EXAMPLES = """
Examples:
  specllama models verify
  specllama models verify 8B:Q8_0

Ends with exit code 6 where a file is not what the hub says it is.
"""


def verify(given: Mapping[str, Any]) -> int:
    """Hash files in the cache again and print which are intact; returns the exit code.

    Raises NotFoundError, and IntegrityError for the first damaged file, once all are verified.
    """
    known, names = library(), given.get("names", ())
    demo = DemoStore(known.environ)
    if names:
        todo = [file for name in names if name != DEMO for m in select(known, name) for file in _files(m)]
    else:
        todo = [file for model in installed_models(known) for file in _files(model)]
    if DEMO in names or (not names and demo.is_on_disk()):
        todo.append(_File(DEMO, demo.require(), partial(_verify_demo, demo)))
    damaged: list[IntegrityError] = []
    results = list(_verified(todo, damaged))
    if given.get("json"):
        console.data(json.dumps({"schema": "specllama.models-verify/1", "files": results}) + "\n")
        return IntegrityError.exit_code if damaged else 0
    words = {True: "whole  ", False: "DAMAGED", None: "unknown"}
    for one in results:
        console.data(f"{words[one['ok']]} {one['name']} {one['path']}\n")
    if damaged:
        raise damaged[0]
    return 0


class _File(NamedTuple):
    """A file to verify. verify: hashes it, calls its argument with the bytes read so far, and returns False
    where there is nothing to compare the hash with; raises IntegrityError.
    """

    name: str
    path: Path
    verify: Callable[[Callable[[int], None]], bool]


def _files(model: InstalledModel) -> Iterator[_File]:
    for file in model.files:
        yield _File(model.name, file.link, partial(verify_file, file))


def _verify_demo(demo: DemoStore, progress: Callable[[int], None]) -> bool:
    demo.verify(progress)
    return True


def _verified(todo: Sequence[_File], damaged: list[IntegrityError]) -> Iterator[JsonObject]:
    """The files after their verification. damaged: collects the errors."""
    display = DownloadProgress()
    total, done = sum(file.path.stat().st_size for file in todo), 0
    for file in todo:

        def progress(n_bytes: int, name: str = file.path.name, before: int = done) -> None:
            display.state(DownloadState("verifying", name, before + n_bytes, total))

        ok: bool | None = None
        reason = ""
        try:
            ok = file.verify(progress) or None
        except IntegrityError as error:
            damaged.append(error)
            ok, reason = False, error.message
        done += file.path.stat().st_size
        display.clear()
        yield {"name": file.name, "path": str(file.path), "ok": ok, "reason": reason}
