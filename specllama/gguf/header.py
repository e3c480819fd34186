"""GGUF headers: metadata and tensor infos of a model, from disk or any other `GGUFSource`, without
llama.cpp, and identities of files.

Reading rejects damaged headers; check.py rejects models that could not be run. Never reads tensor data.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import numpy as np

from specllama.errors import GGUFError, IntegrityError, NotFoundError
from specllama.gguf import parse
from specllama.gguf.source import DOWNLOAD_AGAIN, MAX_HEADER_BYTES, MAX_PARTS, FileSource, GGUFSource
from specllama.gguf.split import part_form, part_names
from specllama.regular_file import open_regular

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS: above it llama.cpp aborts

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Header:
    """A GGUF header. Properties are 0, "" or None if the key is absent; `check_model` rejects such headers.

    path: the file's name in messages. tensors: of all parts. file_bytes: size of all parts. parts: their
    paths. offsets: byte at which each metadata key starts.
    """

    path: str
    metadata: Mapping[str, parse.Value]
    tensors: tuple[parse.TensorInfo, ...]
    file_bytes: int
    parts: tuple[str, ...] = ()
    offsets: Mapping[str, int] = field(default_factory=dict, repr=False)
    _kept: dict[Callable[[Header], Any], Any] = field(default_factory=dict, init=False, repr=False)

    def fail(self, key: str, reason: str, hint: str = "Get another file of the model.") -> NoReturn:
        """Raise GGUFError naming the file, the metadata key and its offset."""
        where = f"at byte {self.offsets[key]}" if key in self.offsets else "missing"
        raise GGUFError(f"{self.path}: {key} {where}: {reason}", hint)

    def once(self, reader: Callable[[Header], T]) -> T:
        """The result of a reader of this header: read at the first call, then kept with it."""
        if reader not in self._kept:
            self._kept[reader] = reader(self)
        value: T = self._kept[reader]
        return value

    def text(self, key: str) -> str:
        """A string of the metadata, "" if absent."""
        value = self.metadata.get(key)
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        return value if isinstance(value, str) else ""

    def integer(self, key: str, default: int = 0) -> int:
        """A whole number of the metadata."""
        value = self.metadata.get(key)
        return int(value) if isinstance(value, int) else default

    def flag(self, key: str) -> bool | None:
        """A boolean of the metadata, None if absent."""
        value = self.metadata.get(key)
        return value if isinstance(value, bool) else None

    def arch_integer(self, suffix: str, default: int = 0) -> int:
        """The number `{architecture}.{suffix}`; the largest value of a per-layer array."""
        return max(self.per_layer(suffix), default=default) or self.integer(
            f"{self.architecture}.{suffix}", default
        )

    def per_layer(self, suffix: str, default: int | None = None) -> tuple[int, ...]:
        """`{architecture}.{suffix}` for each layer, a scalar repeated; () if absent without a default.

        Raises GGUFError for an array of another length or kind, and for more than MAX_LAYERS layers.
        """
        key = f"{self.architecture}.{suffix}"
        value = self.metadata.get(key, default)
        if value is None:
            return ()
        if self.n_layer > MAX_LAYERS:
            self.fail(f"{self.architecture}.block_count", f"{self.n_layer} layers, more than {MAX_LAYERS}")
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "biu":
                self.fail(key, "whole numbers are needed")
            if len(value) != self.n_layer:
                self.fail(key, f"{len(value)} values for {self.n_layer} layers")
            return tuple(int(v) for v in value)
        return (int(value),) * self.n_layer if isinstance(value, int) else ()

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    @property
    def name(self) -> str:
        """`general.name`, else the file name without its ending."""
        return self.text("general.name") or os.path.basename(self.path).removesuffix(".gguf")

    @property
    def n_params(self) -> int:
        """Elements of all tensors."""
        return sum(t.n_elements for t in self.tensors)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors, without padding."""
        return sum(t.n_bytes for t in self.tensors)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights read to decode one token: without embeddings that are only looked up and blocks of
        multi-token prediction, and with the fraction of experts that a token uses.
        """
        n_expert, n_used = self.experts
        return sum(t.n_bytes * n_used // n_expert if routed else t.n_bytes for t, routed in self._read())

    @property
    def experts(self) -> tuple[int, int]:
        """(experts of a layer, how many of them a token uses); (1, 1) without experts."""
        n_expert = self.integer(f"{self.architecture}.expert_count")
        return (n_expert, self.arch_integer("expert_used_count")) if n_expert else (1, 1)

    def _read(self) -> Iterator[tuple[parse.TensorInfo, bool]]:
        """The tensors that decodes read, and whether they belong to experts."""
        tied = not any(t.name == "output.weight" for t in self.tensors)
        unread = tuple(f"blk.{i}." for i in range(self.n_layer_trunk, self.n_layer))
        for t in self.tensors:
            looked_up = "token_embd" in t.name and not (tied and t.name == "token_embd.weight")
            if not looked_up and not t.name.startswith(unread):
                yield t, "_exps" in t.name and self.experts[0] > 1

    @property
    def quant(self) -> str:
        """The quantisation's usual name, such as "Q4_K_M"; else the tensor type with the most bytes."""
        code = self.metadata.get("general.file_type")
        if isinstance(code, int) and code & ~parse.FILE_TYPE_GUESSED in parse.FILE_TYPES:
            return parse.FILE_TYPES[code & ~parse.FILE_TYPE_GUESSED]
        sizes: Counter[str] = Counter()
        for t in self.tensors:
            sizes[t.type] += t.n_bytes
        return sizes.most_common(1)[0][0] if sizes else ""

    @property
    def n_ctx_train(self) -> int:
        return self.integer(f"{self.architecture}.context_length")

    @property
    def n_layer(self) -> int:
        return self.integer(f"{self.architecture}.block_count")

    @property
    def n_layer_trunk(self) -> int:
        """The layers that decode a token: without blocks of multi-token prediction, which only draft."""
        n_nextn = self.integer(f"{self.architecture}.nextn_predict_layers")
        return self.n_layer - n_nextn if n_nextn < self.n_layer <= MAX_LAYERS else self.n_layer

    @property
    def n_embd(self) -> int:
        return self.integer(f"{self.architecture}.embedding_length")

    @property
    def n_head(self) -> tuple[int, ...]:
        """Attention heads of each layer."""
        return self.per_layer("attention.head_count", 0)

    @property
    def n_head_kv(self) -> tuple[int, ...]:
        """Key and value heads of each layer; `n_head` if the file does not set them."""
        return self.per_layer("attention.head_count_kv") or self.n_head

    @property
    def n_vocab(self) -> int:
        return len(self.tokens) or self.integer(f"{self.architecture}.vocab_size")

    @property
    def chat_template(self) -> str | None:
        return self.text("tokenizer.chat_template") or None

    @property
    def tokens(self) -> parse.StringArray:
        """The text of every token id as in the file; empty without a tokenizer."""
        value = self.metadata.get("tokenizer.ggml.tokens")
        return value if isinstance(value, parse.StringArray) else parse.StringArray.empty()

    @property
    def token_texts(self) -> list[bytes]:
        """The texts as llama.cpp stores them: each up to a NUL; an empty one becomes [EMPTY_<id>]. Headers
        share the list: it must not be changed.
        """
        return _token_texts(self.tokens)

    @property
    def bos_id(self) -> int | None:
        """None if the file does not set it; pair/vocab.py knows llama.cpp's defaults."""
        return self.integer("tokenizer.ggml.bos_token_id", -1) if self._has("bos_token_id") else None

    @property
    def eos_id(self) -> int | None:
        """None if the file does not set it; pair/vocab.py knows llama.cpp's defaults."""
        return self.integer("tokenizer.ggml.eos_token_id", -1) if self._has("eos_token_id") else None

    def _has(self, name: str) -> bool:
        return f"tokenizer.ggml.{name}" in self.metadata


