"""Finds the projector of a model: the file with which it reads images, mmproj-*.gguf.

It is next to the model, in the model's repository, or where models.toml says; a model of Ollama's names it in
its manifest. Names decide which files are looked at, their headers whether they fit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from specllama.config.load import LoadSettings
from specllama.errors import (
    AccessError,
    GGUFError,
    IntegrityError,
    NotFoundError,
    SpecllamaError,
    UsageError,
    option,
)
from specllama.models.hub.cache import RepoCache
from specllama.models.manifest import ManifestEntry
from specllama.models.names import RepoName
from specllama.models.quants import (
    MAX_ENTRIES,
    ModelFiles,
    find_models,
    gguf_names,
    is_projector_name,
    name_words,
    projectors_for,
    size,
)
from specllama.models.resolve import Library, ResolvedModel
from specllama.regular_file import read_regular

_MAX_MANIFEST = 1 << 16  # bytes
_OLLAMA_LAYER = "application/vnd.ollama.image.projector"


@dataclass(frozen=True, slots=True)
class Found:
    """The projector of a model. path: "" for none. others: files of which none was taken, as it is not clear
    which one is the model's.
    """

    path: str = ""
    others: tuple[str, ...] = ()


def with_projector(library: Library, settings: LoadSettings) -> LoadSettings:
    """The settings, whose target is a path, with the path of its projector: the given one, or the one that
    belongs to the target. A note says why one that is there is not used.

    Raises UsageError, GGUFError and IntegrityError for a given one that cannot be used.
    """
    from specllama.data import EMBEDDED_TARGET

    target = settings.target.path
    if settings.mmproj == "none" or target == str(EMBEDDED_TARGET):
        return settings
    if settings.mmproj:
        try:
            check_pair(settings.mmproj, target, settings.image_max_tokens)
        except (GGUFError, IntegrityError, UsageError) as error:
            raise error.prefixed(f"{option('mmproj')}: ") from None
        return settings
    match = find_projector(library, target)
    if match.others:
        names = ", ".join(map(os.path.basename, match.others[:8]))
        library.listener.note(
            f"no projector is used: it is not clear which one is the model's: {names}; {option('mmproj')} "
            "names one"
        )
    if not match.path:
        return settings
    try:
        check_pair(match.path, target, settings.image_max_tokens)
    except SpecllamaError as error:
        library.listener.note(f"the projector of the model is not used: {error.message}")
        return settings
    return replace(settings, mmproj=match.path, mmproj_found=True)


def check_pair(path: str, target: str, max_tokens: int = 0) -> None:
    """Raises UsageError, GGUFError, IntegrityError where a file is no projector of a model, by their headers.
    max_tokens: of an image.
    """
    from specllama.gguf.header import read_model
    from specllama.gguf.projector import check_fits, read_projector

    check_fits(read_projector(read_model(path), max_tokens), read_model(target))


def find_projector(library: Library, target: str) -> Found:
    """The projector of a model on this disk. target: the path of its first part. Reads no headers."""
    cached = _in_cache(library, Path(os.path.abspath(target)))
    if cached is not None:
        return cached
    if path := _of_ollama(target):
        return Found(path)
    return _in_folder(target)


def _in_cache(library: Library, target: Path) -> Found | None:
    """The projector of a model in the hub's cache, where the snapshot or the repository that models.toml
    names has one; None for a model that is elsewhere.
    """
    root = Path(os.path.abspath(library.root))
    if not target.is_relative_to(root) or len(parts := target.relative_to(root).parts) < 4:
        return None
    repo, commit, inside = "/".join(parts[0].split("--")[1:]), parts[2], "/".join(parts[3:])
    files = {file.path: file.link for file in RepoCache(root, repo).files(commit)}
    if there := projectors_for(files, inside):
        return Found(str(files[there[0]]))
    where = library.manifest.of_repo(repo)
    return Found(_stored(library, where) if where is not None else "")


def _stored(library: Library, entry: ManifestEntry) -> str:
    """The projector that models.toml names for a model, "" where it is not on disk."""
    if entry.mmproj is None:
        return ""
    cache = RepoCache(library.root, entry.mmproj.repo)
    for commit in cache.candidates(entry.mmproj):
        files = {file.path: file.link for file in cache.files(commit)}
        if path := _chosen(files, entry.mmproj, ""):
            return str(files[path])
    return ""


def _chosen(paths: Sequence[str] | dict[str, Path], where: RepoName, model: str) -> str:
    """The projector among the paths of a repository: the named one, or the first that suits; "" for none."""
    if where.is_file and is_projector_name(where.tag):
        return where.tag if where.tag in paths else ""
    return next(iter(projectors_for(paths, model)), "")


def _in_folder(target: str) -> Found:
    """The projector in the folder of a model. One with the name of a model belongs to that model; one
    without, as mmproj-F16.gguf, to the model of its folder, where there is one alone.
    """
    folder, name = os.path.split(target)
    names = [one for one in gguf_names(folder) if one != name or not is_projector_name(one)]
    if not any(map(is_projector_name, names)):
        return Found()
    words, there = name_words(name), projectors_for(names, name)
    others = {name_words(model.first) for model in find_models(names)} - {words}
    named = [one for one in there if name_words(one) and name_words(one) <= words]
    plain = [one for one in there if not name_words(one)]
    if named or (plain and not others):
        return Found(os.path.join(folder, (named or plain)[0]))
    return Found(others=tuple(os.path.join(folder, one) for one in plain))


def _of_ollama(target: str) -> str:
    """The projector that a manifest of Ollama's names for this blob, "" for none."""
    blobs, name = os.path.split(os.path.abspath(target))
    manifests = os.path.join(os.path.dirname(blobs), "manifests")
    if not name.startswith("sha256-") or os.path.basename(blobs) != "blobs" or not os.path.isdir(manifests):
        return ""
    files = (os.path.join(folder, name) for folder, _, names in os.walk(manifests) for name in names)
    for path, _ in zip(files, range(MAX_ENTRIES), strict=False):
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            layers = json.loads(read_regular(path, _MAX_MANIFEST))["layers"]
            digests = {layer["digest"].replace(":", "-"): layer["mediaType"] for layer in layers}
            if name in digests:
                one = next((d for d, kind in digests.items() if kind == _OLLAMA_LAYER), "")
                blob = os.path.join(blobs, os.path.basename(one))
                return blob if one and os.path.isfile(blob) else ""
    return ""


