"""Models outside the hub's cache that have names: files that models.toml names, and folders of models.

Reads names, no models. A folder of models is searched with the folders in it, not deeper.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specllama.models.quants import find_heads, find_models

MODELS_DIR = "SPECLLAMA_MODELS_DIR"  # names a folder of models, as --models-dir does
_MAX_FILES = 4096  # of a folder


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A model of the user's own. path: of its first part; parts: of all that are there."""

    name: str
    path: str
    parts: tuple[str, ...]


def own_files(files: Mapping[str, str], folders: Sequence[str], taken: Collection[str]) -> list[OwnFile]:
    """The models that have names, each name once. files: paths by name. taken: names, in small letters, that
    belong to other models; in a folder, as where two files have one name, the path takes its place.

    A folder that is not there, as on a disk that is not attached, has none.
    """
    paths = filter(os.path.isdir, dict.fromkeys(map(os.path.expanduser, folders)))
    in_folders = [one for folder in paths for one in _in_folder(folder)]
    lower = [one.name.lower() for one in in_folders]
    named = [OwnFile(name, path, (path,)) for name, path in files.items()]
    for one in in_folders:
        usable = one.name.lower() not in taken and lower.count(one.name.lower()) == 1 and ":" not in one.name
        named.append(one if usable else replace(one, name=one.path))
    return named


def find_own(files: Sequence[OwnFile], name: str) -> OwnFile | None:
    """The file with this name, in capitals or not."""
    return next((file for file in files if file.name.lower() == name.lower()), None)


def _in_folder(folder: str) -> Iterator[OwnFile]:
    """The complete models and heads in a folder, called as their files."""
    paths: list[str] = []
    for at, inner, names in os.walk(folder):
        below = os.path.relpath(at, folder)
        inner[:] = sorted(n for n in inner if below == "." and not n.startswith("."))
        paths += [os.path.normpath(os.path.join(below, n)) for n in names if n.lower().endswith(".gguf")]
        if len(paths) > _MAX_FILES:
            break
    for model in (*find_models(paths), *find_heads(paths)):
        if not model.missing:
            parts = tuple(os.path.join(folder, path) for path in model.parts)
            yield OwnFile(os.path.basename(model.stem), parts[0], parts)