@lru_cache(maxsize=1)  # target and draft mostly have the same
def _token_texts(tokens: parse.StringArray) -> list[bytes]:
    raws = tokens.raws()
    if all(raws) and b"\0" not in b"".join(raws):
        return raws
    return [raw.partition(b"\0")[0] or b"[EMPTY_%d]" % i for i, raw in enumerate(raws)]


def read_source(source: GGUFSource) -> Header:
    """The header at the start of `source`. Raises GGUFError, and what `source.read` raises."""
    parsed = parse.parse(source)
    parse.check_types(source.name, parsed.entries)
    return Header(
        path=source.name,
        metadata=MappingProxyType({key: entry.value for key, entry in parsed.entries.items()}),
        tensors=parsed.tensors,
        file_bytes=source.size,
        parts=(source.name,),
        offsets=MappingProxyType({key: entry.offset for key, entry in parsed.entries.items()}),
    )


def read_header(path: str | os.PathLike[str]) -> Header:
    """The header of one file. Raises NotFoundError, UsageError (not readable) and GGUFError."""
    with FileSource(path) as source:
        return read_source(source)


Opener = Callable[[str], AbstractContextManager[GGUFSource]]


def read_model(path: str | os.PathLike[str], opener: Opener = FileSource) -> Header:
    """The header of a model: all parts of a split one, named by its first part, merged.

    opener: opens a part by its name, by default from disk. Raises what it and `read_source` raise, and
    IntegrityError naming a part that is missing or belongs to another model.
    """
    with opener(os.fspath(path)) as source:
        first = read_source(source)
        n_parts = first.integer("split.count")
        if n_parts <= 1:
            return first
        joined = first.file_bytes > MAX_HEADER_BYTES  # whether another part follows in the file
        if first.tensors:
            alignment = first.integer("general.alignment", 32) or 32
            end = first.tensors[-1].offset + first.tensors[-1].n_bytes
            joined = source.read(-(-end // alignment) * alignment, 4) == b"GGUF"
        if joined and not first.integer("split.no"):
            raise IntegrityError(
                f"{first.path}: the {n_parts} parts of a split model, one after the other in one file",
                f"Parts cannot be joined as bytes: keep them apart and name the first, {part_form(n_parts)}. "
                "llama.cpp's llama-gguf-split --merge makes one file of them.",
            )
    if n_parts > MAX_PARTS and not first.integer("split.no"):
        first.fail("split.count", f"{n_parts} parts, more than {MAX_PARTS}")
    names = part_names(first.path, first.integer("split.no"), n_parts)
    tensors, total = list(first.tensors), first.file_bytes
    for i, name in enumerate(names[1:], 1):
        part = _read_part(first, name, i, opener)
        tensors += [replace(t, part=i) for t in part.tensors]
        total += part.file_bytes
        if len(tensors) > parse.MAX_TENSORS:
            message = f"{name}: more than {parse.MAX_TENSORS} tensors with those of the parts before"
            raise IntegrityError(message)
    counts = Counter(t.name for t in tensors)
    for t in tensors:
        if counts[t.name] > 1:
            raise IntegrityError(f"{names[t.part]}: tensor {t.name!r} is in another part too", DOWNLOAD_AGAIN)
    expected = first.integer("split.tensors.count", len(tensors))
    if expected != len(tensors):
        present = f"{len(tensors)} tensors in its {n_parts} parts, {expected} expected"
        raise IntegrityError(f"{first.path}: {present}: a part belongs to another model", DOWNLOAD_AGAIN)
    return replace(first, tensors=tuple(tensors), file_bytes=total, parts=tuple(names))


def _read_part(first: Header, name: str, number: int, opener: Opener) -> Header:
    n_parts = first.integer("split.count")
    try:
        with opener(name) as source:
            part = read_source(source)
    except NotFoundError:
        raise IntegrityError(f"{name}: part {number + 1} of {n_parts} is missing", DOWNLOAD_AGAIN) from None
    ours = part.integer("split.no", -1) == number and part.integer("split.count", n_parts) == n_parts
    if not ours or part.architecture not in ("", first.architecture):
        claim = f"it says part {part.integer('split.no', -1) + 1} of {part.integer('split.count')}"
        raise IntegrityError(f"{name}: not part {number + 1} of this model ({claim})", DOWNLOAD_AGAIN)
    return part


def tensor_names(header: Header) -> frozenset[str]:
    return frozenset(t.name for t in header.tensors)


def first_missing(names: frozenset[str], needed: Iterable[str]) -> str:
    return next((f"{name}.weight" for name in needed if f"{name}.weight" not in names), "")


def tensor_shape(header: Header, name: str) -> tuple[int, ...]:
    """A tensor's shape, () if there is no such tensor."""
    return next((t.shape for t in header.tensors if t.name == name), ())


def dims(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


# Identities of files. Stored measurements know a model by its content, under whatever path.


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
