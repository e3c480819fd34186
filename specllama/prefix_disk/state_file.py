"""The bytes of a file with one prefix state: written as a stream, checked before anything is handed out.

    fixed part (little-endian) | meta (JSON) | ids (int32) | checksums of blocks (CRC-32) | parts

The fixed part ends with a keyed BLAKE2b of everything before the parts, so that a header that is torn,
damaged or from another directory is recognised as a whole, and the blocks by its checksums. Blocks do not
reach across parts, so that single parts can be read. The header is written last: until then the file is no
state.

Knows no directory and no names of files.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specllama.large_memory import map_memory

VERSION = 1
BLOCK = 1 << 20  # bytes under one checksum, and written or read at once
_MAGIC = b"specllama prefix"
_FIXED = struct.Struct(
    "<16sIIIIQ32s"
)  # magic, version, bytes of meta, ids, blocks, bytes of the file, digest
_DIGEST_AT = _FIXED.size - 32
_MAX_META = 64 << 10
_MAX_IDS, _MAX_BLOCKS = 1 << 24, 1 << 24


class BadStateFileError(Exception):
    """The file is no state of this version, or not whole; says why."""


class NewerStateFileError(BadStateFileError):
    """Another version of specllama has written the file, a newer one."""


@dataclass(frozen=True, slots=True)
class StateMeta:
    """key: of the model (model_key.py). model: its name for people. scope, kind, seconds: see PrefixRecord.
    parts: (name, bytes), in the order of the file.
    """

    key: str
    model: str
    scope: str
    kind: str
    seconds: float
    parts: tuple[tuple[str, int], ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(n for _, n in self.parts)

    @property
    def part_names(self) -> set[str]:
        return {name for name, _ in self.parts}


@dataclass(frozen=True, slots=True)
class StateHeader:
    """ids: int32, little-endian. checksums: one a block. file_bytes: of the whole file."""

    meta: StateMeta
    ids: bytes
    checksums: tuple[int, ...]
    file_bytes: int

    @property
    def n_tokens(self) -> int:
        return len(self.ids) // 4


def file_size(meta: StateMeta, n_tokens: int) -> int:
    """Bytes that a file of this state has."""
    return _header_size(len(_encoded(meta)), n_tokens, _n_blocks(meta)) + meta.n_bytes


def write_state(
    number: int,
    meta: StateMeta,
    ids: bytes,
    parts: Iterable[memoryview],
    secret: bytes,
    written: Callable[[int], None],
) -> int:
    """Write a whole state into an empty file and sync it; returns its bytes.

    number: a descriptor. parts: as meta names them. written: called after every block with its bytes; it may
    wait or raise. Raises OSError.
    """
    encoded, n_ids = _encoded(meta), len(ids) // 4
    at = _header_size(len(encoded), n_ids, _n_blocks(meta))
    checksums = []
    for part in parts:
        for begin in range(0, len(part), BLOCK):
            block = part[begin : begin + BLOCK]
            checksums.append(zlib.crc32(block))
            _write_all(number, block, at)
            at += len(block)
            written(len(block))
    sums = struct.pack(f"<{len(checksums)}I", *checksums)
    fixed = _FIXED.pack(_MAGIC, VERSION, len(encoded), n_ids, len(checksums), at, b"")
    digest = _digest(fixed, (encoded, ids, sums), secret)
    _write_all(number, memoryview(fixed[:_DIGEST_AT] + digest + encoded + ids + sums), 0)
    os.fsync(number)
    return at


def read_header(number: int, secret: bytes) -> StateHeader:
    """The header of a file, checked with its length. Raises BadStateFileError, OSError."""
    size = os.fstat(number).st_size
    fixed = os.pread(number, _FIXED.size, 0)
    if len(fixed) < _FIXED.size:
        raise BadStateFileError("too short")
    magic, version, n_meta, n_ids, n_blocks, file_bytes, digest = _FIXED.unpack(fixed)
    if magic != _MAGIC:
        raise BadStateFileError("not a prefix state")
    if version > VERSION:
        raise NewerStateFileError(f"version {version}, of a newer specllama")
    if version < VERSION:
        raise BadStateFileError(f"version {version}, of an older specllama")
    if n_meta > _MAX_META or not 0 < n_ids <= _MAX_IDS or n_blocks > _MAX_BLOCKS:
        raise BadStateFileError("lengths that cannot be")
    begin = _header_size(n_meta, n_ids, n_blocks)
    if file_bytes != size or begin > size:
        raise BadStateFileError(f"{size} bytes, not {file_bytes}")
    rest = _read_exactly(number, begin - _FIXED.size, _FIXED.size)
    encoded, ids, sums = rest[:n_meta], rest[n_meta : n_meta + 4 * n_ids], rest[n_meta + 4 * n_ids :]
    if not hmac.compare_digest(digest, _digest(fixed, (encoded, ids, sums), secret)):
        raise BadStateFileError("its header is damaged, or of another directory")
    meta = _decoded(encoded)
    if _n_blocks(meta) != n_blocks or begin + meta.n_bytes != size:
        raise BadStateFileError("lengths that do not fit together")
    return StateHeader(meta, ids, struct.unpack(f"<{n_blocks}I", sums), size)


def read_parts(
    number: int, header: StateHeader, names: Collection[str] | None = None
) -> dict[str, memoryview]:
    """The parts with these names, all for None, each in writable memory of its own, checked block by block.
    Raises BadStateFileError, OSError.
    """
    data: dict[str, memoryview] = {}
    at, block = header.file_bytes - header.meta.n_bytes, 0
    for name, n_bytes in header.meta.parts:
        n_blocks = -(-n_bytes // BLOCK)
        if names is None or name in names:
            sums = header.checksums[block : block + n_blocks]
            data[name] = _read_part(number, at, n_bytes, sums)
        at, block = at + n_bytes, block + n_blocks
    return data


def _read_part(number: int, at: int, n_bytes: int, checksums: Iterable[int]) -> memoryview:
    if not n_bytes:
        return memoryview(bytearray())
    memory = memoryview(map_memory(n_bytes))
    for begin, expected in zip(range(0, n_bytes, BLOCK), checksums, strict=True):
        block = memory[begin : begin + BLOCK]
        done = 0
        while done < len(block):
            n = os.preadv(number, [block[done:]], at + begin + done)
            if not n:
                raise BadStateFileError("it became shorter while it was read")
            done += n
        if zlib.crc32(block) != expected:
            raise BadStateFileError(f"its bytes from {at + begin} on are damaged")
    return memory


def read_ahead(number: int) -> None:
    """Tell the system that a file will be read from its beginning to its end."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def read_beginning(number: int, n_bytes: int, goes_on: Callable[[], bool]) -> int:
    """Read at most so many bytes of a file while it goes on, and forget them; returns how many these were.
    Raises OSError.
    """
    at = 0
    while at < n_bytes and goes_on() and (block := os.pread(number, min(BLOCK, n_bytes - at), at)):
        at += len(block)
    forget_pages(number)
    return at


