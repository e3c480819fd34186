"""Hugging Face's cache on disk, in the layout that `hf` and llama.cpp use too.

blobs/<etag> holds content, snapshots/<commit>/<path> links to it, refs/<revision> names a commit. An
unfinished download is blobs/<etag>.incomplete, with its lock and validator in .locks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from specllama import wire
from specllama.config.places import NOWHERE
from specllama.config.store import NOT_THERE, locked, sync_folder, temporary, write_whole
from specllama.errors import IntegrityError, NotFoundError, ResourceError, UsageError
from specllama.models.names import DEFAULT_REVISION, RepoName
from specllama.models.quants import (
    ModelFiles,
    candidates,
    choose,
    find_heads,
    find_models,
    is_head_name,
    projectors_for,
)
from specllama.regular_file import open_regular, read_regular

if TYPE_CHECKING:
    from specllama.models.hub.api import HubFile

_MAX_RECORD = 4096  # bytes


def open_partial(path: Path) -> int:
    """A descriptor of an unfinished download for reading and writing, made if it does not exist.

    A link with this name, and a file that has other names too, are removed first: writing to them would
    change another file. Raises OSError.
    """
    flags = (
        os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    with contextlib.suppress(FileNotFoundError):
        info = path.lstat()
        if stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
            return os.open(path, flags)
        path.unlink()
    return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)


_COMMIT = re.compile("[0-9a-f]{40}")
_PARTIAL = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})\.incomplete")
_SHARED = 0o664  # the mode of locks: group-writable as those of `hf`, for caches that users share
_COPY_BYTES = 1 << 20
_CACHE_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by specllama, as huggingface_hub does.\n"
    "# For information about cache directory tags, see: https://bford.info/cachedir/\n"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete file of a commit. link: the path that programs use; blob: its content."""

    commit: str
    path: str
    link: Path

    @property
    def blob(self) -> Path:
        """The target of the link, one step; the file itself if it is a copy."""
        if not self.link.is_symlink():
            return self.link
        return Path(os.path.normpath(self.link.parent / os.readlink(self.link)))


