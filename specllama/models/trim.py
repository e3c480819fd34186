"""Trimmed drafts: which tensors of a draft have a row for each token, the tokens to keep, and the file.

The source is read from its header, and no tensor but a head's d2t before the file is written.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specllama.errors import GGUFError, IntegrityError, NotFoundError, ResourceError, UsageError
from specllama.gguf.header import Header, read_header, read_model, tensor_names
from specllama.gguf.parse import MetadataEntry, StringArray, TensorInfo, parse
from specllama.gguf.source import FileSource
from specllama.gguf.trimmed import PREFIX, VERSION, is_trimmed, read_trim
from specllama.heads import read_head
from specllama.heads.kind import HeadInfo
from specllama.models.demo import called
from specllama.pair.vocab import NORMAL, UNUSED, end_ids, read_vocab, token_types
from specllama.prefix_disk.directory import StateDirectory, default_directory
from specllama.regular_file import open_regular

EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
_ROWS = re.compile(
    r"token_embd\.weight|output\.(weight|bias)|per_layer_token_embd\.weight"
    r"|blk\.\d+\.(nextn\.(embed_tokens|shared_head_head)\.weight|ffn_gate_tid2eid(\.weight)?)"
)
_OUTPUTS = re.compile(r"output\.weight|blk\.\d+\.nextn\.shared_head_head\.weight")
_D2T_ROWS = re.compile(r"output\.weight|markov_w2\.weight")
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, eq=False)
class TrimSource:
    """A draft to trim. head: it is a head, or the head inside the model; None for a draft model. possible:
    ids that it can propose, in the order of its output's rows; None for all in order.
    """

    header: Header
    head: HeadInfo | None
    possible: NDArray[np.int64] | None = None

    @property
    def keeps_tokenizer(self) -> bool:
        """Whether the file keeps all tokens, and a tensor d2t says which of them are proposed."""
        return self.head is not None and self.head.kind.keeps_tokenizer

    @property
    def tensors(self) -> list[TensorInfo]:
        """The tensors of the trimmed file: of the head inside a model without the model's blocks."""
        tensors = [t for t in self.header.tensors if t.name != "d2t"]
        if self.head is None or self.head.own_file:
            return tensors
        n = self.head.n_layer_target
        return [t for t in tensors if (block := _BLOCK.match(t.name)) is None or int(block[1]) >= n]

    def has_rows(self, name: str) -> bool:
        """Whether this tensor has a row for each token that can be proposed."""
        return bool((_D2T_ROWS if self.keeps_tokenizer else _ROWS).fullmatch(name))

    @staticmethod
    def is_output(name: str) -> bool:
        """Whether this tensor is multiplied for the logits."""
        return bool(_OUTPUTS.fullmatch(name))


def trim_source(header: Header, inside: bool, possible: NDArray[np.int64] | None) -> TrimSource:
    """The parts to trim of a file whose header has passed `check_draft`. inside: the head inside a model.
    possible: the ids of its tensor d2t, if there is one. Raises UsageError for what cannot be trimmed,
    GGUFError for a damaged one.
    """
    if is_trimmed(header):
        raise UsageError(f"{header.path} is trimmed already", "trim the file that it was made from")
    head = read_head(header)
    if inside and (head is None or head.own_file):
        raise UsageError(f"{header.path} has no head inside that can be used", option="head")
    if head is not None and not head.own_file and not inside:
        head = None  # the model itself as a draft
    if head is not None and head.kind.untrimmable:
        raise UsageError(f"{header.path} cannot be trimmed: {head.kind.untrimmable}")
    source = TrimSource(header, head, possible)
    n_rows = header.n_vocab if possible is None else len(possible)
    for t in source.tensors:
        if source.has_rows(t.name) and t.shape[-1] != n_rows:
            reason = f"tensor {t.name!r} has {t.shape[-1]} rows for {n_rows} tokens"
            raise GGUFError(f"{header.path}: {reason}", "Get another file of the model.")
    names = tensor_names(header)
    if source.keeps_tokenizer and OUTPUT not in names:
        why = "the head uses the output matrix of its target"
        raise UsageError(f"{header.path} cannot be trimmed: {why}")
    return source


# Which tokens a trimmed draft keeps: all that have a meaning of their own, those of given texts, then those
# that the tokenizer learnt first.
#
# A tokenizer learns the most frequent pairs first: the rank of a merge (BPE) and the score of a token
# (SentencePiece) are orders by frequency (FR-Spec, Zhao et al. 2025, arXiv 2502.14856, takes the frequencies
# themselves). Tokens of the user's own texts come before that order.