def projectors_of(library: Library, models: Sequence[ResolvedModel]) -> list[ResolvedModel]:
    """The projectors of models on the hub, in the repository of each or in the one that models.toml names. A
    note says why one is left out: its header, or that of its model, shows that it cannot be used. Raises
    NetworkError, and AccessError for a header.
    """
    return [one for model in models if (one := _on_hub(library, model)) is not None]


def _on_hub(library: Library, model: ResolvedModel) -> ResolvedModel | None:
    from specllama.gguf.projector import check_fits, read_projector

    if model.listing is None or model.files is None:
        return None
    entry, listing = model.parsed.entry, model.listing
    path = next(iter(projectors_for(listing.files, model.files.first)), "")
    if not path and entry is not None and entry.mmproj is not None:
        with suppress(NotFoundError, AccessError):
            listing = library.listing(entry.mmproj)
            path = _chosen(list(listing.files), entry.mmproj, "")
    if not path:
        return None
    projector = ResolvedModel(model.parsed, listing=listing, files=ModelFiles({1: path}))
    try:
        check_fits(read_projector(library.header(projector)), library.header(model))
    except (GGUFError, IntegrityError, UsageError) as error:
        library.listener.note(f"{model.name}: {path} is left out: {error.message}")
        return None
    return projector


def no_projector(library: Library, target: str) -> UsageError:
    """The error for an image that is given to a model without a projector, with what would help. target: the
    path of the model.
    """
    match = find_projector(library, target)
    name = os.path.basename(target)
    entry = library.entry_of(target)
    if match.path:
        hint = f"load it with {option('mmproj', match.path)}, which also says why if it cannot be used"
    elif match.others:
        hint = f"name one: {', '.join(option('mmproj', path) for path in match.others[:8])}"
    elif entry is not None and entry.mmproj is not None:
        hint = f"specllama pull {entry.short_name} fetches its projector, then load it again"
    else:
        hint = f"a model that reads images comes with a file mmproj-*.gguf, which {option('mmproj')} names"
    return UsageError(f"{name} cannot read images: it was loaded without a projector", hint)


def described(projector: ResolvedModel) -> str:
    """The projector of a download, for a note."""
    assert projector.files is not None
    n_bytes = size(sum(file.size for file in projector.parts))
    return f"{projector.name}: its projector for images, {projector.files.first}, {n_bytes}"
