"""What tells a model's files from others: their size, and hashes of their beginning and of samples.

Stored measurements know a model by that content, under whatever path. Prefix states need more certainty: the
hash of the whole where a hub's cache names files by it, or else the time of the last change.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from specllama.gguf.header import Header
from specllama.regular_file import open_regular

HEAD_BYTES = 1 << 20  # hashed at the beginning of a file: metadata and the vocabulary's first part
N_SAMPLES, SAMPLE_BYTES = 256, 4096
_WHOLE_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file at a moment. content: its size and the hash of samples, the same for every copy. whole: its
    SHA-256 if its name is that, else the time of the last change. identity: device, inode, bytes and time of
    the last change, by which another file under its name is known.
    """

    path: str
    content: str
    whole: str
    identity: tuple[int, int, int, int]

    def unchanged(self) -> bool:
        """Whether the file under this path is still the same."""
        try:
            return _identity(os.stat(self.path)) == self.identity
        except OSError:
            return False


def file_identity(path: str | os.PathLike[str]) -> FileIdentity:
    """Read the samples of a file; takes milliseconds. Raises OSError."""
    real = Path(os.path.realpath(path))
    digest = hashlib.blake2b(digest_size=16)
    with open_regular(real) as file:
        status = os.fstat(file.fileno())
        digest.update(file.read(HEAD_BYTES))
        for i in range(N_SAMPLES):
            file.seek(max(0, status.st_size - SAMPLE_BYTES) * i // (N_SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    named_by_hash = real.parent.name == "blobs" and _WHOLE_HASH.fullmatch(real.name)
    whole = f"sha256 {real.name}" if named_by_hash else f"changed {status.st_mtime_ns}"
    content = f"{status.st_size} {digest.hexdigest()}"
    return FileIdentity(os.fspath(path), content, whole, _identity(status))


def content_of(path: str) -> str:
    """A file in stored measurements: its content, the same for every copy, or its path if that is unknown."""
    try:
        return file_identity(path).content
    except OSError:
        return path


def part_identities(header: Header) -> tuple[FileIdentity, ...]:
    """Those of a model's files; `header.once` reads them once. Raises OSError."""
    return tuple(map(file_identity, header.parts))


def identity(header: Header) -> list[str | int]:
    """A model in stored measurements, in types that JSON preserves: name, architecture, quantisation, sizes,
    and the hash of its files' content; without it where they are not on this disk.
    """
    facts: list[str | int] = [header.architecture, header.quant, header.n_params, header.file_bytes]
    try:
        contents = [part.content for part in header.once(part_identities)]
    except OSError:
        contents = []
    if not contents:
        return [header.name, *facts]
    digest = hashlib.blake2b(" ".join(contents).encode(), digest_size=16).hexdigest()
    return [header.text("general.name") or header.architecture, *facts, digest]


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
