"""Detects changes of the files of a loaded model.

llama.cpp maps them: overwriting a file in place changes the weights in memory, and so the answers. Replacing
a file by another (as downloads do) leaves the mapped one intact.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from specllama.config.load import LoadSettings
from specllama.regular_file import open_regular

_BLOCKS, _BLOCK_BYTES = 64, 4096  # compared if the modification time has changed
_FIRST_PART = re.compile(r"(.*)-00001-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(slots=True)
class _File:
    path: str
    file: BinaryIO
    written: tuple[int, int]  # bytes, time of the last change
    digest: bytes


class LoadedFiles:
    """The files that a load reads, opened before it. Files that cannot be opened are skipped: the load
    reports them.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._files: list[_File] = []
        for path in paths:
            with contextlib.suppress(OSError):
                file = open_regular(path, buffering=0)
                self._files.append(_File(path, file, _written(file), _digest(file)))

    def close(self) -> None:
        """Close the files."""
        for one in self._files:
            one.file.close()

    def changed(self) -> str | None:
        """The path of a file whose content was changed in place, None without any. A new modification time
        alone, as after `touch`, does not count.
        """
        for one in self._files:
            with contextlib.suppress(OSError):
                now = _written(one.file)
                if now == one.written:
                    continue
                if now[0] != one.written[0] or _digest(one.file) != one.digest:
                    return one.path
                one.written = now
        return None


def files_of(settings: LoadSettings) -> Iterator[str]:
    """The files of target, draft and adapters, with all parts of split files."""
    for model in filter(None, (settings.target, settings.draft)):
        first = _FIRST_PART.fullmatch(model.path)
        n_parts = int(first[2]) if first is not None else 1
        yield model.path
        if first is not None:
            yield from (f"{first[1]}-{i:05d}-of-{n_parts:05d}.gguf" for i in range(2, n_parts + 1))
        yield from (path for path, _ in model.lora)


def _written(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _digest(file: BinaryIO) -> bytes:
    """Of blocks spread evenly over the file, the first and the last included."""
    size, digest = os.fstat(file.fileno()).st_size, hashlib.sha256()
    for i in range(_BLOCKS):
        at = i * max(0, size - _BLOCK_BYTES) // (_BLOCKS - 1)
        file.seek(at)
        digest.update(file.read(_BLOCK_BYTES))
    return digest.digest()
