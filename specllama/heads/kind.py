"""Kinds of trained heads: the entry of a kind, and the head that it reads from a header.

A head drafts tokens from hidden states of its target. It is a part of the model's own file (multi-token
prediction, MTP), or a file that is no model by itself. Each kind is a file of this package, its entry
is in `KINDS` in `__init__.py`; all other code uses the attributes of the entry, never its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from specllama.errors import GGUFError, IntegrityError
from specllama.gguf.architectures import LAYER_INPUTS
from specllama.gguf.header import MAX_LAYERS, Header, dims, first_missing, tensor_names, tensor_shape
from specllama.gguf.parse import TensorInfo, Value
from specllama.regular_file import open_regular


@dataclass(frozen=True, eq=False)
class HeadKind:
    """A kind of heads as the rest of the program sees it.

    name: in JSON and in the keys of stored profiles. read: the head in a header that `recognises` accepts;
    None for a model whose head cannot be used; raises GGUFError for a file that holds nothing but a head from
    which llama.cpp could not load it, or that would end the process later. refusals: why such a head cannot
    draft for a target, both headers checked. label: kind and size for people. architecture: of files that
    hold nothing else; "" for heads of the architecture of their target. alone: whether the file that has the
    head has no model.

    unusable: why the head that a model's header promises cannot be used; damaged: why llama.cpp does not load
    the model because of it; "" where nothing is wrong. memory_header: what the head's context has: its
    blocks, and the tensors that it does not use from the target.

    drafts_blocks: it drafts a block of tokens in one decode, else token by token. encodes: of the latter, an
    encoder turns the target's features into its hidden states. shares_cache: it reads the target's KV cache
    and has none. nextn_layers: llama.cpp loads it as layers of multi-token prediction. one_block_a_step: a
    step reads its first block alone. keeps_tokenizer: its trimmed file has all tokens, and a tensor d2t says
    which of them it proposes. untrimmable: why it cannot be trimmed, "" if it can.
    """

    name: str
    recognises: Callable[[Header], bool]
    read: Callable[[Header], HeadInfo | None]
    refusals: Callable[[Header, HeadInfo], Iterator[str]]
    label: Callable[[HeadInfo], str]
    architecture: str = ""
    alone: Callable[[Header], bool] = lambda _header: True
    unusable: Callable[[Header], str] = lambda _header: ""
    damaged: Callable[[Header], str] = lambda _header: ""
    memory_header: Callable[[HeadInfo], Header] = lambda head: head.header
    drafts_blocks: bool = False
    encodes: bool = False
    shares_cache: bool = False
    nextn_layers: bool = False
    one_block_a_step: bool = False
    keeps_tokenizer: bool = True
    untrimmable: str = ""


@dataclass(frozen=True, eq=False)
class HeadInfo:
    """A head as its header describes it.

    header: of the file that holds it. own_file: whether that file is no model by itself. n_layer: blocks of
    the head. n_layer_target: layers of its target, 0 where the file does not say. n_embd: its hidden size.
    n_embd_target: width of the target's rows that it reads. target_layers: the layers whose inputs it reads;
    () for the rows of `llama_get_embeddings_nextn`. n_vocab: tokens of its tokenizer. n_proposed: tokens that
    it can propose, fewer with a d2t tensor. n_chained: blocks of which each drafts the token of its place,
    the last one all further ones; 1 where all blocks draft all tokens. n_draft_max: most tokens that it
    proposes in a round; None: any number. block_size: tokens of a block drafter's block, 0 for the others.
    selector_top_k: candidates for each token among which a selector chooses (DFlash 2), 0 without one.
    anchored, causal, mask_id: how a block drafter is driven; anchored: the row of the last token drafts the
    first of a block, else the row after it does; mask_id is None if it is not set.
    """

    kind: HeadKind
    header: Header = field(repr=False)
    n_layer: int
    n_embd: int
    n_embd_target: int
    n_vocab: int
    n_proposed: int
    own_file: bool = True
    n_layer_target: int = 0
    target_layers: tuple[int, ...] = ()
    own_embeddings: bool = True
    own_output: bool = True
    n_chained: int = 1
    n_draft_max: int | None = None
    block_size: int = 0
    selector_top_k: int = 0
    anchored: bool = False
    causal: bool = False
    mask_id: int | None = None

    @property
    def path(self) -> str:
        return self.header.path

    @property
    def label(self) -> str:
        """Its kind and size for people: "MTP, 1 layer"."""
        return self.kind.label(self)

    @property
    def memory_header(self) -> Header:
        """The parts that its context has, as a header of its own whose memory can be planned."""
        return self.kind.memory_header(self)

    @property
    def runs_alone(self) -> bool:
        """Whether it drafts token by token and uses neither embeddings nor cache of a target's context."""
        return not self.kind.drafts_blocks and (self.own_embeddings or not self.own_file)

    @property
    def has_d2t(self) -> bool:
        """Whether it proposes a part of the vocabulary."""
        return any(t.name == "d2t" for t in self.header.tensors)

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        if self.own_file:
            return self.header.tensors
        return tuple(t for t in self.header.tensors if (_block(t.name) or 0) >= self.n_layer_target)

    @property
    def step_tensors(self) -> tuple[TensorInfo, ...]:
        """Those of its tensors that a step uses."""
        if not self.kind.one_block_a_step:
            return self.tensors
        return tuple(t for t in self.tensors if _block(t.name) in (None, self.n_layer_target))

    @property
    def weight_bytes(self) -> int:
        """Bytes of its own tensors."""
        return sum(t.n_bytes for t in self.tensors)


