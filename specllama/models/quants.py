"""The files of a repository that make up a model or a head, and those that a tag selects.

Works on names alone, so that one rule serves listings of the hub and files on disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from specllama.errors import IntegrityError, NotFoundError, UsageError
from specllama.gguf.source import DOWNLOAD_AGAIN, MAX_PARTS
from specllama.models.names import shown

PREFERRED = ("Q4_K_M", "Q8_0")
PROJECTOR = "mmproj"  # in the names of projectors
_SIDECAR_WORDS = (PROJECTOR, "imatrix")
_PROJECTOR_QUANTS = ("F16", "BF16", "Q8_0", "F32")  # in the order in which they are taken
_OF_ANY = frozenset(("", PROJECTOR, "gguf", "model", "vision", "projector", "clip"))  # words of no model
_HEAD_STARTS = ("mtp-", "eagle3-", "dflash-", "dspark-")  # llama.cpp's names of heads next to their model
_HEAD_WORDS = re.compile(r"(?<![a-z0-9])(?:eagle-?3|dflash|dspark|gemma-?4\S*-assistant)(?![a-z0-9])")
_SPLIT = re.compile(r"(?s)(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:(?<![A-Za-z0-9])UD-)?(?:I?Q[1-9](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_MAX_NAMED = 30
MAX_ENTRIES = 4096  # of a folder, that are looked at
_USUAL_BITS = 4  # of a weight, where nobody asks for a quantisation
_USUAL_SUFFIXES = ("_K_M", "_K_XL", "_K_L", "_K_S", "_K", "_0", "_1", "_NL", "_XS")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model of a repository. there: those of its parts that exist, by number from 1, at least one; the
    paths of the others are made when they are asked for. n_parts: 1 if it is not split.
    """

    there: Mapping[int, str]
    n_parts: int = 1

    @property
    def first(self) -> str:
        """The path of its first part."""
        return self._path(1)

    @property
    def parts(self) -> tuple[str, ...]:
        """The paths of all its parts in order."""
        return tuple(map(self._path, range(1, self.n_parts + 1)))

    @property
    def missing(self) -> tuple[str, ...]:
        """The paths of its parts that do not exist."""
        return tuple(self._path(i) for i in range(1, self.n_parts + 1) if i not in self.there)

    @property
    def quant(self) -> str:
        """The quantisation in its path, in capitals; "" if the path has none."""
        matches = list(_QUANT.finditer(self.first))
        return matches[-1][0].upper() if matches else ""

    @property
    def stem(self) -> str:
        """Its path without the number of a part, the same for a model that is split and one that is not."""
        match = _SPLIT.fullmatch(self.first) if self.n_parts > 1 else None
        return match[1] if match is not None else self.first[: -len(".gguf")]

    def means(self, tag: str) -> bool:
        return bool(_by_tag([self], tag))

    def named(self, file: str) -> bool:
        """Whether this is the path, or the name, of one of its parts."""
        return any(file in (path, path.rpartition("/")[2]) for path in self.paths_like(file))

    def paths_like(self, file: str) -> list[str]:
        """The paths of the parts that are there, and of the part that has this file's number."""
        match, paths = _SPLIT.fullmatch(file), list(self.there.values())
        if match is not None and 1 <= int(match[2]) <= self.n_parts:
            paths.append(self._path(int(match[2])))
        return paths

    def _path(self, number: int) -> str:
        if number in self.there:
            return self.there[number]
        match = _SPLIT.fullmatch(next(iter(self.there.values())))
        assert match is not None
        return f"{match[1]}-{number:05d}-of-{self.n_parts:05d}.gguf"


def is_sidecar(path: str) -> bool:
    """Whether a file accompanies a model: a projector, an importance matrix, a draft head."""
    return _is_other(path) or is_head_name(path)


def is_head_name(path: str) -> bool:
    """Whether a file is that of a head by its name or folder; its header decides (specllama/heads)."""
    folder, _, name = path.lower().rpartition("/")
    return (
        name.startswith(_HEAD_STARTS) or _HEAD_WORDS.search(name) is not None or f"/{folder}".endswith("/mtp")
    )


