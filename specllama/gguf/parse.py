"""The GGUF format, versions 2 and 3: parses header bytes into metadata and tensor infos.

Every GGUFError names the field and its byte offset. The rules are those of `ggml/src/gguf.cpp`, so that
llama.cpp reads every file that passes. Source: ggml's docs/gguf.md.
"""

from __future__ import annotations

import math
import re
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from specllama.errors import GGUFError
from specllama.gguf.source import DOWNLOAD_AGAIN, MAX_HEADER_BYTES, GGUFSource, Window, foreign_format
from specllama.regular_file import table_of

_TABLE: dict[str, dict[str, Any]] = table_of(__file__)


class GGMLType(NamedTuple):
    """A tensor type, which stores `block_size` elements in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


GGML_TYPES: dict[int, GGMLType] = {n: GGMLType(name, *block) for name, (n, *block) in _TABLE["types"].items()}
REMOVED_TYPES, FILE_TYPES = (
    {number: name for name, number in _TABLE[key].items()} for key in ("removed_types", "file_types")
)
TYPE_BY_NAME: dict[str, GGMLType] = {t.name.lower(): t for t in GGML_TYPES.values()}
TYPE_NUMBERS: dict[str, int] = {t.name: number for number, t in GGML_TYPES.items()}
# Tensor types that ggml multiplies with nothing: it crashes.
NOT_MULTIPLIED = frozenset(("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"))

FILE_TYPE_GUESSED = 1024  # flag in general.file_type: the converter guessed


def row_bytes(type_name: str, n_elements: int) -> int:
    """Bytes of `n_elements` of a type, in any case, in whole blocks. Raises KeyError for an unknown one."""
    kind = TYPE_BY_NAME[type_name.lower()]
    return -(-n_elements // kind.block_size) * kind.block_bytes


# Arrays of strings in a GGUF file: hundreds of thousands of strings, of which few are accessed.


class StringArray:
    """An array of strings as bytes and offsets, decoded on access.

    Equal to another with the same strings. Indexing gives text, invalid UTF-8 replaced; `raw` gives bytes.
    """

    __slots__ = ("__weakref__", "_blob", "_starts")

    def __init__(self, blob: bytes, starts: array[int]) -> None:
        self._blob = blob  # all strings, each after its 8-byte length
        self._starts = starts  # start of each string's bytes, and one more entry after the last

    @staticmethod
    def empty() -> StringArray:
        return StringArray(b"", array("q", [8]))

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def n_bytes(self) -> int:
        """Bytes of all strings, each with the 8 bytes of its length."""
        return len(self._blob)

    @property
    def encoded(self) -> bytes:
        """All strings, each after its length, 8 bytes."""
        return self._blob

    def raw(self, i: int) -> bytes:
        """The bytes of string `i`, 0 ≤ i < len."""
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self._blob[self._starts[i] : self._starts[i + 1] - 8]

    def raws(self) -> list[bytes]:
        blob, starts = self._blob, self._starts.tolist()
        return [blob[a : b - 8] for a, b in pairwise(starts)]

    def __getitem__(self, i: int) -> str:
        return self.raw(i).decode(errors="replace")

    def __iter__(self) -> Iterator[str]:
        return (raw.decode(errors="replace") for raw in self.raws())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StringArray) and self._blob == other._blob

    def __hash__(self) -> int:
        return hash(self._blob)

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"


DEFAULT_ALIGNMENT = 32
MAX_TENSORS = 1 << 16  # 512 layers of 100 tensors are 51,200
MAX_KEYS = 4096
MAX_KEY_BYTES = 1024
MAX_ELEMENTS = 4 << 20  # of all arrays; the largest known vocabularies have 1.3 million with their merges
LAZY_BYTES = 4096  # a longer text is decoded when it is used
MAX_NAME_BYTES = 63  # GGML_MAX_NAME with its NUL
MAX_DIMS = 4

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, tuple[str, str]] = {
    code: (name, dtype) for name, (code, dtype) in _TABLE["scalars"].items()
}
_SMALLEST_KV = 8 + 1 + 4 + 1  # bytes: key length, key, type, value
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # bytes: name length, name, n_dims, one dimension, type, offset


Value = bool | int | float | str | bytes | StringArray | NDArray[np.generic]


class MetadataEntry(NamedTuple):
    """A metadata value, its type ("u32", "arr[str]"), and the byte offset of its key. A text of more than
    LAZY_BYTES is bytes.
    """

    value: Value
    kind: str
    offset: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of the file. shape: elements by dimension, innermost first, as in ggml.

    offset: of its data, from the start of its file (part `part` of a split model). n_bytes: of its data.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int
    offset: int
    part: int = 0

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


class Parsed(NamedTuple):
    version: int
    alignment: int
    entries: dict[str, MetadataEntry]
    tensors: tuple[TensorInfo, ...]


def parse(source: GGUFSource) -> Parsed:
    """Read the header of `source`. Raises GGUFError, and what `source.read` raises."""
    w = Window(source)
    version = _magic_and_version(w)
    n_tensors = _count(w, "tensor_count", _SMALLEST_TENSOR, MAX_TENSORS)
    n_kv = _count(w, "metadata_kv_count", _SMALLEST_KV, MAX_KEYS)
    entries: dict[str, MetadataEntry] = {}
    n_elements = 0
    for i in range(n_kv):
        offset = w.pos
        key = w.text(f"metadata[{i}] key", MAX_KEY_BYTES)
        field = f"metadata[{i}] {key!r}"
        if not key:
            w.fail(field, offset, "the key is empty")
        if key in entries:
            w.fail(field, offset, "the key occurs twice")
        value, kind = _value(w, field, MAX_ELEMENTS - n_elements)
        n_elements += len(value) if isinstance(value, (StringArray, np.ndarray)) else 0
        entries[key] = MetadataEntry(value, kind, offset)
        w.drop()
    alignment = _alignment(w, entries)
    tensors = [_tensor(w, i) for i in range(n_tensors)]
    return Parsed(version, alignment, entries, _placed(w, tensors, alignment))


def _magic_and_version(w: Window) -> int:
    if w.size == 0:
        raise GGUFError(f"{w.name}: not a GGUF model: the file is empty (magic at byte 0)", DOWNLOAD_AGAIN)
    w.need(min(w.size, 64), "magic")
    if w.buf[:4] != b"GGUF":
        what, hint = foreign_format(bytes(w.buf[:64])) or (
            f"it begins with {bytes(w.buf[:4])!r} and not with b'GGUF'",
            "Name a file whose format is GGUF: specllama models.",
        )
        raise GGUFError(f"{w.name}: not a GGUF model: {what} (magic at byte 0)", hint)
    w.pos = 4
    version = w.uint(4, "version")
    if version & 0xFFFF == 0 and version:
        hint = "Get or convert a little-endian file."
        w.fail("version", 4, f"{version:#010x}: the file is big-endian", hint)
    if version not in (2, 3):
        hint = (
            "Get a newer file of the model." if version == 1 else "A newer version of specllama may read it."
        )
        w.fail("version", 4, f"{version} cannot be read, only 2 and 3", hint)
    return version


def _count(w: Window, field: str, smallest: int, most: int) -> int:
    offset = w.pos
    n = w.uint(8, field)
    if n > most or n * smallest > w.size - w.pos:
        w.fail(field, offset, f"{n} cannot be right in a file of {w.size} bytes")
    return n


def _value(w: Window, field: str, most: int) -> tuple[Value, str]:
    offset = w.pos
    code = w.uint(4, f"{field} type")
    if code == _STRING:
        raw = w.take(w.uint(8, f"{field} length"), field)
        return raw if len(raw) > LAZY_BYTES else raw.decode(errors="replace"), "str"
    if code == _ARRAY:
        return _array(w, field, most)
    if code not in _SCALARS:
        w.fail(f"{field} type", offset, f"{code} is not a value type")
    name, dtype = _SCALARS[code]
    scalar = np.frombuffer(w.take(np.dtype(dtype).itemsize, field), dtype)[0].item()
    return (bool(scalar) if code == _BOOL else scalar), name


def _array(w: Window, field: str, most: int) -> tuple[Value, str]:
    offset = w.pos
    code = w.uint(4, f"{field} element type")
    n = w.uint(8, f"{field} length")
    if code == _ARRAY:
        w.fail(f"{field} element type", offset, "an array of arrays, which llama.cpp does not read")
    if code != _STRING and code not in _SCALARS:
        w.fail(f"{field} element type", offset, f"{code} is not a value type")
    size = 8 if code == _STRING else np.dtype(_SCALARS[code][1]).itemsize
    if n * size > w.size - w.pos:
        w.fail(f"{field} length", offset + 4, f"{n} elements do not fit in a file of {w.size} bytes")
    if n > most:
        reason = f"{n} elements: a header of more than {MAX_ELEMENTS} is refused"
        w.fail(f"{field} length", offset + 4, reason)
    if code == _STRING:
        return _strings(w, n, field), "arr[str]"
    name, dtype = _SCALARS[code]
    values = np.frombuffer(w.take(n * size, field), dtype)
    return (values != 0 if code == _BOOL else values), f"arr[{name}]"


# By number of strings: a draft has mostly its target's vocabulary.
_PARSED: WeakValueDictionary[int, StringArray] = WeakValueDictionary()


def _strings(w: Window, n: int, field: str) -> StringArray:
    begin = w.pos
    known = _PARSED.get(n)
    if known is not None and (end := begin + known.n_bytes) <= min(w.size, MAX_HEADER_BYTES):
        w.need(end, field)
        if w.copy(begin, end) == known.encoded:
            w.pos = end
            return known
    # The only hot loop: a large vocabulary has 400,000 strings. At the end of the buffer unpack raises, and
    # more is read.
    base = w.base
    pos = begin - base  # in w.buf
    starts = array("q")
    unpack, append = struct.Struct("<Q").unpack_from, starts.append
    shift = base - begin + 8
    while len(starts) < n:
        buf = w.buf
        try:
            for _ in range(n - len(starts)):
                (length,) = unpack(buf, pos)
                append(pos + shift)
                pos += length + 8
        except (struct.error, OverflowError):
            last = max(len(starts) - 1, 0)
            w.need(pos + base, f"{field}[{last}]", begin + (starts[last] - 8 if starts else 0))
            w.need(pos + base + 8, f"{field}[{len(starts)}] length", pos + base)
    last = max(len(starts) - 1, 0)
    w.need(pos + base, f"{field}[{last}]", begin + (starts[last] - 8 if starts else 0))
    append(pos + base - begin + 8)
    w.pos = pos + base
    _PARSED[n] = parsed = StringArray(w.copy(begin, w.pos), starts)
    return parsed


def _alignment(w: Window, entries: dict[str, MetadataEntry]) -> int:
    entry = entries.get("general.alignment")
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = entry.value
    if entry.kind != "u32" or not isinstance(value, int):
        w.fail("general.alignment", entry.offset, f"its type is {entry.kind}, not u32")
    if value < 8 or value & (value - 1):
        w.fail("general.alignment", entry.offset, f"{value} is not a power of two that is a multiple of 8")
    return value


def _tensor(w: Window, i: int) -> tuple[TensorInfo, int]:
    """A tensor info, with `offset` relative to the tensor data as in the file, and the byte of its start."""
    begin = w.pos
    name = w.text(f"tensor[{i}] name", MAX_NAME_BYTES)
    field = f"tensor[{i}] {name!r}"
    if not name:
        w.fail(f"tensor[{i}] name", begin, "it is empty")
    dims = w.pos
    n_dims = w.uint(4, f"{field} dimensions")
    if not 1 <= n_dims <= MAX_DIMS:
        w.fail(f"{field} dimensions", dims, f"there are {n_dims}, not 1 to {MAX_DIMS}")
    shape = tuple(w.uint(8, f"{field} dimensions") for _ in range(n_dims))
    n_elements = math.prod(shape)
    if not 0 < n_elements < 1 << 63:
        reason = "has a dimension of 0" if n_elements == 0 else "overflows"
        w.fail(f"{field} dimensions", dims, f"{' × '.join(map(str, shape))} {reason}")
    type_at = w.pos
    code = w.uint(4, f"{field} type")
    if code not in GGML_TYPES:
        reason = (
            f"{REMOVED_TYPES[code]} is no longer read" if code in REMOVED_TYPES else "no such tensor type"
        )
        w.fail(
            f"{field} type",
            type_at,
            f"{code}: {reason}",
            "Get another file of the model, or update specllama.",
        )
    kind = GGML_TYPES[code]
    if shape[0] % kind.block_size:
        reason = f"rows of {shape[0]} elements do not divide into blocks of {kind.block_size} ({kind.name})"
        w.fail(f"{field} dimensions", dims, reason)
    n_bytes = n_elements // kind.block_size * kind.block_bytes
    return TensorInfo(name, shape, kind.name, n_bytes, w.uint(8, f"{field} offset")), begin


def _placed(w: Window, tensors: list[tuple[TensorInfo, int]], alignment: int) -> tuple[TensorInfo, ...]:
    """The tensors with offsets from the start of the file. Raises GGUFError unless they are contiguous."""
    data = -(-w.pos // alignment) * alignment
    end = 0
    seen: set[str] = set()
    placed: list[TensorInfo] = []
    for i, (t, begin) in enumerate(tensors):
        field = f"tensor[{i}] {t.name!r}"
        if t.name in seen:
            w.fail(field, begin, "the tensor occurs twice")
        seen.add(t.name)
        if t.offset % alignment:
            w.fail(f"{field} offset", begin, f"{t.offset} is not a multiple of the alignment {alignment}")
        if t.offset != end:
            reason = (
                "overlaps the tensor before it"
                if t.offset < end
                else "leaves a hole, which llama.cpp refuses"
            )
            w.fail(f"{field} offset", begin, f"{t.offset} {reason}: {end} expected")
        end = -(-(end + t.n_bytes) // alignment) * alignment
        placed.append(replace(t, offset=data + t.offset))
    for i, t in enumerate(placed):
        if t.offset + t.n_bytes > w.size:
            missing = placed[-1].offset + placed[-1].n_bytes - w.size
            reason = f"the file ends at byte {w.size}, {missing} bytes are missing: an unfinished download"
            w.fail(f"tensor[{i}] {t.name!r} data", t.offset, reason)
    return tuple(placed)


def _kinds(table: dict[str, str]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(kinds.split()) for kinds, keys in table.items() for key in keys.split()}


_TYPES, _ARCH_TYPES = _kinds(_TABLE["keys"]), _kinds(_TABLE["architecture_keys"])
MAX_TOKENS, MAX_TOKEN_BYTES = 1 << 19, 16 << 20  # twice the largest known vocabulary; of all texts together
MAX_TEMPLATE_BYTES, MAX_TEXT_BYTES = 1 << 20, 64 << 10
_ARCHITECTURE = re.compile(r"[\w.-]{0,64}", re.ASCII)
_LONGEST = {  # bytes
    "general.architecture": 64,
    "general.type": 64,
    "tokenizer.ggml.model": 4096,
    "tokenizer.ggml.pre": 4096,
    "tokenizer.chat_template": MAX_TEMPLATE_BYTES,
}


def check_types(name: str, entries: Mapping[str, MetadataEntry]) -> None:
    """Raises GGUFError, with key and byte offset, for an entry of another type than llama.cpp expects, or
    longer than any model's.

    Unknown keys pass. name: the file, for the message.
    """
    for i, (key, entry) in enumerate(entries.items()):
        if reason := _excess(key, entry):
            message = f"{name}: metadata[{i}] {key!r} at byte {entry.offset}: {reason}"
            raise GGUFError(message, "Get another file of the model.")
    architecture = entries.get("general.architecture")
    prefix = f"{architecture.value}." if architecture and isinstance(architecture.value, str) else None
    for i, (key, entry) in enumerate(entries.items()):
        allowed = _TYPES.get(key)
        if allowed is None and prefix and key.startswith(prefix):
            allowed = _ARCH_TYPES.get(key.removeprefix(prefix))
        if allowed and entry.kind not in allowed:
            message = f"{name}: metadata[{i}] {key!r} at byte {entry.offset}: its type is {entry.kind}, not "
            hint = "Get another file of the model, or convert it again."
            raise GGUFError(message + " or ".join(allowed), hint)


def _excess(key: str, entry: MetadataEntry) -> str:
    """Why a value is too long, or holds what no model holds; "" if it does not."""
    value = entry.value
    if isinstance(value, (str, bytes)):
        most = _LONGEST.get(key) or (MAX_TEXT_BYTES if key.startswith("general.") else 0)
        if most and len(value) > most:
            return f"it has {len(value)} bytes, more than {most}"
        if key == "general.architecture" and isinstance(value, str) and not _ARCHITECTURE.fullmatch(value):
            return f"{value!r} is not a name"
    elif isinstance(value, StringArray) and key == "tokenizer.ggml.tokens":
        if len(value) > MAX_TOKENS:
            return f"{len(value)} tokens, more than {MAX_TOKENS}"
        if value.n_bytes > MAX_TOKEN_BYTES:
            return f"the tokens have {value.n_bytes} bytes, more than {MAX_TOKEN_BYTES}"
    elif isinstance(value, np.ndarray) and key == "tokenizer.ggml.scores" and np.isnan(value).any():
        return "a score is not a number"
    return ""
