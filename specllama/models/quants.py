"""Which files of a repository make up a model or a head, and which of them a tag selects.

Works on paths alone, so that one rule serves listings of the hub and files on disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specllama.errors import IntegrityError, NotFoundError
from specllama.gguf.source import DOWNLOAD_AGAIN, MAX_PARTS
from specllama.models.names import shown

PREFERRED = ("Q4_K_M", "Q8_0")
_SIDECAR_WORDS = ("mmproj", "imatrix")
_HEAD_STARTS = ("mtp-", "eagle3-", "dflash-", "dspark-")  # llama.cpp's names of heads next to their model
_HEAD_WORDS = re.compile(r"(?<![a-z0-9])(?:eagle-?3|dflash|dspark|gemma-?4\S*-assistant)(?![a-z0-9])")
_SPLIT = re.compile(r"(?s)(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:UD-)?(?:I?Q[1-9](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_MAX_NAMED = 30


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

    def named(self, file: str) -> bool:
        """Whether this is the path, or the name, of one of its parts."""
        match, paths = _SPLIT.fullmatch(file), list(self.there.values())
        if match is not None and 1 <= int(match[2]) <= self.n_parts:
            paths.append(self._path(int(match[2])))
        return any(file in (path, path.rpartition("/")[2]) for path in paths)

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


def find_models(paths: Iterable[str]) -> list[ModelFiles]:
    """The models among the paths, sorted by name, unsplit ones first. A name that claims more than MAX_PARTS
    parts is taken for that of an unsplit model.
    """
    return _grouped(path for path in paths if not is_sidecar(path))


def find_heads(paths: Iterable[str]) -> list[ModelFiles]:
    """The heads among the paths by their names, sorted as in `find_models`."""
    return _grouped(path for path in paths if is_head_name(path) and not _is_other(path))


def candidates(paths: Iterable[str], tag: str) -> list[ModelFiles]:
    """What a tag can select: models; heads too where it names a file, or where there is nothing else."""
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


def choose(models: Sequence[ModelFiles], tag: str, where: str, preferred: str = "") -> ModelFiles:
    """The model that a tag selects; without a tag `preferred`, else Q4_K_M, else Q8_0, else the first.

    tag: a quantisation or a file. where: the repository, for messages. Raises NotFoundError listing the
    models of the repository, IntegrityError naming a missing part.
    """
    if not models:
        raise NotFoundError(f"{where} has no GGUF model", "look for a repository whose name ends with -GGUF")
    if tag:
        model = _by_tag(models, tag)
        if model is None:
            kind = "file" if tag.lower().endswith(".gguf") else "quantisation"
            raise NotFoundError(f"{where} has no {kind} {shown(tag)}", f"there are: {_listed(models)}")
    else:
        wanted = [q for q in (preferred, *PREFERRED) if q]
        model = next((m for q in wanted if (m := _by_tag(models, q)) is not None), models[0])
    if len(model.there) < model.n_parts:
        raise IntegrityError(f"{where}: part {model.missing[0]} is missing", DOWNLOAD_AGAIN)
    return model


def _by_tag(models: Sequence[ModelFiles], tag: str) -> ModelFiles | None:
    return _by_file(models, tag) if tag.lower().endswith(".gguf") else _by_quant(models, tag)


def _by_quant(models: Sequence[ModelFiles], quant: str) -> ModelFiles | None:
    # llama.cpp's rule for tags: anywhere in the path, followed by a dot, a dash or a slash.
    pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quant)}(?=[.\-/])", re.IGNORECASE)
    return next((m for m in models if pattern.search(m.first)), None)


def _by_file(models: Sequence[ModelFiles], file: str) -> ModelFiles | None:
    named = [m for m in models if m.named(file)]
    return next((m for m in named if file in m.parts), None) or next(iter(named), None)


def _listed(models: Sequence[ModelFiles]) -> str:
    names = list(dict.fromkeys(m.quant or m.first for m in models))
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