def _is_other(path: str) -> bool:
    name = path.rpartition("/")[2].lower()
    return any(word in name for word in _SIDECAR_WORDS)


def projectors_for(paths: Iterable[str], model: str) -> list[str]:
    """The projectors among the paths of a repository that are in the folder of this model, or in one around
    it: the nearest first, then those whose names have most in common with the model's, then by precision.
    """
    words, folder = name_words(model), model.rpartition("/")[0].split("/")

    def rank(path: str) -> tuple[Any, ...]:
        quant = ModelFiles({1: path}).quant
        order = _PROJECTOR_QUANTS.index(quant) if quant in _PROJECTOR_QUANTS else len(_PROJECTOR_QUANTS)
        return -path.count("/"), -len(words & name_words(path)), order, path

    def is_near(path: str) -> bool:
        own = path.rpartition("/")[0]
        return not own or own.split("/") == folder[: own.count("/") + 1]

    there = [path for path in paths if path.lower().endswith(".gguf") and is_projector_name(path)]
    return sorted(filter(is_near, there), key=rank)


def is_projector_name(path: str) -> bool:
    """Whether a file is a projector by its name; its header decides (gguf/projector.py)."""
    return PROJECTOR in path.rpartition("/")[2].lower()


def name_words(path: str) -> frozenset[str]:
    """The words in the name of a model or of its projector that tell models apart, without quantisation."""
    files = ModelFiles({1: path})
    name = re.sub(r"-\d{5}-of-\d{5}$", "", path.rpartition("/")[2][: -len(".gguf")])
    matches = list(_QUANT.finditer(name)) if files.quant else []
    if matches:
        name = name[: matches[-1].start()] + name[matches[-1].end() :]
    return frozenset(re.split(r"[-_.\s]+", name.lower())) - _OF_ANY


def gguf_names(folder: str) -> Iterator[str]:
    """The names of the GGUF files in a folder, among its first MAX_ENTRIES entries; none without it."""
    with suppress(OSError), os.scandir(folder or ".") as entries:
        for entry, _ in zip(entries, range(MAX_ENTRIES), strict=False):
            if entry.name.lower().endswith(".gguf") and entry.is_file():
                yield entry.name


def find_models(paths: Iterable[str]) -> list[ModelFiles]:
    """The models among the paths, sorted, unsplit ones first; over MAX_PARTS parts count as unsplit."""
    return _grouped(path for path in paths if not is_sidecar(path))


def find_heads(paths: Iterable[str]) -> list[ModelFiles]:
    """The heads among the paths by their names, sorted as in `find_models`."""
    return _grouped(path for path in paths if is_head_name(path) and not _is_other(path))


def candidates(paths: Iterable[str], tag: str) -> list[ModelFiles]:
    """The files for a tag: models; heads too where it names a file, or where there is nothing else."""
    there = list(paths)
    models = find_models(there)
    return models if models and not tag.lower().endswith(".gguf") else models + find_heads(there)


def _grouped(paths: Iterable[str]) -> list[ModelFiles]:
    parts: dict[tuple[str, int], dict[int, str]] = {}
    whole = []
    for path in paths:
        if not path.lower().endswith(".gguf"):
            continue
        match = _SPLIT.fullmatch(path)
        if match is None or int(match[3]) > MAX_PARTS:
            whole.append(ModelFiles({1: path}))
            continue
        stem, number, count = match[1], int(match[2]), int(match[3])
        if 1 <= number <= count:
            parts.setdefault((stem, count), {})[number] = path
    split = [ModelFiles(there, count) for (_, count), there in parts.items()]
    return [m for group in (whole, split) for m in sorted(group, key=lambda m: (m.first, m.n_parts))]


