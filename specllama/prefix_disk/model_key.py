"""The key of a model: a hash of everything that could change a state. Anything else than equal is a miss.

Files are known by their size, by hashes of their beginning and of samples, and by the hash of the whole where
a hub's cache names them by it, or else by the time of their last change. What else belongs to a key is known
to those who load models, and given as facts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = 1  # of the facts: another one is another key
HEAD_BYTES = 1 << 20  # hashed at the beginning of a file: metadata and the vocabulary's first part
N_SAMPLES, SAMPLE_BYTES = 256, 4096
_WHOLE_HASH = re.compile("[0-9a-f]{64}")
_ENVIRONMENT = re.compile(r"(GGML|LLAMA)_(?!ARG_)\w+")  # what llama.cpp may read while it computes


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file at a moment. facts: what distinguishes it from others, for a key. identity: device, inode, bytes
    and time of the last change, by which another file under its name is known.
    """

    path: str
    facts: tuple[str, ...]
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
    with open(real, "rb") as file:
        status = os.fstat(file.fileno())
        digest.update(file.read(HEAD_BYTES))
        for i in range(N_SAMPLES):
            file.seek(max(0, status.st_size - SAMPLE_BYTES) * i // (N_SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    named_by_hash = real.parent.name == "blobs" and _WHOLE_HASH.fullmatch(real.name)
    whole = f"sha256 {real.name}" if named_by_hash else f"changed {status.st_mtime_ns}"
    return FileIdentity(os.fspath(path), (str(status.st_size), digest.hexdigest(), whole), _identity(status))


def model_key(
    files: Iterable[FileIdentity], facts: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> str:
    """The key, 32 hexadecimal digits. files: of the model and its adapters, in order. facts: all settings and
    properties of the build and the machine that could change a state, as JSON can hold them.
    """
    variables = {name: value for name, value in environ.items() if _ENVIRONMENT.fullmatch(name)}
    plain = {"version": VERSION, "files": [f.facts for f in files], "facts": facts, "environment": variables}
    text = json.dumps(plain, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
