"""One state in a file that a client has named: llama-server's saved slots. The format is that of the cache,
but without the secret of a directory: such a file may be copied. It is for the same model, build and settings
alone.

Knows no names: they are checked by those who take them from clients.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np

from specllama.config.whole_file import temporary
from specllama.prefix_disk.record import PrefixRecord
from specllama.prefix_disk.state_file import (
    BadStateFileError,
    StateMeta,
    read_header,
    read_parts,
    write_state,
)
from specllama.regular_file import open_regular


def write_slot_file(path: Path, record: PrefixRecord, key: str, model: str = "") -> int:
    """Write a state, whole or not at all, for the user alone; returns its bytes. Whatever has this name is
    replaced, and the directory is made. Raises OSError.
    """
    sizes = tuple((name, len(part)) for name, part in record.parts.items())
    meta = StateMeta(key, model, record.scope, record.kind, record.seconds, sizes)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    new = temporary(path)
    number = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        ids = record.ids.astype(np.dtype("<i4")).tobytes()
        parts = [memoryview(part) for part in record.parts.values()]
        n_bytes = write_state(number, meta, ids, parts, b"", lambda _: None)
        new.replace(path)
    finally:
        os.close(number)
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
    return n_bytes


def read_slot_file(path: Path, key: str, scope: str, max_bytes: int) -> PrefixRecord:
    """The state in a file, for the model with this key and for this scope. max_bytes: of its parts in
    memory. Raises BadStateFileError, which says why it cannot be used, and OSError.
    """
    with open_regular(path) as file:
        number = file.fileno()
        header = read_header(number, b"")
        meta = header.meta
        if meta.scope != scope:
            raise BadStateFileError("it belongs to another key")
        if meta.key != key:
            raise BadStateFileError(
                "it was saved with another model, other settings of the context, or another llama.cpp"
            )
        if meta.n_bytes > max_bytes:
            raise BadStateFileError(f"it needs {meta.n_bytes} bytes of memory, and {max_bytes} are free")
        parts = read_parts(number, header)
    ids = np.frombuffer(header.ids, np.dtype("<i4")).astype(np.int32)
    try:
        return PrefixRecord(scope, ids, "partial" if meta.kind == "partial" else "whole", parts, meta.seconds)
    except ValueError as error:
        raise BadStateFileError(str(error)) from None
