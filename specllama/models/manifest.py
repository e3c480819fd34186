"""models.toml: the models and pairs known by name. The user's file overrides the shipped one, entry by entry.
A project's file adds to both: anyone may have written it.

Knows nothing of disks, hubs or GGUF.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from specllama.config.places import from_variable, home, user_directory, working_directory
from specllama.config.sources import is_same
from specllama.config.toml_file import quoted, read_start, read_toml
from specllama.errors import ConfigError
from specllama.models.manifest_file import SCHEMA, KnownPair, ManifestEntry, ManifestFile

FILE = "models.toml"
_TABLES = re.compile(r"^[ \t]*\[{1,2}[ \t]*(models[ \t]*\.|pairs[ \t]*\])", re.M)


@dataclass(frozen=True)
class Manifest:
    """All entries. Names and aliases are case-insensitive. user, project: their files, None without one.
    files: paths of the user's own files, by name; folders: those in which there are more.
    """

    entries: Mapping[str, ManifestEntry]
    pairs: Mapping[str, KnownPair]
    user: Path | None = None
    project: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    @cached_property
    def _by_name(self) -> Mapping[str, ManifestEntry]:
        entries = list(self.entries.values())[::-1]  # the first one with a name has it
        return {a.lower(): e for e in entries for a in e.aliases} | {e.name.lower(): e for e in entries}

    def find(self, name: str) -> ManifestEntry | None:
        """The entry with this name or alias."""
        return self._by_name.get(name.lower())

    def of_repo(self, repo: str) -> ManifestEntry | None:
        """The entry of a repository of the hub."""
        return next((e for e in self.entries.values() if e.where.repo.lower() == repo.lower()), None)

    def drafts_for(self, entry: ManifestEntry) -> list[ManifestEntry]:
        """The drafts that are known to fit, best first."""
        pair = self.pairs.get(entry.name)
        drafts = [self.find(name) for name in pair.drafts] if pair else []
        return [e for e in drafts if e is not None]

    def names(self) -> list[str]:
        """Every name and alias."""
        return [name for e in self.entries.values() for name in (*e.aliases, e.name)] + list(self.files)

    def similar(self, name: str) -> list[str]:
        """Up to three names that resemble this one."""
        known = {n.lower(): n for n in self.names()}
        return [known[n] for n in difflib.get_close_matches(name.lower(), known, n=3)]


def load(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Manifest:
    """The shipped manifest, overridden by the user's and extended by the project's. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    entries: dict[str, ManifestEntry] = {}
    pairs: dict[str, KnownPair] = {}
    files: dict[str, str] = {}
    folders: tuple[str, ...] = ()
    shipped, user = _shipped(), user_file(environ)
    for path in filter(None, (shipped, user)):
        file = ManifestFile(read_toml(path))
        entries = _overridden(entries, file.entries())
        pairs |= file.pairs()
        files, folders = file.files(), file.folders()
    taken = {name.lower() for name in files}
    entries = {name: _without(entry, taken) for name, entry in entries.items() if name.lower() not in taken}
    cwd = cwd or working_directory()
    project = project_file(environ, cwd) if cwd is not None else None
    if project is not None:
        if project.files() or project.folders():
            raise ConfigError(
                f"{project.toml.path}: a project cannot name files and folders of this machine",
                f"name them in {user_path(environ)}",
            )
        entries = _extended(Manifest(entries, {}), project, user_path(environ))
        pairs |= project.pairs()
    merged = Manifest(entries, {})
    known = {}
    for pair in pairs.values():
        target = merged.find(pair.target)
        for name in (pair.target, *pair.drafts):
            if merged.find(name) is None:
                pair_of = f"the pair of {quoted(pair.target)} names {quoted(name)}"
                raise ConfigError(f"{FILE}: {pair_of}, which is not a model in it")
        assert target is not None
        known[target.name] = pair
    return Manifest(entries, known, user, project.toml.path if project is not None else None, files, folders)


def _without(entry: ManifestEntry, taken: Collection[str]) -> ManifestEntry:
    """The entry without the aliases that files of the user's own have."""
    return replace(entry, aliases=tuple(a for a in entry.aliases if a.lower() not in taken))


def _overridden(
    known: Mapping[str, ManifestEntry], new: Mapping[str, ManifestEntry]
) -> dict[str, ManifestEntry]:
    """The known and the new entries. A name or alias belongs to the last entry that has it."""
    kept_entries, names, taken = [], set[str](), set[str]()
    for entry in reversed([*known.values(), *new.values()]):
        if entry.name.lower() not in names:
            kept = tuple(alias for alias in entry.aliases if alias.lower() not in taken)
            kept_entries.append(replace(entry, aliases=kept))
            names.add(entry.name.lower())
        taken |= {name.lower() for name in (entry.name, *entry.aliases)}
    return {entry.name: entry for entry in reversed(kept_entries)}


def _extended(known: Manifest, project: ManifestFile, user: Path) -> dict[str, ManifestEntry]:
    """The known entries, and those that a project adds. user: the user's file, for the hint. Raises
    ConfigError where a known name would get another meaning.
    """
    entries = dict(known.entries)
    for entry in project.entries().values():
        same = None
        for name in (entry.name, *entry.aliases):
            if (other := known.find(name)) is None:
                continue
            if (other.where, other.default) != (entry.where, entry.default):
                alias = () if name == entry.name else ("aliases",)
                location = project.toml.where("models", entry.name, *alias)
                raise ConfigError(
                    f"{location}: {name} is {other.usual}, and a project cannot make it {entry.usual}",
                    f"use another name, or put the entry into {user}",
                )
            same = same or entries[other.name]
        if same is None:
            entries[entry.name] = entry
        else:
            more = [name for name in (entry.name, *entry.aliases) if known.find(name) is None]
            entries[same.name] = replace(same, aliases=(*same.aliases, *more))
    return entries


def _shipped() -> Path:
    """The file in the package: in a wheel, in a checkout."""
    ours = Path(__file__).parent.parent / FILE
    return ours if ours.is_file() else ours.parent.parent / FILE


def user_path(environ: Mapping[str, str]) -> Path:
    """Where the user's file is or would be."""
    return from_variable(environ, "SPECLLAMA_MODELS") or user_directory("config") / FILE


def user_file(environ: Mapping[str, str]) -> Path | None:
    """The user's file, None if there is none. Raises ConfigError if SPECLLAMA_MODELS names no file."""
    path = user_path(environ)
    if not path.is_file() and environ.get("SPECLLAMA_MODELS"):
        raise ConfigError(f"SPECLLAMA_MODELS names {path}, which is not a file")
    return path if path.is_file() else None


def project_file(environ: Mapping[str, str], cwd: Path) -> ManifestFile | None:
    """The models.toml in this directory or the nearest one above, up to the repository's root or the home.
    None if that is the shipped one, the user's own, or one of another program: they use that name too.

    Raises ConfigError for one that cannot be used.
    """
    for directory in (cwd, *cwd.parents):
        path = directory / FILE
        if os.path.lexists(path):
            if any(is_same(path, other) for other in (_shipped(), user_path(environ))):
                return None
            return _ours(path)
        if (directory / ".git").exists() or directory == home():
            return None
    return None


def _ours(path: Path) -> ManifestFile | None:
    """A project's file, if it is specllama's. Raises ConfigError."""
    start = (read_start(path) or b"").decode("utf-8", "replace")
    if SCHEMA.partition("/")[0] not in start and not _TABLES.search(start):
        return None
    return ManifestFile(read_toml(path, links=False))