class RepoCache:
    """One repository in the cache. root: the cache of all repositories."""

    def __init__(self, root: Path, repo: str) -> None:
        self.root, self.repo = root, repo
        folder = f"models--{repo.replace('/', '--')}"
        self.folder, self._locks = root / folder, root / ".locks" / folder

    def blob(self, etag: str) -> Path:
        """Path for the content of a file."""
        return self.folder / "blobs" / etag

    def content(self, commit: str, file: HubFile) -> Path | None:
        """A file's complete content, None if not on disk. Without a hash of the hub, the link decides."""
        link = Snapshot(commit, file.path, self.snapshot(commit) / file.path)
        blob = self.blob(file.etag) if file.verified else link.blob
        try:
            return blob if blob.stat().st_size == file.size else None
        except OSError:
            return None

    def partial(self, etag: str) -> Path:
        """Path for the content of an unfinished download; older versions of huggingface-hub resume it too."""
        return self.folder / "blobs" / f"{etag}.incomplete"

    def partial_bytes(self, etag: str) -> int:
        """The size of an unfinished download, 0 without one."""
        try:
            return self.partial(etag).lstat().st_size
        except OSError:
            return 0

    def validator(self, etag: str) -> str:
        """The If-Range validator of the bytes in `partial`; "" if unknown."""
        return self._recorded(etag, "validator")

    def _recorded(self, etag: str, key: str) -> str:
        try:
            value = wire.from_file(dict[str, str], self._record(etag), _MAX_RECORD).get(key, "")
        except (OSError, ValueError):
            return ""
        return value if value.isascii() and value.isprintable() else ""

    def remember(self, etag: str, validator: str, revision: str) -> None:
        """Store the validator of the bytes in `partial`, and the revision for which they were requested."""
        write_whole(self._record(etag), json.dumps({"validator": validator, "revision": revision}))

    def forget(self, etag: str) -> None:
        """Remove the partial content and the validator."""
        for path in (self.partial(etag), self._record(etag)):
            path.unlink(missing_ok=True)

    def make_directories(self) -> None:
        """Create the directories. Raises ResourceError."""
        try:
            for path in (self.folder / "blobs", self._locks):
                path.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError), open(self.root / "CACHEDIR.TAG", "x") as file:
                file.write(_CACHE_TAG)
            if not os.access(self.folder / "blobs", os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise unwritable(self.root, error) from None

    @contextlib.contextmanager
    def lock(self, etag: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the lock of this file's download against all other processes, `hf` included.

        waiting: called every quarter of a second while another process holds it. Raises ResourceError.
        """
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self._lock_file(etag), waiting, mode=_SHARED))
            except OSError as error:
                raise unwritable(self.root, error) from None
            yield

    def complete(self, etag: str, digest: str) -> None:
        """Turn the complete partial file into the blob with this hash, safe against power loss."""
        blob = self.blob(digest)
        os.replace(self.partial(etag), blob)
        sync_folder(blob.parent)
        self.forget(etag)

    def link(self, commit: str, path: str, etag: str) -> Path:
        """Link the file into a snapshot, or copy it if the file system has no links; its path there."""
        link, blob = self.snapshot(commit) / path, self.blob(etag)
        if link.exists() and os.path.samefile(link, blob):
            return link
        link.parent.mkdir(parents=True, exist_ok=True)
        new = temporary(link)
        try:
            try:
                os.symlink(os.path.relpath(blob, link.parent), new)
            except (OSError, NotImplementedError) as error:
                if getattr(error, "errno", None) not in (*NOT_THERE, None):  # None: Python has none there
                    raise
                with open_regular(blob) as source, open(new, "xb") as target:
                    shutil.copyfileobj(source, target, _COPY_BYTES)
            os.replace(new, link)
        finally:
            new.unlink(missing_ok=True)
        return link

    def point(self, revision: str, commit: str) -> None:
        """Record the commit that a revision names."""
        if revision == commit:
            return
        ref = self.folder / "refs" / revision
        if self.commit_of(revision) != commit:
            ref.parent.mkdir(parents=True, exist_ok=True)
            write_whole(ref, commit)

    def commit_of(self, revision: str) -> str:
        """The commit that a revision named at the last request to the hub; "" without any."""
        if _COMMIT.fullmatch(revision):
            return revision
        try:
            text = read_regular(self.folder / "refs" / revision, _MAX_RECORD).decode().strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return text if _COMMIT.fullmatch(text) else ""

    def snapshot(self, commit: str) -> Path:
        return self.folder / "snapshots" / commit

    def commits(self) -> list[str]:
        """The commits with files, the newest snapshot first."""
        try:
            entries = [e for e in os.scandir(self.folder / "snapshots") if _COMMIT.fullmatch(e.name)]
            return [e.name for e in sorted(entries, key=lambda e: -e.stat().st_mtime)]
        except OSError:
            return []

    def files(self, commit: str) -> list[Snapshot]:
        """The complete GGUF files of a commit, sorted by path."""
        base, snapshots = self.snapshot(commit), []
        for folder, _, names in os.walk(base):
            for name in names:
                link = Path(folder, name)
                if name.lower().endswith(".gguf") and not name.startswith(".") and link.is_file():
                    snapshots.append(Snapshot(commit, link.relative_to(base).as_posix(), link))
        return sorted(snapshots, key=lambda s: s.path)

    def candidates(self, name: RepoName) -> list[str]:
        """The commits to search: that of the revision, and all others unless the user gave one."""
        first = self.commit_of(name.revision)
        others = self.commits() if name.revision == "main" else []
        return list(dict.fromkeys([*([first] if first else []), *others]))

    def partials(self) -> list[tuple[str, Path]]:
        """Unfinished downloads: etag and path."""
        try:
            blobs = sorted((self.folder / "blobs").iterdir())
        except OSError:
            return []
        return [(m[1], path) for path in blobs if (m := _PARTIAL.fullmatch(path.name))]

    def drop(self, revision: str = "", current: Collection[str] = ()) -> None:
        """Remove unfinished downloads, except those in progress. With a revision, only those for it that
        are not among its `current` etags: those of other revisions, and of other programs, can be resumed.
        """
        for etag, _ in self.partials():
            is_stale = etag not in current and self._recorded(etag, "revision") == revision
            if (is_stale or not revision) and self._idle(etag):
                self.forget(etag)

    def _idle(self, etag: str) -> bool:
        from filelock import FileLock

        try:
            with FileLock(self._lock_file(etag), mode=_SHARED).acquire(blocking=False):
                return True
        except OSError:
            return False

    def _lock_file(self, etag: str) -> Path:
        """The lock that `hf` uses for this file."""
        return self._locks / f"{etag}.lock"

    def _record(self, etag: str) -> Path:
        return self._locks / f"{etag}.json"

    # The models of the repository, read once, and the name of each: a name means one model. The same rule
    # finds a model for `run` and the like, for `models rm` and `models verify`, and for a server.

    def find(self, where: RepoName, default: str = "", complete: bool = True) -> StoredModel | None:
        """The model that a name means, in the commit of its revision or, without one, in the newest that has
        it; None if it is not on disk. default: the quantisation or file for a name without one, for which,
        unless it is a head's, others stand in. complete: whether a part may not be missing.

        Raises UsageError where the name may mean several.
        """
        wanted = where.tag or default
        others = () if is_head_name(wanted) else (where.tag,)
        for tag in dict.fromkeys((wanted, *others)):
            for commit in self.candidates(where):
                there = self._commits.get(commit, {})
                with contextlib.suppress(NotFoundError, IntegrityError):
                    model = choose(candidates(there, tag), tag, str(where), complete=complete)
                    return _stored(commit, model, there)
        return None

    def copies(self, content: tuple[tuple[str, str], ...]) -> list[tuple[Snapshot, ...]]:
        """The files of a model in each commit that has it, with its projector if no other model has that."""
        copies = []
        for models in (list(self._of(commit)) for commit in self._commits):
            for one in (model for model in models if model.content == content):
                shared = any(o.projector == one.projector for o in models if o is not one)
                copies.append(one.files + ((one.projector,) if one.projector and not shared else ()))
        return copies

    def models(self) -> Iterator[StoredModel]:
        """All models and heads, those of the newest commit first, each once."""
        seen = set[tuple[tuple[str, str], ...]]()
        for commit in self._commits:
            for one in self._of(commit):
                if one.content not in seen:
                    seen.add(one.content)
                    yield replace(one, name=self._name(one))

    def _of(self, commit: str) -> Iterator[StoredModel]:
        there = self._commits[commit]
        for model in (*find_models(there), *find_heads(there)):
            yield _stored(commit, model, there)

    @cached_property
    def _commits(self) -> Mapping[str, Mapping[str, Snapshot]]:
        return {c: {s.path: s for s in self.files(c)} for c in self.commits()}

    def _name(self, one: StoredModel) -> str:
        """The shortest name that means this model."""
        quant = "" if is_head_name(one.model.first) else one.model.quant
        for revision in (DEFAULT_REVISION, one.commit):
            for tag in filter(None, (quant, one.model.first)):
                with contextlib.suppress(UsageError):
                    where = RepoName(self.repo, tag, revision)
                    meant = self.find(where) or self.find(where, complete=False)
                    if meant is not None and meant.content == one.content:
                        return str(where)
        return str(one.files[0].link)


def repositories(root: Path) -> list[str]:
    """Names of all model repositories in the cache."""
    try:
        names = sorted(e.name for e in os.scandir(root) if e.name.startswith("models--") and e.is_dir())
    except OSError:
        return []
    parts = [name.removeprefix("models--").split("--") for name in names]
    return ["/".join(p) for p in parts if len(p) == 2 and all(p)]


def unwritable(path: Path, error: OSError) -> ResourceError:
    """The error for a cache that cannot be written."""
    if path.is_relative_to(NOWHERE):
        message = "there is no home directory to keep models in"
        return ResourceError(message, "set HF_HUB_CACHE to a directory")
    hint = "make it writable, or set HF_HUB_CACHE to a directory that is"
    return ResourceError(f"{path} cannot be written: {error.strerror or error}", hint)


def hash_of(
    source: IO[bytes],
    etag: str = "",
    target: IO[bytes] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> str:
    """The hash of a file's content, as hexadecimal digits, of the kind of `etag`. target: gets a copy.
    progress: called with the bytes read so far. Raises OSError.
    """
    hasher, done = hash_for(etag, os.fstat(source.fileno()).st_size if etag else 0), 0
    while data := source.read(_COPY_BYTES):
        hasher.update(data)
        if target is not None:
            target.write(data)
        done += len(data)
        progress(done)
    return hasher.hexdigest()


def hash_for(etag: str, n_bytes: int) -> hashlib._Hash:
    """The hash that names content of this size: SHA-256, or git's, with a header, for small files."""
    if len(etag) == 40:
        return hashlib.sha1(b"blob %d\0" % n_bytes, usedforsecurity=False)
    return hashlib.sha256()


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of a repository on disk. files: those of its parts that are there. name: which means this model
    alone; the path of its first part where no name can. projector: its own, None without one.
    """

    commit: str
    model: ModelFiles
    files: tuple[Snapshot, ...]
    name: str = ""
    projector: Snapshot | None = None

    @property
    def content(self) -> tuple[tuple[str, str], ...]:
        """Paths and blobs of its parts: the same model in another commit has the same."""
        return tuple((file.path, str(file.blob)) for file in self.files)

    @property
    def n_bytes(self) -> int:
        """Bytes of the parts on disk."""
        return sum(file.link.stat().st_size for file in self.files)


def _stored(commit: str, model: ModelFiles, there: Mapping[str, Snapshot]) -> StoredModel:
    files = tuple(there[path] for _, path in sorted(model.there.items()))
    own = () if is_head_name(model.first) else projectors_for(there, model.first)
    return StoredModel(commit, model, files, projector=there[own[0]] if own else None)
