"""The models of one repository in the hub's cache, and the name of each: a name means one model.

The same rule finds a model for `run` and the like, for `models rm` and `models verify`, and for a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from specllama.errors import IntegrityError, NotFoundError, UsageError
from specllama.models.hub.cache import RepoCache, Snapshot
from specllama.models.names import DEFAULT_REVISION, RepoName
from specllama.models.quants import ModelFiles, candidates, choose, find_heads, find_models, is_head_name


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of a repository on disk. files: those of its parts that are there. name: which means this model
    alone; the path of its first part where no name can.
    """

    commit: str
    model: ModelFiles
    files: tuple[Snapshot, ...]
    name: str = ""

    @property
    def content(self) -> tuple[tuple[str, str], ...]:
        """Paths and blobs of its parts: the same model in another commit has the same."""
        return tuple((file.path, str(file.blob)) for file in self.files)


class StoredRepo:
    """The models of a repository in the cache, read once."""

    def __init__(self, cache: RepoCache) -> None:
        self._cache = cache

    def find(self, where: RepoName, default: str = "", complete: bool = True) -> StoredModel | None:
        """The model that a name means, in the commit of its revision or, without one, in the newest that has
        it; None if it is not on disk. default: the quantisation or file for a name without one, for which,
        unless it is a head's, others stand in. complete: whether a part may not be missing.

        Raises UsageError where the name may mean several.
        """
        wanted = where.tag or default
        others = () if is_head_name(wanted) else (where.tag,)
        for tag in dict.fromkeys((wanted, *others)):
            for commit in self._cache.candidates(where):
                there = self._commits.get(commit, {})
                with suppress(NotFoundError, IntegrityError):
                    model = choose(candidates(there, tag), tag, str(where), complete=complete)
                    return _stored(commit, model, there)
        return None

    def copies(self, content: tuple[tuple[str, str], ...]) -> list[tuple[Snapshot, ...]]:
        """The files of a model in each commit that has it."""
        every = (one for commit in self._commits for one in self._of(commit))
        return [one.files for one in every if one.content == content]

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
        return {c: {s.path: s for s in self._cache.files(c)} for c in self._cache.commits()}

    def _name(self, one: StoredModel) -> str:
        """The shortest name that means this model."""
        quant = "" if is_head_name(one.model.first) else one.model.quant
        for revision in (DEFAULT_REVISION, one.commit):
            for tag in filter(None, (quant, one.model.first)):
                with suppress(UsageError):
                    where = RepoName(self._cache.repo, tag, revision)
                    meant = self.find(where) or self.find(where, complete=False)
                    if meant is not None and meant.content == one.content:
                        return str(where)
        return str(one.files[0].link)


def _stored(commit: str, model: ModelFiles, there: Mapping[str, Snapshot]) -> StoredModel:
    return StoredModel(commit, model, tuple(there[path] for _, path in sorted(model.there.items())))
