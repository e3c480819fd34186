"""The models in the hub's cache on this disk: listing, removing and verifying them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specllama.errors import IntegrityError, NotFoundError, SpecllamaError
from specllama.models.hub.cache import RepoCache, Snapshot, repositories, unwritable
from specllama.models.manifest_file import ManifestEntry
from specllama.models.names import RepoName
from specllama.models.quants import ModelFiles, choose, find_heads, find_models, is_head_name
from specllama.models.resolve import Library

_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model in the cache. files: its parts on disk. missing: paths of the other parts."""

    repo: str
    commit: str
    quant: str
    files: tuple[Snapshot, ...]
    missing: tuple[str, ...] = ()
    entry: ManifestEntry | None = None

    @property
    def name(self) -> str:
        """A name that resolves to it."""
        if self.quant and not is_head_name(self.files[0].path):
            return f"{self.repo}:{self.quant}"
        return f"{self.repo}:{self.files[0].path}"

    @property
    def n_bytes(self) -> int:
        """Bytes of the parts on disk."""
        return sum(file.link.stat().st_size for file in self.files)


@dataclass(frozen=True, slots=True)
class UnfinishedDownload:
    """An unfinished download, stopped or in progress."""

    repo: str
    etag: str
    path: Path
    n_bytes: int


def installed_models(library: Library, repo: str | None = None) -> Iterator[InstalledModel]:
    """The models of all repositories, or of one: the newest snapshot first, each model once."""
    for one in [repo] if repo is not None else repositories(library.root):
        cache, seen = RepoCache(library.root, one), set[tuple[tuple[str, Path], ...]]()
        for commit in cache.commits():
            there = {s.path: s for s in cache.files(commit)}
            for model in (*find_models(there), *find_heads(there)):
                files = tuple(there[path] for _, path in sorted(model.there.items()))
                same = tuple((f.path, f.blob) for f in files)
                if files and same not in seen:
                    seen.add(same)
                    entry = library.manifest.of_repo(one)
                    yield InstalledModel(one, commit, model.quant, files, model.missing, entry)


def unfinished_downloads(library: Library, repo: str | None = None) -> Iterator[UnfinishedDownload]:
    """The unfinished downloads of all repositories, or of one."""
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
        hint = "use a name that specllama models lists; files outside the cache are not removed"
        raise NotFoundError(f"there is no downloaded model {name}", hint)
    there = list(installed_models(library, parsed.where.repo))
    if not parsed.where.tag and (there or any(unfinished_downloads(library, parsed.where.repo))):
        return there
    matches = [m for m in there if _is(m, parsed.where)]
    if not matches:
        names = ", ".join(m.name for m in there) or "nothing of this repository"
        raise NotFoundError(f"{parsed.where} is not on disk", f"on disk: {names}")
    return matches


def _is(model: InstalledModel, where: RepoName) -> bool:
    with suppress(SpecllamaError):
        choose([ModelFiles({1: f.path}) for f in model.files], where.tag, "")
        return True
    return False


def remove(library: Library, model: InstalledModel) -> int:
    """Remove a model, but keep content that another snapshot uses. Returns the bytes freed.

    Raises ResourceError.
    """
    cache, freed = RepoCache(library.root, model.repo), 0
    try:
        blobs = {file.blob for file in model.files}
        for file in model.files:
            for commit in cache.commits():
                link = cache.snapshot(commit) / file.path
                if os.path.lexists(link) and Snapshot(commit, file.path, link).blob in blobs:
                    freed += 0 if link.is_symlink() else link.stat().st_size
                    link.unlink()
                    _prune(link.parent, cache.folder / "snapshots")
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
        cache.drop_unfinished()
        _tidy(cache)
    except OSError as error:
        raise unwritable(library.root, error) from None
    return before - sum(u.n_bytes for u in unfinished_downloads(library, repo))


def _prune(folder: Path, top: Path) -> None:
    """Remove empty directories from `folder` up to, but not including, `top`."""
    while folder != top:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


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
        n_bytes = file.blob.stat().st_size
        is_git = len(expected) == 40
        start = b"blob %d\0" % n_bytes if is_git else b""
        hasher = hashlib.new("sha1" if is_git else "sha256", start, usedforsecurity=False)
        done = 0
        with open(file.blob, "rb", buffering=0) as source:
            while data := source.read(_READ):
                hasher.update(data)
                done += len(data)
                progress(done)
    except OSError as error:
        raise IntegrityError(f"{file.link} cannot be read: {error.strerror or error}") from None
    if hasher.hexdigest() != expected:
        raise IntegrityError(
            f"{file.link} is damaged: its hash is {hasher.hexdigest()}, not {expected}",
            "specllama models rm it, then pull it again",
        )
    return True
