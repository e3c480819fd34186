"""The models in the hub's cache on this disk: listing, removing and verifying them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specllama.errors import IntegrityError, NotFoundError, UsageError, option
from specllama.models.hub.cache import RepoCache, Snapshot, StoredModel, hash_of, repositories, unwritable
from specllama.models.manifest import ManifestEntry
from specllama.models.names import RepoName
from specllama.models.resolve import Library
from specllama.regular_file import open_regular


@dataclass(frozen=True, slots=True)
class InstalledModel(StoredModel):
    """A model in the cache. entry: that of models.toml for it, or for another one of its repository. alias:
    how the entry calls it, "" without one. usual: whether the repository's name alone means it.
    """

    repo: str = ""
    entry: ManifestEntry | None = None
    alias: str = ""
    usual: bool = False


@dataclass(frozen=True, slots=True)
class UnfinishedDownload:
    repo: str
    etag: str
    path: Path
    n_bytes: int


def installed_models(library: Library, repo: str | None = None) -> Iterator[InstalledModel]:
    """The models of all repositories, or of one: the newest snapshot first, each model once."""
    for one in [repo] if repo is not None else repositories(library.root):
        stored = RepoCache(library.root, one)
        entries = [e for e in library.manifest.entries.values() if e.where.repo.lower() == one.lower()]
        meant = [(entry, _content(stored, entry.where, entry.default)) for entry in entries]
        by_repo = _content(stored, RepoName(one), entries[0].default if entries else "")
        for model in stored.models():
            entry = next((e for e, content in meant if content == model.content), None)
            alias = entry.short_name if entry is not None else ""
            entry = entry or (entries[0] if entries else None)
            if entry is not None and not alias and model.name == f"{one}:{model.model.quant}":
                alias = f"{entry.short_name}:{model.model.quant}"
            usual = model.content == by_repo
            parts = (model.commit, model.model, model.files, model.name, model.projector)
            yield InstalledModel(*parts, one, entry, alias, usual)


def _content(stored: RepoCache, where: RepoName, default: str) -> tuple[tuple[str, str], ...]:
    """The content of the model that a name means; () without one, and for several."""
    with suppress(UsageError):
        meant = stored.find(where, default)
        return meant.content if meant is not None else ()
    return ()


def unfinished_downloads(library: Library, repo: str | None = None) -> Iterator[UnfinishedDownload]:
    for one in [repo] if repo is not None else repositories(library.root):
        for etag, path in RepoCache(library.root, one).partials():
            with suppress(OSError):
                yield UnfinishedDownload(one, etag, path, path.stat().st_size)


def select(library: Library, name: str) -> list[InstalledModel]:
    """The models on disk that a name refers to: one, or all of a repository if the name has no quantisation;
    [] if the repository has unfinished downloads only.

    Raises NotFoundError, UsageError.
    """
    parsed = library.parse(name, "NAME")
    if parsed.where is None:
        path = os.path.abspath(os.path.expanduser(name))
        if matches := [m for m in installed_models(library) if path in {str(f.link) for f in m.files}]:
            return matches
        if parsed.file and not os.path.exists(parsed.file):
            raise library.gone(parsed)
        hint = "downloads alone have a hash to verify; models rm removes an own name, and leaves the file"
        if parsed.file:
            raise NotFoundError(f"{name} is {parsed.file}, a file of your own and no download", hint)
        if alike := library.called(name):
            raise NotFoundError(f"{name} is no download, but of your own: {', '.join(alike)}", hint)
        hint = "use a name that specllama models lists"
        raise NotFoundError(f"there is no downloaded model {name}, and no name of your own", hint)
    where, stored = parsed.where, RepoCache(library.root, parsed.where.repo)
    there = list(installed_models(library, where.repo))
    if not where.tag:
        commits = set(stored.candidates(where))
        matches = [m for m in there if m.commit in commits]
        if matches or any(unfinished_downloads(library, where.repo)):
            return matches
    meant = stored.find(where) or stored.find(where, complete=False) if where.tag else None
    matches = [m for m in there if m.name == str(where) or (meant and m.content == meant.content)]
    if not matches:
        names = ", ".join(m.name for m in there) or "nothing of this repository"
        raise NotFoundError(f"{where} is not on disk", f"on disk: {names}")
    return matches


def select_one(library: Library, name: str) -> list[InstalledModel]:
    """As `select`, but one model: for a name of models.toml the one that `run` takes. Raises UsageError for a
    repository with several, which lists them.
    """
    models, parsed = select(library, name), library.parse(name, "NAME")
    if len(models) > 1 and parsed.where is not None and parsed.entry is not None and "/" not in name:
        stored = RepoCache(library.root, parsed.where.repo)
        content = _content(stored, parsed.where, parsed.default)
        models = [m for m in models if m.content == content] or models
    if len(models) > 1:
        hint = f"name one: {', '.join(m.name for m in models)}; {option('all')} takes all of them"
        raise UsageError(f"{name} is {len(models)} models on this disk", hint)
    return models


def remove(library: Library, model: InstalledModel) -> int:
    """Remove a model and its projector from all commits that have it, but keep content that another model
    uses. Returns the bytes freed.

    Raises ResourceError.
    """
    cache, freed = RepoCache(library.root, model.repo), 0
    try:
        blobs = set[Path]()
        for same in cache.copies(model.content):
            for file in same:
                blobs.add(file.blob)
                freed += 0 if file.link.is_symlink() else file.link.stat().st_size
                file.link.unlink()
                folder = file.link.parent
                with suppress(OSError):  # up to one that is not empty
                    while folder != cache.folder / "snapshots":
                        folder.rmdir()
                        folder = folder.parent
        used = {s.blob for commit in cache.commits() for s in cache.files(commit)}
        for blob in blobs - used:
            if blob.is_file() and blob.parent == cache.folder / "blobs":
                freed += blob.stat().st_size
                blob.unlink()
        _tidy(cache)
    except OSError as error:
        raise unwritable(library.root, error) from None
    return freed


def remove_unfinished(library: Library, repo: str) -> int:
    """Remove the stopped downloads of a repository. Returns the bytes freed. Raises ResourceError."""
    cache = RepoCache(library.root, repo)
    before = sum(u.n_bytes for u in unfinished_downloads(library, repo))
    try:
        cache.drop()
        _tidy(cache)
    except OSError as error:
        raise unwritable(library.root, error) from None
    return before - sum(u.n_bytes for u in unfinished_downloads(library, repo))


def _tidy(cache: RepoCache) -> None:
    """Remove the directories of a repository without content."""
    if cache.commits() or cache.partials() or not cache.folder.is_dir():
        return
    for folder, _, names in os.walk(cache.folder / "refs", topdown=False):
        for name in names:
            Path(folder, name).unlink()
        Path(folder).rmdir()
    for name in ("snapshots", "blobs", "."):
        with suppress(OSError):
            (cache.folder / name).resolve().rmdir()


def verify(file: Snapshot, progress: Callable[[int], None]) -> bool:
    """Hash a file and compare the hash with its blob's name. progress: called with the bytes read so far.

    Returns False if there is no hash to compare with: the file is a copy, not a link. Raises IntegrityError
    if the hash differs or the file cannot be read.
    """
    expected = file.blob.name
    if len(expected) not in (40, 64) or file.blob.parent.name != "blobs":
        return False
    try:
        with open_regular(file.blob, buffering=0) as source:
            digest = hash_of(source, expected, progress=progress)
    except OSError as error:
        raise IntegrityError(f"{file.link} cannot be read: {error.strerror or error}") from None
    if digest != expected:
        message = f"{file.link} is damaged: its hash is {digest}, not {expected}"
        raise IntegrityError(message, "specllama models rm it, then pull it again")
    return True
