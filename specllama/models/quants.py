"""Which files of a repository make up a model, and which model a tag selects.

Works on paths alone, so that one rule serves listings of the hub and files on disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specllama.errors import IntegrityError, NotFoundError
from specllama.gguf.source import DOWNLOAD_AGAIN
from specllama.models.names import shown

PREFERRED = ("Q4_K_M", "Q8_0")
_SIDECAR_WORDS = ("mmproj", "imatrix")
_SIDECAR_STARTS = ("mtp-", "eagle3-", "dflash-", "dspark-")
_SPLIT = re.compile(r"(?s)(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:UD-)?(?:I?Q[1-9](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_MAX_NAMED = 30


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model of a repository. parts: all its parts in order, one if it is not split; missing: those
    absent.
    """

    parts: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def quant(self) -> str:
        """The quantisation in its path, in capitals; "" if the path has none."""
        found = list(_QUANT.finditer(self.parts[0]))
        return found[-1][0].upper() if found else ""


def is_sidecar(path: str) -> bool:
    """Whether a file accompanies a model: a projector, an importance matrix, a draft head."""
    name = path.rpartition("/")[2].lower()
    return any(word in name for word in _SIDECAR_WORDS) or name.startswith(_SIDECAR_STARTS)


def find_models(paths: Iterable[str]) -> list[ModelFiles]:
    """The models among the paths, sorted by name, unsplit ones first."""
    found: dict[tuple[str, int], set[int]] = {}
    names: dict[tuple[str, int, int], str] = {}
    whole = []
    for path in paths:
        if not path.lower().endswith(".gguf") or is_sidecar(path):
            continue
        match = _SPLIT.fullmatch(path)
        if match is None:
            whole.append(ModelFiles((path,)))
            continue
        stem, number, count = match[1], int(match[2]), int(match[3])
        if 1 <= number <= count:
            found.setdefault((stem, count), set()).add(number)
            names[stem, count, number] = path
    split = []
    for (stem, count), numbers in found.items():
        parts = [
            names.get((stem, count, i)) or f"{stem}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)
        ]
        missing = [part for i, part in enumerate(parts, 1) if i not in numbers]
        split.append(ModelFiles(tuple(parts), tuple(missing)))
    return sorted(whole, key=lambda m: m.parts) + sorted(split, key=lambda m: m.parts)


def choose(found: Sequence[ModelFiles], tag: str, where: str, preferred: str = "") -> ModelFiles:
    """The model that a tag selects; without a tag `preferred`, else Q4_K_M, else Q8_0, else the first.

    tag: a quantisation or a file. where: the repository, for messages. Raises NotFoundError listing the
    models of the repository, IntegrityError naming a missing part.
    """
    if not found:
        raise NotFoundError(f"{where} has no GGUF model", "look for a repository whose name ends with -GGUF")
    if tag:
        model = _by_file(found, tag) if tag.lower().endswith(".gguf") else _by_quant(found, tag)
        if model is None:
            kind = "file" if tag.lower().endswith(".gguf") else "quantisation"
            raise NotFoundError(f"{where} has no {kind} {shown(tag)}", f"there are: {_listed(found)}")
    else:
        wanted = [q for q in (preferred, *PREFERRED) if q]
        model = next((m for q in wanted if (m := _by_quant(found, q)) is not None), found[0])
    if model.missing:
        raise IntegrityError(f"{where}: part {model.missing[0]} is missing", DOWNLOAD_AGAIN)
    return model


def _by_quant(found: Sequence[ModelFiles], quant: str) -> ModelFiles | None:
    # llama.cpp's rule for tags: anywhere in the path, followed by a dot, a dash or a slash.
    pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quant)}(?=[.\-/])", re.IGNORECASE)
    return next((m for m in found if pattern.search(m.parts[0])), None)


def _by_file(found: Sequence[ModelFiles], file: str) -> ModelFiles | None:
    return next((m for m in found if file in m.parts), None) or next(
        (m for m in found if any(p.rpartition("/")[2] == file for p in m.parts)), None
    )


def _listed(found: Sequence[ModelFiles]) -> str:
    names = list(dict.fromkeys(m.quant or m.parts[0] for m in found))
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
