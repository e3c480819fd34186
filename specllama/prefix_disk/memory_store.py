"""Texts of earlier requests on disk, to draft from after a restart: one file for each model and scope, in the
directory of the prefix states.

A file holds the latest token ids of a scope, and a hash of them that is keyed with the secret of the
directory: one that is torn, foreign or of another version is ignored, and replaced by the next writing. It
appears whole or not at all. Whatever waits for the disk happens in a thread of its own, except reading one
file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specllama import wire
from specllama.clock import wait_until
from specllama.config.store import write_whole
from specllama.prefix_disk.directory import MEMORY, ListedFile, Say, StateDirectory
from specllama.prefix_disk.scopes import SHARED, state_name
from specllama.regular_file import open_regular

MOST_IDS = 1 << 18  # of a file: a megabyte
MOST_FILES = 64  # those written last
PAUSE_SECONDS = 1.0  # after a text, in which further ones are written with it
_MAGIC = b"specllama memory 1\n"
_DIGEST, _HEADER = 32, 4096  # bytes of the hash, and most of the header's line
_END = -1  # between two texts


@dataclass(frozen=True, slots=True)
class MemoryMeta:
    """The header of a file. model: its name for people. n_ids: token ids, those between texts included."""

    model: str
    n_ids: int


def _digest(secret: bytes, name: str, data: bytes) -> bytes:
    return hashlib.blake2b(name.encode() + data, digest_size=_DIGEST, key=secret).digest()


def _read(directory: StateDirectory, name: str) -> tuple[MemoryMeta, array[int]] | None:
    """The content of a file, None for one that there is not or that cannot be used."""
    most = len(_MAGIC) + _DIGEST + _HEADER + 4 * MOST_IDS
    try:
        with open_regular(directory.path / name, os.O_NOFOLLOW) as file:
            data = file.read(most + 1)
        start = len(_MAGIC) + _DIGEST
        whole = _digest(directory.secret, name, data[start:])
        if data[:start] != _MAGIC + whole:
            return None
        end = data.index(b"\n", start, start + _HEADER)
        meta, ids = wire.from_text(MemoryMeta, data[start:end]), array("i")
        ids.frombytes(data[end + 1 :])
    except (OSError, ValueError):
        return None
    return (meta, ids) if meta.n_ids == len(ids) <= MOST_IDS else None


def listed_memories(directory: StateDirectory) -> list[ListedFile]:
    """The files that can be used, the newest first; none where there is no directory. Raises OSError."""
    kept = []
    for name, n_bytes in (directory.sizes(MEMORY) if directory.open(create=False) else {}).items():
        read = _read(directory, name)
        with contextlib.suppress(FileNotFoundError):
            changed = os.stat(directory.path / name).st_mtime
            if read is not None:
                meta, ids = read
                n_tokens = len(ids) - ids.count(_END)
                kept.append(ListedFile(name, meta.model, "memory", n_tokens, n_bytes, 0.0, changed, 1))
    return sorted(kept, key=lambda one: -one.changed)


class MemoryStore:
    """The texts of one model in a directory that other models and processes share. For any thread.

    key: of the model's files; model: its name for people. say: gets a line where the disk fails.
    """

    def __init__(self, directory: Path, key: str, model: str, say: Say) -> None:
        self._directory, self._key, self._model = StateDirectory(directory, say), key, model
        self._say, self._said = say, False
        self._scopes: dict[str, str] = {}
        self._changed = threading.Condition()
        self._waiting: list[tuple[str, Sequence[int]]] = []
        self._closing = self._writing = False
        self._thread: threading.Thread | None = None

    def note_scope(self, owner: str, scope: str) -> None:
        """The scope on disk of an owner (scopes.py); texts of owners without one, and of those who share
        theirs, are not kept.
        """
        if scope and scope != SHARED:
            self._scopes[owner] = scope

    def load(self, owner: str) -> list[array[int]]:
        """The texts of an owner, the oldest first; none where they cannot be read. Takes milliseconds."""
        scope = self._scopes.get(owner, "")
        with contextlib.suppress(OSError):
            if scope and self._directory.open(create=False):
                read = _read(self._directory, self._name(scope))
                return _texts(read[1]) if read is not None else []
        return []

    def add(self, owner: str, ids: Sequence[int]) -> None:
        """Queue a text of an owner to be written soon."""
        scope = self._scopes.get(owner, "")
        if not scope or not ids:
            return
        with self._changed:
            self._waiting.append((scope, ids[-MOST_IDS + 1 :]))
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="specllama_memory", daemon=True)
                self._thread.start()

    def close(self, seconds: float) -> None:
        """Write what waits, for at most so many seconds, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            idle = partial(self._changed.wait_for, lambda: not self._waiting and not self._writing)
            wait_until(idle, seconds)

    def _name(self, scope: str) -> str:
        name = state_name(self._key, scope, "memory", b"", self._directory.secret)
        return f"{name.partition('.')[0]}.memory"

    def _work(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                self._changed.wait_for(lambda: self._closing, PAUSE_SECONDS)
                waiting, self._waiting, self._writing = self._waiting, [], True
            try:
                self._write(waiting)
            except Exception as error:  # noqa: BLE001 - whatever it is, `close` does not wait for it
                if not self._said:
                    self._said = True
                    why = getattr(error, "strerror", None) or repr(error)
                    self._say(f"answers are not kept on disk: {self._directory.path}: {why}")

    def _write(self, waiting: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Append texts to the files of their scopes. Raises OSError."""
        directory = self._directory
        by_scope: dict[str, array[int]] = {}
        for scope, ids in waiting:
            by_scope.setdefault(scope, array("i")).extend([_END, *ids])
        directory.open(create=True)
        with directory.locked():
            for scope, ids in by_scope.items():
                name = self._name(scope)
                read = _read(directory, name)
                kept = ((read[1] if read is not None else array("i")) + ids)[-MOST_IDS:]
                meta = MemoryMeta(self._model[:200], len(kept))
                data = f"{wire.to_json(meta)}\n".encode() + kept.tobytes()
                packed = _MAGIC + _digest(directory.secret, name, data) + data
                write_whole(directory.path / name, packed, 0o600, sync=True)
            names = directory.sizes(MEMORY)
            if len(names) > MOST_FILES:
                oldest = sorted(names, key=lambda name: os.stat(directory.path / name).st_mtime)
                for name in oldest[:-MOST_FILES]:
                    directory.remove(name)


def _texts(ids: array[int]) -> list[array[int]]:
    texts, begin = [], 0
    for _ in range(ids.count(_END)):
        end = ids.index(_END, begin)
        texts.append(ids[begin:end])
        begin = end + 1
    return [text for text in (*texts, ids[begin:]) if text]
