"""What a trained head is: its kind, its shape and how it is driven. heads.py reads it from a header.

A head drafts tokens from hidden states of its target. It is a part of the model's own file (multi-token
prediction, MTP), or a file that is no model by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from specllama.errors import GGUFError
from specllama.gguf.header import MAX_LAYERS, Header
from specllama.gguf.parse import TensorInfo
from specllama.wording import counted

GET_ANOTHER = "Get another file of the head."


class HeadKind(StrEnum):
    """The kinds of heads, by the way in which they are driven."""

    MTP = "mtp"
    GEMMA4_ASSISTANT = "gemma4-assistant"
    EAGLE3 = "eagle3"
    DFLASH = "dflash"
    DSPARK = "dspark"


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
    sample_from_anchor, causal, has_confidence, mask_id: how a block drafter is driven; mask_id is None if the
    file does not set it.
    """

    kind: HeadKind
    header: Header = field(repr=False)
    own_file: bool
    n_layer: int
    n_embd: int
    n_embd_target: int
    n_vocab: int
    n_proposed: int
    n_layer_target: int = 0
    target_layers: tuple[int, ...] = ()
    own_embeddings: bool = True
    own_output: bool = True
    n_chained: int = 1
    n_draft_max: int | None = None
    block_size: int = 0
    selector_top_k: int = 0
    sample_from_anchor: bool = True
    causal: bool = False
    has_confidence: bool = False
    mask_id: int | None = None

    @property
    def path(self) -> str:
        """The file that holds it."""
        return self.header.path

    @property
    def shares_cache(self) -> bool:
        """Whether it reads the target's KV cache and has none."""
        return self.kind is HeadKind.GEMMA4_ASSISTANT

    @property
    def has_d2t(self) -> bool:
        """Whether it proposes a part of the vocabulary."""
        return any(t.name == "d2t" for t in self.header.tensors)

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Its own tensors."""
        if self.own_file:
            return self.header.tensors
        return tuple(t for t in self.header.tensors if (_block(t.name) or 0) >= self.n_layer_target)

    @property
    def weight_bytes(self) -> int:
        """Bytes of its own tensors."""
        return sum(t.n_bytes for t in self.tensors)

    @property
    def label(self) -> str:
        """Its kind and size for people: "MTP, 1 layer"."""
        layers = counted(self.n_layer, "layer")
        if self.kind is HeadKind.MTP:
            return f"MTP, {layers}"
        if self.kind is HeadKind.GEMMA4_ASSISTANT:
            return f"Gemma 4 assistant, {layers}"
        if self.kind is HeadKind.EAGLE3:
            return "EAGLE-3"
        name = "DSpark" if self.kind is HeadKind.DSPARK else "DFlash 2" if self.selector_top_k else "DFlash"
        return f"{name}, blocks of {self.block_size}"


def _block(name: str) -> int | None:
    parts = name.split(".", 2)
    return int(parts[1]) if parts[0] == "blk" and len(parts) > 2 and parts[1].isdigit() else None


def tensor_names(header: Header) -> frozenset[str]:
    """The names of all tensors of a file."""
    return frozenset(t.name for t in header.tensors)


def first_missing(names: frozenset[str], needed: Iterable[str]) -> str:
    """The first of the needed weights that is missing, "" if none is."""
    return next((f"{name}.weight" for name in needed if f"{name}.weight" not in names), "")


def require(header: Header, needed: Iterable[str], n_layer: int, block: str) -> None:
    """Raises GGUFError if weights are missing: those `needed`, and those of each block, as words."""
    if not 1 <= n_layer <= MAX_LAYERS:
        header.fail(
            f"{header.architecture}.block_count", f"{n_layer} is not in 1 to {MAX_LAYERS}", GET_ANOTHER
        )
    wanted = [*needed, *(f"blk.{i}.{name}" for i in range(n_layer) for name in block.split())]
    if missing := first_missing(tensor_names(header), wanted):
        raise GGUFError(
            f"{header.path}: {len(header.tensors)} tensors: {missing} is not among them", GET_ANOTHER
        )


def require_shape(header: Header, name: str, expected: tuple[int, int]) -> None:
    """Raises GGUFError if a tensor has another shape."""
    if (shape := tensor_shape(header, name)) != expected:
        message = f"{header.path}: tensor {name!r} is {dims(shape)}, not {dims(expected)}"
        raise GGUFError(message, GET_ANOTHER)


def tensor_shape(header: Header, name: str) -> tuple[int, ...]:
    """A tensor's shape, () if there is no such tensor."""
    return next((t.shape for t in header.tensors if t.name == name), ())


def dims(shape: tuple[int, ...]) -> str:
    """A shape for messages."""
    return " × ".join(map(str, shape))
