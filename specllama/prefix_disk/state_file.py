"""A prefix state, and the bytes of its file: written as a stream, checked before anything is handed out.

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
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from specllama import wire
from specllama.large_memory import map_memory

VERSION = 1
BLOCK = 1 << 20  # bytes under one checksum, and written or read at once
MAX_TOKENS, MAX_SECONDS = 1 << 24, 1e9
_MAGIC = b"specllama prefix"
_FIXED = struct.Struct("<16sIIIIQ32s")  # magic, version, bytes of meta, ids, blocks, bytes of file, digest
_DIGEST_AT = _FIXED.size - 32
_MAX_META, _MAX_BLOCKS = 64 << 10, 1 << 24
_MAX_PART_BYTES = 1 << 44
WHOLE = "whole"  # the kind of all states; of one of another kind no part of the text can be used
Buffer = bytes | bytearray | memoryview | mmap.mmap


class BadStateFileError(Exception):
    """The file is no state of this version, or not whole; says why."""


class NewerStateFileError(BadStateFileError):
    """Another version of specllama has written the file, a newer one."""


@dataclass(frozen=True, slots=True)
class StateMeta:
    """key: of the model. model: its name for people. scope, seconds: see disk_store.PrefixRecord. kind:
    WHOLE. parts: (name, bytes), in the order of the file.
    """

    key: str
    model: str
    scope: str
    kind: str
    seconds: float
    parts: tuple[tuple[str, int], ...]

    @property
    def n_bytes(self) -> int:
        return sum(n for _, n in self.parts)

    @property
    def part_names(self) -> set[str]:
        return {name for name, _ in self.parts}

    @property
    def n_blocks(self) -> int:
        return sum(-(-n // BLOCK) for _, n in self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A state on disk. name: of its file, "" for none. ids: int32, little-endian. checksums: by block."""

    name: str
    meta: StateMeta
    ids: bytes = field(repr=False)
    checksums: tuple[int, ...] = field(repr=False)
    file_bytes: int

    @property
    def n_tokens(self) -> int:
        return len(self.ids) // 4


def file_size(meta: StateMeta, n_tokens: int) -> int:
    return _header_size(len(wire.to_json(meta).encode()), n_tokens, meta.n_blocks) + meta.n_bytes


def write_state(
    number: int,
    meta: StateMeta,
    ids: bytes,
    parts: Iterable[Buffer],
    secret: bytes,
    written: Callable[[int], None],
) -> int:
    """Write a whole state into an empty file and sync it; returns its bytes.

    number: a descriptor. parts: as meta names them. written: called after every block with its bytes; it may
    wait or raise. Raises OSError.
    """
    encoded, n_ids = wire.to_json(meta).encode(), len(ids) // 4
    at = _header_size(len(encoded), n_ids, meta.n_blocks)
    checksums = []
    for buffer in parts:
        part = memoryview(buffer)
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


def read_state(number: int, secret: bytes, name: str = "") -> State:
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
    if n_meta > _MAX_META or not 0 < n_ids <= MAX_TOKENS or n_blocks > _MAX_BLOCKS:
        raise BadStateFileError("lengths that cannot be")
    begin = _header_size(n_meta, n_ids, n_blocks)
    if file_bytes != size or begin > size:
        raise BadStateFileError(f"{size} bytes, not {file_bytes}")
    rest = bytearray(begin - _FIXED.size)
    _read_into(number, memoryview(rest), _FIXED.size)
    encoded, ids = bytes(rest[:n_meta]), bytes(rest[n_meta : n_meta + 4 * n_ids])
    sums = rest[n_meta + 4 * n_ids :]
    if not hmac.compare_digest(digest, _digest(fixed, (encoded, ids, sums), secret)):
        raise BadStateFileError("its header is damaged, or of another directory")
    try:
        meta = wire.from_text(StateMeta, encoded)
    except ValueError as error:
        raise BadStateFileError(f"its header cannot be read: {error}"[:200]) from None
    if not 0 <= meta.seconds < MAX_SECONDS or not all(0 <= n < _MAX_PART_BYTES for _, n in meta.parts):
        raise BadStateFileError("its header has values that cannot be")
    if meta.n_blocks != n_blocks or begin + meta.n_bytes != size:
        raise BadStateFileError("lengths that do not fit together")
    return State(name, meta, ids, struct.unpack(f"<{n_blocks}I", sums), size)


def read_parts(number: int, state: State, names: Collection[str] | None = None) -> dict[str, memoryview]:
    """The named parts, or all, each in memory of its own, checked. Raises BadStateFileError, OSError."""
    data: dict[str, memoryview] = {}
    at, checksums = state.file_bytes - state.meta.n_bytes, iter(state.checksums)
    for name, n_bytes in state.meta.parts:
        wanted = names is None or name in names
        memory = memoryview(map_memory(n_bytes) if n_bytes else bytearray()) if wanted else None
        for begin, expected in zip(range(0, n_bytes, BLOCK), checksums, strict=False):
            if memory is not None:
                block = memory[begin : begin + BLOCK]
                _read_into(number, block, at + begin)
                if zlib.crc32(block) != expected:
                    raise BadStateFileError(f"its bytes from {at + begin} on are damaged")
        if memory is not None:
            data[name] = memory
        at += n_bytes
    return data


def read_beginning(number: int, n_bytes: int, goes_on: Callable[[], bool]) -> int:
    """Read and forget at most so many bytes while it goes on; returns how many. Raises OSError."""
    at = 0
    while at < n_bytes and goes_on() and (block := os.pread(number, min(BLOCK, n_bytes - at), at)):
        at += len(block)
    advise(number, "POSIX_FADV_DONTNEED")
    return at


def advise(number: int, advice: str) -> None:
    """Tell the system how a file will be read. advice: POSIX_FADV_SEQUENTIAL for from its beginning to its
    end, POSIX_FADV_DONTNEED for not again soon: the memory is the model's.
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(number, 0, 0, getattr(os, advice))


def _write_all(number: int, data: memoryview, at: int) -> None:
    while data:
        n = os.pwrite(number, data, at)
        data, at = data[n:], at + n


def _read_into(number: int, memory: memoryview, at: int) -> None:
    while memory:
        n = os.preadv(number, [memory], at)
        if not n:
            raise BadStateFileError("it became shorter while it was read")
        memory, at = memory[n:], at + n


def _header_size(n_meta: int, n_ids: int, n_blocks: int) -> int:
    return _FIXED.size + n_meta + 4 * n_ids + 4 * n_blocks


def _digest(fixed: bytes, rest: Iterable[bytes | bytearray], secret: bytes) -> bytes:
    digest = hashlib.blake2b(fixed[:_DIGEST_AT], digest_size=32, key=secret)
    for data in rest:
        digest.update(data)
    return digest.digest()