def choose(
    models: Sequence[ModelFiles], tag: str, where: str, preferred: str = "", complete: bool = True
) -> ModelFiles:
    """The model that a tag selects; without a tag `preferred`, else Q4_K_M, else Q8_0, else the one that is
    nearest to four bits.

    tag: a quantisation or a file. where: the repository, for messages. complete: whether a part may not be
    missing. Raises NotFoundError listing the models of the repository, UsageError listing those that the tag
    may mean, IntegrityError naming a missing part.
    """
    if not models:
        raise NotFoundError(f"{where} has no GGUF model", "look for a repository whose name ends with -GGUF")
    if tag:
        matches = _by_tag(models, tag)
        if not matches:
            kind = "file" if tag.lower().endswith(".gguf") else "quantisation"
            there = _enumerated(list(dict.fromkeys(m.quant or m.first for m in models)))
            raise NotFoundError(f"{where} has no {kind} {shown(tag)}", f"there are: {there}")
    else:
        least = min(_rank(m.quant) for m in models)
        nearest = [m for m in models if _rank(m.quant) == least]
        wanted = [q for q in (preferred, *PREFERRED) if q]
        matches = next((these for q in wanted if (these := _by_tag(models, q))), nearest)
    whole = [m for m in matches if m.n_parts == 1]  # one form of a model, which may be there split too
    one = whole if len(matches) > 1 and len({m.stem for m in matches}) == 1 else matches
    if len(one) != 1:
        files = _enumerated([m.first for m in matches])
        raise UsageError(f"{where} may mean {len(matches)} files", f"name one after a colon: {files}")
    if complete and one[0].missing:
        raise IntegrityError(f"{where}: part {one[0].missing[0]} is missing", DOWNLOAD_AGAIN)
    return one[0]


def _by_tag(models: Sequence[ModelFiles], tag: str) -> Sequence[ModelFiles]:
    """The models of a file or a quantisation; for another tag those that have it in their paths, as llama.cpp
    finds them: followed by a dot, a dash or a slash. UD-Q4_K_M is another quantisation than Q4_K_M.
    """
    if tag.lower().endswith(".gguf"):
        named = [m for m in models if m.named(tag)]
        return [m for m in named if tag in m.paths_like(tag)] or named
    if _QUANT.fullmatch(tag):
        return [m for m in models if m.quant == tag.upper()]
    pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(tag)}(?=[.\-/])", re.IGNORECASE)
    return [m for m in models if pattern.search(m.first)]


def _rank(quant: str) -> tuple[int, ...]:
    """The order in which quantisations are taken where nobody asks for one; "" is one of 16 bits."""
    number = re.search(r"\d+", quant)
    bits = int(number[0]) if number else 16
    suffix = next((i for i, s in enumerate(_USUAL_SUFFIXES) if quant.endswith(s)), len(_USUAL_SUFFIXES))
    plain = not quant.startswith("UD-")
    return abs(bits - _USUAL_BITS), bits < _USUAL_BITS, suffix, "IQ" in quant, not plain, not quant


def _enumerated(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


_BILLIONS = re.compile(r"(?i)(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")
_BITS = re.compile(r"(?i)^(?:UD-)?(?:I?Q|TQ|MXFP|NVFP|BF|FP?)(\d+)")
FILE_SHARE = 0.9  # of the memory that is there, which a file may have; the context needs some too
_BESIDE = 0.75  # bits a weight of scales, and of the tensors that a quantisation leaves larger


def guessed_bytes(name: str, quant: str) -> int | None:
    """About the bytes of a model, by the parameters in its name and the bits in that of its quantisation:
    4.9 GB for llama-3.1-8b in Q4_K_M. None where one of them is not there.
    """
    n_params, bits = _BILLIONS.search(name), _BITS.search(quant)
    if n_params is None or bits is None:
        return None
    scale = 1e9 if n_params[2] in "bB" else 1e6
    return round(float(n_params[1]) * scale * (int(bits[1]) + _BESIDE) / 8)


def size(n_bytes: int | None) -> str:
    """The number with a unit, "?" if it is None: "1.5 GB"."""
    if n_bytes is None:
        return "?"
    value, unit = float(n_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{n_bytes} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