def _block(name: str) -> int | None:
    parts = name.split(".", 2)
    return int(parts[1]) if parts[0] == "blk" and len(parts) > 2 and parts[1].isdigit() else None


GET_ANOTHER = "Get another file of the head."


def require(header: Header, needed: Iterable[str], n_layer: int, block: str) -> None:
    """Raises GGUFError if weights are missing: those `needed`, and those of each block, as words."""
    if not 1 <= n_layer <= MAX_LAYERS:
        reason = f"{header.architecture}.block_count"
        header.fail(reason, f"{n_layer} is not in 1 to {MAX_LAYERS}", GET_ANOTHER)
    wanted = [*needed, *(f"blk.{i}.{name}" for i in range(n_layer) for name in block.split())]
    if missing := first_missing(tensor_names(header), wanted):
        message = f"{header.path}: {len(header.tensors)} tensors: {missing} is not among them"
        raise GGUFError(message, GET_ANOTHER)


def require_shape(header: Header, name: str, expected: tuple[int, int]) -> None:
    """Raises GGUFError if a tensor has another shape."""
    if (shape := tensor_shape(header, name)) != expected:
        message = f"{header.path}: tensor {name!r} is {dims(shape)}, not {dims(expected)}"
        raise GGUFError(message, GET_ANOTHER)


def read_layers(header: Header) -> tuple[int, ...]:
    """The layers of the target that the head reads. Raises GGUFError for negative ones."""
    key = f"{header.architecture}.target_layers"
    value = header.metadata.get(key)
    layers = tuple(int(i) for i in value) if isinstance(value, np.ndarray) else ()
    if any(i < 0 for i in layers):
        header.fail(key, f"layer {min(layers)} is not possible", GET_ANOTHER)
    return layers