def forget_pages(number: int) -> None:
    """Tell the system that a file will not be read again soon: the memory is the model's."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)


def _write_all(number: int, data: memoryview, at: int) -> None:
    while data:
        n = os.pwrite(number, data, at)
        data, at = data[n:], at + n


def _read_exactly(number: int, n: int, at: int) -> bytes:
    data = os.pread(number, n, at)
    while len(data) < n:
        more = os.pread(number, n - len(data), at + len(data))
        if not more:
            raise BadStateFileError("too short")
        data += more
    return data


def _header_size(n_meta: int, n_ids: int, n_blocks: int) -> int:
    return _FIXED.size + n_meta + 4 * n_ids + 4 * n_blocks


def _n_blocks(meta: StateMeta) -> int:
    return sum(-(-n // BLOCK) for _, n in meta.parts)


def _digest(fixed: bytes, rest: Iterable[bytes], secret: bytes) -> bytes:
    digest = hashlib.blake2b(fixed[:_DIGEST_AT], digest_size=32, key=secret)
    for data in rest:
        digest.update(data)
    return digest.digest()


def _encoded(meta: StateMeta) -> bytes:
    plain: Mapping[str, Any] = {
        "key": meta.key,
        "model": meta.model,
        "scope": meta.scope,
        "kind": meta.kind,
        "seconds": meta.seconds,
        "parts": meta.parts,
    }
    return json.dumps(plain).encode()


def _decoded(encoded: bytes) -> StateMeta:
    """Raises BadStateFileError."""
    try:
        plain = json.loads(encoded)
        parts = tuple(_checked_parts(plain["parts"]))
        texts = [plain[name] for name in ("key", "model", "scope", "kind")]
        seconds = float(plain["seconds"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadStateFileError(f"its header cannot be read: {error}"[:200]) from None
    if not all(isinstance(text, str) for text in texts) or not 0 <= seconds < 1e9:
        raise BadStateFileError("its header has values that cannot be")
    key, model, scope, kind = texts
    return StateMeta(key, model, scope, kind, seconds, parts)


def _checked_parts(plain: Any) -> Iterator[tuple[str, int]]:
    for name, n_bytes in plain:
        if not isinstance(name, str) or not isinstance(n_bytes, int) or not 0 <= n_bytes < 1 << 44:
            raise ValueError("a part without name or length")
        yield name, n_bytes