Ids = NDArray[np.int64]

MULTIPLE = 64  # of tokens: with others llama.cpp computes a quantised output matrix by slower kernels
DEFAULT_KEPT = 32768
_DEFAULT_SHARE = 4  # at most a quarter of a vocabulary is kept by default
_CHARACTERS = 256  # of SentencePiece, kept before all other tokens
_PLACEHOLDER = re.compile(
    rb"(?i)[<\[|]*_?(unused|reserved|extra|special|dummy|placeholder)[a-z_]*[-_ ]?\d+[|>\]]*"
)


def default_kept(n_vocab: int) -> int:
    """How many tokens are kept of a vocabulary if nobody says."""
    return min(DEFAULT_KEPT, -(-n_vocab // _DEFAULT_SHARE))


def choose(header: Header, n_kept: int | None, counts: Mapping[int, int], possible: Ids | None = None) -> Ids:
    """The ids to keep, ascending. n_kept: rounded up to a MULTIPLE; None for the default. counts: how often
    each token is in the given texts. possible: tokens that the draft can propose, None for all.

    Raises UsageError for a number that is not possible.
    """
    allowed = np.arange(header.n_vocab) if possible is None else np.sort(possible)
    special = np.intersect1d(special_ids(header), allowed)
    n = default_kept(len(allowed)) if n_kept is None else n_kept
    if n < 1:
        raise UsageError(f"{n} tokens cannot be kept", f"give 1 to {len(allowed)}", option="keep")
    if n > len(allowed):
        raise UsageError(f"must be at most the {len(allowed)} tokens of the draft, not {n}", option="keep")
    if n_kept is not None and n <= len(special):
        raise UsageError(
            f"must be more than the {len(special)} control and byte tokens, which are always kept, not {n}",
            option="keep",
        )
    n = min(-(-max(n, len(special) + 1) // MULTIPLE) * MULTIPLE, len(allowed))
    order = np.concatenate((special, _by_count(header, counts), by_frequency(header)))
    order = order[np.isin(order, allowed)]
    _, first = np.unique(order, return_index=True)
    return np.sort(order[np.sort(first)][:n])


def special_ids(header: Header) -> Ids:
    """The tokens that are always kept: control, user-defined and byte tokens, those that end a generation,
    and those that the header names. Control tokens that stand for nothing (<unused0>) are not among them.
    """
    texts, vocab = header.token_texts, read_vocab(header)
    special = ~np.isin(token_types(header, len(texts)), (NORMAL, UNUSED))
    ids = {i for i in np.flatnonzero(special).tolist() if not _PLACEHOLDER.fullmatch(texts[i])}
    if vocab.kind == "bpe":  # one character for each byte value
        ids.update(
            i for i, text in enumerate(texts) if len(text) <= 2 and len(text.decode(errors="replace")) == 1
        )
    ids.update(end_ids(header, vocab))
    named = (
        int(value) for key, value in header.metadata.items() if names_token(key) and isinstance(value, int)
    )
    ids.update(i for i in (*named, vocab.bos_id, vocab.eos_id) if i is not None and 0 <= i < len(texts))
    return np.array(sorted(ids), np.int64)


def names_token(key: str) -> bool:
    """Whether the value of a metadata key is the id of a token."""
    return key.startswith("tokenizer.ggml.") and key.endswith("_token_id")


def by_frequency(header: Header) -> Ids:
    """The ordinary tokens in the order in which the tokenizer learnt them, other ones last."""
    merges, scores = (header.metadata.get(f"tokenizer.ggml.{name}") for name in ("merges", "scores"))
    n = header.n_vocab
    rank = np.full(n, np.inf)
    if read_vocab(header).kind == "bpe" and isinstance(merges, StringArray):
        ranks = {raw.replace(b" ", b"", 1): i for i, raw in reversed(list(enumerate(merges.raws())))}
        rank = np.array([ranks.get(text, np.inf) for text in header.token_texts])
    elif isinstance(scores, np.ndarray) and len(scores) == n and bool((scores != scores[0]).any()):
        rank = -np.asarray(scores, np.float64)
        # Characters by themselves have the lowest scores, the most frequent ones first, and spell all else.
        single = [i for i, text in enumerate(header.token_texts) if len(text.decode(errors="replace")) == 1]
        first = sorted(single, key=lambda i: rank[i])[:_CHARACTERS]
        rank[first] = -np.inf
    rank[token_types(header, n) != NORMAL] = np.inf
    return np.argsort(rank, kind="stable").astype(np.int64)


def _by_count(header: Header, counts: Mapping[int, int]) -> Ids:
    """The tokens of texts, the most frequent first. Raises UsageError for one that the draft lacks."""
    n = header.n_vocab
    if counts and max(counts) >= n:
        raise UsageError(f"the texts have token {max(counts)}, the draft has {n} tokens")
    ids = sorted(counts, key=lambda token: (-counts[token], token))
    return np.array(ids, np.int64)


# The tokens of prompts and texts that were evaluated before and are kept on disk (prefix_disk).
#
# Counts only: which tokens, not in which order. Somebody who gets a file that was trimmed with them can see
# from its tokens what was said rarely elsewhere and often here.


def seen_tokens(models: Sequence[str], say: Callable[[str], None]) -> dict[int, int]:
    """How often each token is in the prompts of these models, by the names that `specllama cache` shows; each
    beginning of a prompt that several of them share counts once a prompt.

    Raises NotFoundError for a model without any, ResourceError where the directory cannot be read.
    """
    if not models:
        return {}
    counts, missing = Counter[int](), set(models)
    directory = StateDirectory(default_directory(), say)
    try:
        names = directory.sizes() if directory.open(create=False) else {}
        for name in names:
            state = directory.state(name)
            if state is None or (model := called(state.meta.model)) not in models:
                continue
            missing.discard(model)
            ids, n = np.unique(np.frombuffer(state.ids, "<i4"), return_counts=True)
            counts.update(dict(zip(ids.tolist(), n.tolist(), strict=True)))
    except OSError as error:
        raise ResourceError(f"{directory.path} cannot be read: {error.strerror or error}") from None
    if missing:
        name = sorted(missing)[0]
        raise NotFoundError(f"no prompt of {name!r} is kept on disk", "specllama cache lists them")
    return dict(counts)


_LEFT_OUT = ("general.architecture", "general.alignment", "tokenizer.huggingface.json")
_PER_TOKEN = tuple(f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type"))
_MERGES = "tokenizer.ggml.merges"


class KeyValue(NamedTuple):
    """A metadata value as the parser names its type: "u32", "arr[str]"."""

    key: str
    value: Any
    kind: str


def copied(entries: Mapping[str, MetadataEntry]) -> Iterator[KeyValue]:
    """The metadata of the source without what depends on how its file is split."""
    for key, entry in entries.items():
        if key not in _LEFT_OUT and not key.startswith(("split.", PREFIX)):
            yield KeyValue(key, entry.value, entry.kind)


def shortened(
    entries: Mapping[str, MetadataEntry], ids: NDArray[np.int64], texts: list[bytes]
) -> Iterator[KeyValue]:
    """The metadata of the source with the tokens `ids` only. texts: of all of its tokens. Raises UsageError
    where no merge is left, which llama.cpp needs.
    """
    own = {int(token): i for i, token in enumerate(ids)}
    for key, value, kind in copied(entries):
        if key in _PER_TOKEN:
            raws = value.raws() if isinstance(value, StringArray) else value.tolist()
            yield KeyValue(key, [raws[token] for token in ids.tolist()], kind)
        elif key == _MERGES:
            yield KeyValue(key, _merges(value, {texts[token] for token in own}), kind)
        elif key == "tokenizer.ggml.suppress_tokens":
            if suppressed := [own[int(token)] for token in value if int(token) in own]:
                yield KeyValue(key, suppressed, kind)
        elif names_token(key):
            if value in own:
                yield KeyValue(key, own[value], kind)
        else:
            yield KeyValue(key, value, kind)


def _merges(merges: StringArray, kept: set[bytes]) -> list[bytes]:
    """The merges of kept tokens into a kept token, in their order."""
    merges_kept = []
    for raw in merges.raws():
        left, _, right = raw.partition(b" ")
        if left in kept and right in kept and left + right in kept:
            merges_kept.append(raw)
    if not merges_kept:
        message = "no merge of the tokenizer is left, so that llama.cpp could not load it"
        raise UsageError(message, "keep more")
    return merges_kept


def about(
    ids: NDArray[np.int64], n_vocab: int, source: str, sha256: str, n_bytes: int, coverage: float | None
) -> Iterator[KeyValue]:
    """The metadata that gguf/trimmed.py reads. source, sha256, n_bytes: name and contents of the source."""
    yield KeyValue(f"{PREFIX}version", VERSION, "u32")
    yield KeyValue(f"{PREFIX}n_vocab", n_vocab, "u32")
    yield KeyValue(f"{PREFIX}ids", ids.tolist(), "arr[i32]")
    yield KeyValue(f"{PREFIX}source", source, "str")
    yield KeyValue(f"{PREFIX}source_sha256", sha256, "str")
    yield KeyValue(f"{PREFIX}source_bytes", n_bytes, "u64")
    if coverage is not None:
        yield KeyValue(f"{PREFIX}coverage", coverage, "f32")


def embeddings(n_bytes: int, kind: str) -> Iterator[KeyValue]:
    """The place of the other tokens' embeddings, which is known once the file is written."""
    yield KeyValue(f"{PREFIX}embeddings_offset", 0, "u64")
    yield KeyValue(f"{PREFIX}embeddings_bytes", n_bytes, "u64")
    yield KeyValue(f"{PREFIX}embeddings_type", kind, "str")
    yield KeyValue(f"{PREFIX}embeddings_scale", 1.0, "f32")


Retype = Callable[[NDArray[np.uint8], str, int, str], NDArray[np.uint8]]
"""From rows in a tensor type, with so many elements, to rows in another type."""
_ARRAY = re.compile(r"arr\[(\w+)\]")
_ALIGNMENT, _PIECE = 32, 16 << 20


def sha256_of(paths: Iterable[str], report: Callable[[float], None]) -> str:
    """The hash of files, one after the other, as hexadecimal digits. report: gets the share that is done.
    Raises IntegrityError for one that changes meanwhile, OSError.
    """
    paths, digest, done = list(paths), hashlib.sha256(), 0
    total = max(1, sum(os.path.getsize(path) for path in paths))
    for path in paths:
        with open_regular(path, buffering=0) as file:
            before = os.fstat(file.fileno())
            while piece := file.read(_PIECE):
                digest.update(piece)
                done += len(piece)
                report(min(1.0, done / total))
            after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise IntegrityError(f"{path} was changed while it was read", "trim it again")
    return digest.hexdigest()


def write_trimmed(
    source: TrimSource, out: Path, ids: Ids, info: Iterable[KeyValue], retype: str, convert: Retype
) -> None:
    """Write the file. ids: to keep. info: of `about`. retype: the type of the output matrix, "" for
    that of the source. Raises OSError, UsageError, EngineError; what is written by then is of no use.
    """
    import gguf

    header, rows = source.header, row_indexes(source, ids)
    writer = gguf.GGUFWriter(str(out), header.architecture)
    for item in (*_metadata(source, ids), *info):
        _add(writer, item)
    rest = np.zeros((0, 0), np.uint8)
    tied = not any(source.is_output(t.name) for t in source.tensors)
    for t in source.tensors:
        data = tensor_bytes(header, t)
        if t.name == EMBEDDINGS and source.head is None:
            rest = np.asarray(np.delete(data, ids, axis=0))
            for item in embeddings(rest.nbytes, t.type):
                _add(writer, item)
        if source.has_rows(t.name):
            data = kept_rows(data, t, rows)
        if retype and source.is_output(t.name):
            _add_tensor(writer, t.name, convert(data, t.type, t.shape[0], retype), retype.upper())
            continue
        _add_tensor(writer, t.name, data, t.type)
        if retype and tied and t.name == EMBEDDINGS:  # looking rows up costs nothing
            _add_tensor(writer, OUTPUT, convert(data, t.type, t.shape[0], retype), retype.upper())
    if source.keeps_tokenizer:
        _add_tensor(writer, "d2t", ids.view(np.uint8), "I64")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if len(rest):
        offset = _end(read_header(out))
        with open(out, "rb+") as file:  # the other tokens' embeddings after the last tensor
            file.truncate(offset)
            file.seek(offset)
            rest.tofile(file)
        set_embeddings(out, offset, 1.0)
    with open(out, "rb+") as file:
        os.fsync(file.fileno())


def set_embeddings(path: Path, offset: int, scale: float) -> None:
    """Write where the other tokens' embeddings are into a file; 0 removes them. Raises OSError, GGUFError."""
    with FileSource(path) as opened:
        entries = parse(opened).entries
    with open(path, "rb+") as file:
        for name, value in (("offset", struct.pack("<Q", offset)), ("scale", struct.pack("<f", scale))):
            key = f"{PREFIX}embeddings_{name}"
            file.seek(entries[key].offset + 8 + len(key) + 4)
            file.write(value)
        if not offset:
            file.truncate(_end(read_header(path)))
        file.flush()
        os.fsync(file.fileno())


def _metadata(source: TrimSource, ids: Ids) -> Iterator[KeyValue]:
    header = source.header
    with FileSource(header.parts[0] if header.parts else header.path) as opened:
        entries = parse(opened).entries
    items = list(copied(entries) if source.keeps_tokenizer else shortened(entries, ids, header.token_texts))
    yield from (
        item._replace(value=f"{item.value} trimmed") if item.key == "general.name" else item for item in items
    )
    # llama.cpp tells some models apart by the size of their whole vocabulary.
    key = f"{header.architecture}.vocab_size"
    if all(item.key != key for item in items):
        yield KeyValue(key, header.n_vocab, "u32")


def _add(writer: object, item: KeyValue) -> None:
    """Add a metadata value to a GGUFWriter."""
    import gguf

    names = {"str": "STRING", "bool": "BOOL", "u": "UINT", "i": "INT", "f": "FLOAT"}

    def code(kind: str) -> gguf.GGUFValueType:
        return gguf.GGUFValueType[names.get(kind) or f"{names[kind[0]]}{kind[1:]}"]

    value, array = item.value, _ARRAY.fullmatch(item.kind)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif array and not isinstance(value, list):
        value = value.raws()
    if array and not value:
        return  # which the library does not write; no key that matters is empty
    assert isinstance(writer, gguf.GGUFWriter)
    kind = gguf.GGUFValueType.ARRAY if array else code(item.kind)
    writer.add_key_value(item.key, value, kind, code(array[1]) if array else None)


def tensor_bytes(header: Header, t: TensorInfo) -> NDArray[np.uint8]:
    """The bytes of a tensor, not read yet; shape: as numpy orders dimensions, the last one in bytes."""
    path = header.parts[t.part] if header.parts else header.path
    outer = t.shape[:0:-1]
    n = int(np.prod(outer, dtype=np.int64))
    return np.memmap(path, np.uint8, "r", t.offset, (*outer, t.n_bytes // n))


def kept_rows(data: NDArray[np.uint8], t: TensorInfo, rows: Ids) -> NDArray[np.uint8]:
    """The rows of the kept tokens, of a tensor of one dimension or two."""
    table = data if len(t.shape) > 1 else data.reshape(t.shape[0], -1)
    return np.asarray(table[rows]).reshape(-1, *data.shape[1:])


def row_indexes(source: TrimSource, ids: Ids) -> Ids:
    """The rows of the tensors that have a row for each token that can be proposed."""
    if source.possible is None:
        return ids
    order = np.argsort(source.possible)
    return order[np.searchsorted(source.possible[order], ids)]


def _add_tensor(writer: object, name: str, data: NDArray[np.uint8], kind: str) -> None:
    """Add a tensor to a GGUFWriter. Raises UsageError for a type that the library does not know."""
    import gguf

    assert isinstance(writer, gguf.GGUFWriter)
    if kind not in gguf.GGMLQuantizationType.__members__:
        raise UsageError(f"the library gguf here does not write tensors of type {kind}")
    writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])


def _end(header: Header) -> int:
    """The byte after the last tensor, aligned."""
    end = max(t.offset + t.n_bytes for t in header.tensors)
    return -(-end // _ALIGNMENT) * _ALIGNMENT


def changed_source(draft: Header) -> str:
    """The name of the source of a trimmed draft if it is in the same folder and has other contents now, else
    "". Reads the whole source if its size is the same. Raises GGUFError.
    """
    trim = read_trim(draft)
    if trim is None or os.path.basename(trim.source) != trim.source or not trim.source:
        return ""
    source = os.path.join(os.path.dirname(draft.path), trim.source)
    try:
        if not os.path.isfile(source) or os.path.samefile(source, draft.path):
            return ""
        parts = read_model(source).parts
        if sum(map(os.path.getsize, parts)) != trim.source_bytes:
            return trim.source
        return trim.source if sha256_of(parts, lambda _share: None) != trim.source_sha256 else ""
    except IntegrityError:  # it is being changed, or is no model any more
        return trim.source
    except (OSError, NotFoundError, UsageError):  # it cannot be read
        return ""