def layer_refusals(target: Header, head: HeadInfo, last: frozenset[str]) -> Iterator[str]:
    """Of a head that reads layers. last: architectures that hand the last one's output out for it."""
    yield from width_refusals(head.n_embd_target, target.n_embd)
    architecture, n_layer = target.architecture, target.n_layer_trunk
    if max(head.target_layers) > n_layer:
        yield f"the head reads layer {max(head.target_layers)}, the target has {n_layer}"
    if architecture not in LAYER_INPUTS and min(head.target_layers) < n_layer:
        yield f"llama.cpp here does not hand out the layers of {architecture!r} models"
    if n_layer in head.target_layers and architecture not in last:
        yield (
            f"the head reads the output of the last layer, {n_layer - 1}, which llama.cpp here does not hand "
            f"out for {architecture!r} models"
        )
    lacks = [n for n, own in (("embeddings", head.own_embeddings), ("output", head.own_output)) if not own]
    sizes = (("hidden sizes", head.n_embd, target.n_embd), ("vocabularies", head.n_vocab, target.n_vocab))
    for name, ours, theirs in sizes:
        if lacks and ours != theirs:
            what = " and ".join(lacks)
            yield f"the head uses the target's {what}, but their {name} are {theirs} and {ours}"


def width_refusals(wanted: int, there: int) -> Iterator[str]:
    if wanted != there:
        yield f"the head reads hidden states of {wanted} elements, the target's have {there}"


def n_proposed(header: Header, own_output: bool) -> int:
    """Tokens that a head proposes. own_output: it has an output matrix. Raises GGUFError for a wrong d2t."""
    info = next((t for t in header.tensors if t.name == "d2t"), None)
    if info is None:
        return header.n_vocab
    where = f"{header.path}: tensor 'd2t', data at byte {info.offset}"
    if info.type != "I64" or len(info.shape) != 1 or not 1 <= info.n_elements <= header.n_vocab:
        present = f"{dims(info.shape)} of type {info.type}"
        message = f"{where}: {present}, not I64 and one id for each of up to {header.n_vocab} tokens"
        raise GGUFError(message, GET_ANOTHER)
    if not own_output:
        message = f"{where}: a shortened vocabulary needs output.weight, which the file lacks"
        raise GGUFError(message, GET_ANOTHER)
    if "output.weight" in tensor_names(header):
        require_shape(header, "output.weight", (header.n_embd, info.n_elements))
    return info.n_elements


def read_d2t(head: HeadInfo) -> None:
    """Check the ids in a head's d2t tensor, which is read from the local file.

    Raises GGUFError for ids outside the vocabulary or twice: llama.cpp would write outside its buffers. Does
    nothing without such a tensor.
    """
    info = next((t for t in head.header.tensors if t.name == "d2t"), None)
    if info is None:
        return
    path = head.header.parts[info.part] if head.header.parts else head.path
    try:
        with open_regular(path) as source:
            source.seek(info.offset)
            data = source.read(info.n_bytes)
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror or error}") from None
    ids = np.frombuffer(data[: len(data) // 8 * 8], "<i8")
    where = f"{path}: tensor 'd2t', data at byte {info.offset}"
    if len(ids) != head.n_proposed:
        raise GGUFError(f"{where}: {len(ids)} ids of {head.n_proposed}", GET_ANOTHER)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < head.n_vocab:
        raise GGUFError(f"{where}: ids from {ids.min()} to {ids.max()} of {head.n_vocab} tokens", GET_ANOTHER)
    if len(set(ids.tolist())) != len(ids):  # np.unique imports numpy.ma
        raise GGUFError(f"{where}: an id occurs twice", GET_ANOTHER)


def of_blocks(header: Header, kept: range, tensors: tuple[TensorInfo, ...]) -> Header:
    """A header of these blocks, numbered from 0, and these tensors."""
    prefix = f"{header.architecture}."
    metadata: dict[str, Value] = {}
    for key, value in header.metadata.items():
        if isinstance(value, np.ndarray) and key.startswith(prefix) and len(value) == header.n_layer:
            value = value[kept.start : kept.stop]
        metadata[key] = value
    metadata[f"{prefix}block_count"] = len(kept)
    metadata.pop(f"{prefix}nextn_predict_layers", None)
    renamed = tuple(replace(t, name=_renumbered(t.name, kept.start)) for t in tensors)
    return replace(header, metadata=MappingProxyType(metadata), tensors=renamed)


def _renumbered(name: str, start: int) -> str:
    first, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    return f"blk.{int(number) - start}.{rest}" if first == "blk" and number.isdigit() else name
