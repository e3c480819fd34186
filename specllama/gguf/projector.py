"""What the header of a projector says: its kind, for which models it is, and how large its images become.

A projector is a file of its own, mmproj-*.gguf, with the encoder that turns images into rows of a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specllama.errors import GGUFError, UsageError
from specllama.gguf.check import check_numbers, check_projector
from specllama.gguf.header import Header
from specllama.regular_file import table_of

_TABLE: dict[str, Any] = table_of(__file__)
_BY_TENSOR, _MERGE, _ROWS, _OF = (
    {kind: value for value, kinds in _TABLE[key].items() for kind in kinds.split()}
    for key in ("width", "merge", "rows", "of")
)
_AT_ONCE, _CAUSAL = frozenset(_TABLE["at_once"]["kinds"].split()), _TABLE["at_once"]["causal"]
_FOLDED, _ROTATED, _SEEING = (frozenset(_TABLE[key].split()) for key in ("folded", "rotated", "seeing"))
_MAX_SIDE = 8192  # pixels: libmtmd refuses more
# Of an image, with which libmtmd would compute for hours.
_MOST = {"preproc_image_size": _MAX_SIDE, "image_max_pixels": _MAX_SIDE**2, "preproc_max_tiles": 256}


@dataclass(frozen=True, slots=True)
class Projector:
    """The vision part of a projector's file. kind: "gemma3". width: of the rows that it makes, 0 where that
    is not known. n_patches: the most that it computes at once. n_rows: the most rows of an image, or of a
    part that is computed apart. at_once: whether a decode must have all of them.
    """

    header: Header
    kind: str
    width: int
    n_patches: int
    n_rows: int
    at_once: bool

    @property
    def rotated(self) -> bool:
        """Whether positions rotate the encoder's queries and keys."""
        return self.kind in _ROTATED

    @property
    def masked(self) -> bool:
        """Whether most of its layers attend within windows, by a mask over all patches."""
        return self.header.integer("clip.vision.n_wa_pattern") > 0

    @property
    def n_ubatch(self) -> int:
        """The rows that the model must be able to compute at once, 0 for any number."""
        return self.n_rows if self.at_once else 0


def read_projector(header: Header, max_tokens: int = 0) -> Projector:
    """The vision part of a projector. max_tokens: of an image, 0 for its own limit. Raises UsageError for a
    file that is none, GGUFError for numbers that are not possible and where a tensor is missing without which
    libmtmd would end the process.
    """
    check_projector(header)
    check_numbers(header)
    kind = header.text("clip.projector_type") or header.text("clip.vision.projector_type")
    if lacking := next(_lacking(header, kind), ""):
        problem = f"{header.path}: {len(header.tensors)} tensors: {lacking} is not among them"
        raise GGUFError(problem, "Get the projector again, or another one.")
    patch, side = _size(header, "patch_size"), _size(header, "image_size", 0)
    _size(header, "attention.head_count", 0, max(0, header.integer("clip.vision.embedding_length") // 4))
    for key, most in _MOST.items():
        _size(header, key, 0, most)
    merge = _size(header, "projector.scale_factor", 0) or _size(header, "spatial_merge_size", 0)
    merge = merge or int(_MERGE.get(kind, 1))
    area = (patch * merge) ** 2
    pixels = header.integer("clip.vision.image_max_pixels")
    n_rows = int(_ROWS.get(kind, 0)) or pixels // area
    if n_rows * area > _MAX_SIDE**2:
        header.fail("clip.vision.patch_size", f"{patch} makes images of {n_rows * area} pixels")
    if n_rows:
        n_rows = max_tokens or n_rows
        n_patches = n_rows * (1 if kind in _FOLDED else merge**2)
    else:
        n_patches = (side // patch) ** 2
        n_rows = -(-n_patches // merge**2)
    width = _width(header, kind)
    at_once = kind in _AT_ONCE and width not in _CAUSAL.get(kind, ())
    return Projector(header, kind, width, n_patches, n_rows, at_once)


def check_fits(projector: Projector, target: Header) -> None:
    """Raises UsageError for a projector of another model than this one, where the headers show it."""
    of, architecture, why = _OF.get(projector.kind, "").split(), target.architecture, ""
    if target.n_embd and projector.width not in (0, target.n_embd):
        why = f"makes rows of {projector.width} numbers, and {target.name} reads rows of {target.n_embd}"
    elif (of or architecture in _SEEING) and architecture not in of:
        why = f"is of type {projector.kind}, which is not for {architecture} models such as {target.name}"
    if why:
        raise UsageError(
            f"{projector.header.path} is the projector of another model: it {why}",
            "use the mmproj-*.gguf of the model's own repository",
        )


def _size(header: Header, key: str, least: int = 1, most: int = _MAX_SIDE) -> int:
    """A size of the encoder. Raises GGUFError for one that is not possible."""
    value = header.integer(f"clip.vision.{key}")
    if not least <= value <= most:
        header.fail(f"clip.vision.{key}", f"{value} is not in {least} to {most}")
    return value


def _lacking(header: Header, kind: str) -> Iterator[str]:
    """Tensors that are needed and not there, or those one of which is."""
    there = {tensor.name for tensor in header.tensors}
    for names, kinds in _TABLE["needed"].items():
        if kind in kinds.split():
            for i in range(header.integer("clip.vision.block_count") if "*" in names else 1):
                here = names.replace("*", str(i))
                if there.isdisjoint(here.split()):
                    yield here.replace(" ", " or ")


def _width(header: Header, kind: str) -> int:
    name, _, axis = _BY_TENSOR.get(kind, "").partition(" ")
    shape = next((t.shape for t in header.tensors if t.name == name), ())
    return shape[int(axis)] if axis and int(axis) < len(shape) else 0
