"""models.toml: the models and pairs known by name. The user's file overrides the shipped one, entry by
entry. A project's file adds to both: anyone may have written it. Files that it names, and folders of models.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from specllama.config.places import (
    from_variable,
    in_project,
    is_same,
    of_user,
    user_directory,
    working_directory,
)
from specllama.config.toml_file import KeyPath, TomlFile, parse_toml, read_start, read_toml
from specllama.errors import ConfigError, UsageError, quoted
from specllama.models.names import BUILT_IN, RepoName, check_file
from specllama.models.quants import PREFERRED, find_heads, find_models, guessed_bytes, is_head_name
from specllama.wording import similar

SCHEMA = "specllama.models/1"
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,95}", re.ASCII)
NAME_FORM = "names are letters, digits, dots and dashes"
_MODEL_KEYS = dict.fromkeys(("repo", "quant", "file", "revision", "licence", "source", "mmproj"), str)
_KINDS: Mapping[type, str] = {dict: "a table", list: "a list", str: "a text"}
_MAX_WORD = 100  # characters in a message
_MAX_ENTRIES = 1000  # models, pairs, names in a list; of a file
_PAIR_KEYS = ("target", "drafts", "notes", "source")


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A model known by name. default: its quantisation or file if the user names none. mmproj: where its
    projector is, a repository or a file of one; None where none is known.
    """

    name: str
    where: RepoName
    default: str = ""
    licence: str = ""
    source: str = ""
    aliases: tuple[str, ...] = ()
    mmproj: RepoName | None = None

    @property
    def usual(self) -> str:
        """The repository with the quantisation or file that the name means, if there is one."""
        return f"{self.where}:{self.default}" if self.default else str(self.where)

    @property
    def guessed_bytes(self) -> int | None:
        """About its bytes, by its name; None for heads, and where the name does not say it."""
        if is_head_name(self.name) or is_head_name(self.default):
            return None
        return guessed_bytes(self.name, self.default or PREFERRED[0])

    @property
    def short_name(self) -> str:
        """The name for a line: its first alias, if it has one."""
        return self.aliases[0] if self.aliases else self.name


@dataclass(frozen=True, slots=True)
class KnownPair:
    """Drafts for a target, by name, best first."""

    target: str
    drafts: tuple[str, ...]
    notes: tuple[str, ...] = ()
    source: str = ""


class ManifestFile:
    """One models.toml. Its errors name the line of the keys `at`, or of the nearest table around them."""

    def __init__(self, toml: TomlFile) -> None:
        self.toml = toml
        self.keys((), toml.data, ("schema", "models", "pairs", "folders"), "")
        if (schema := toml.data.get("schema", SCHEMA)) != SCHEMA:
            reason = f"{quoted(schema)} is not {SCHEMA!r}: another version of specllama may read it"
            self.fail(("schema",), "schema", reason)

    def entries(self) -> dict[str, ManifestEntry]:
        """The models by name. Raises ConfigError."""
        tables = self.of(dict, ("models",), self.toml.data.get("models", {}))
        return {name: _entry(self, name, table) for name, table in tables.items() if not _is_file(table)}

    def files(self) -> dict[str, str]:
        """The paths of files of the user's own, by name and alias. Raises ConfigError."""
        tables = self.of(dict, ("models",), self.toml.data.get("models", {}))
        named = {name: table for name, table in tables.items() if _is_file(table)}
        return {one: path for name, table in named.items() for one, path in _file(self, name, table)}

    def folders(self) -> tuple[str, ...]:
        """The folders of models. Raises ConfigError."""
        texts = self.texts(("folders",), self.toml.data.get("folders", []))
        return tuple(self._path(text) for text in texts)

    def without(self, name: str) -> str:
        """The text without the table of a file of the user's own. Raises ConfigError where it has none."""
        path, data = self.toml.path, self.toml.data
        key = next((key for key in data["models"] if key.lower() == name.lower()), name)
        lines, first = self.toml.text.split("\n"), self.toml.lines.get(("models", key), 0)
        last = next((n for n in range(first, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
        while last > first and lines[last - 1].lstrip()[:1] in ("", "#"):  # of the next table
            last -= 1
        text = "\n".join([*lines[: max(0, first - 1)], *lines[last:]])
        kept = {**data, "models": {one: table for one, table in data["models"].items() if one != key}}
        with suppress(ConfigError):
            if key in data["models"] and {"models": {}, **parse_toml(path, text).data} == kept:
                return text
        raise ConfigError(f"{self.toml.where('models', key)}: {name} has no table of its own", f"edit {path}")

    def _path(self, text: str) -> str:
        """A path in this file, which a relative one starts from."""
        return os.path.join(self.toml.path.parent, os.path.expanduser(text))

    def pairs(self) -> dict[str, KnownPair]:
        """The pairs by target. Raises ConfigError."""
        tables = self.of(list, ("pairs",), self.toml.data.get("pairs", []))
        return {pair.target: pair for pair in (_pair(self, n, table) for n, table in enumerate(tables))}

    def fail(self, at: KeyPath, word: str, reason: str, hint: str = "") -> NoReturn:
        """Raise ConfigError about a key or value."""
        raise ConfigError(f"{self.toml.where(*at)}: {word[:_MAX_WORD]}: {reason}", hint)

    def of(self, kind: type, at: KeyPath, value: Any) -> Any:
        """The value, if it is of this kind and not too long."""
        word = str(next(key for key in reversed(at) if isinstance(key, str)))
        if not isinstance(value, kind):
            self.fail(at, word, f"must be {_KINDS[kind]}, not {quoted(value)}")
        if isinstance(value, (dict, list)) and len(value) > _MAX_ENTRIES:
            self.fail(at, word, f"has more than {_MAX_ENTRIES} entries")
        return value

    def texts(self, at: KeyPath, value: Any) -> tuple[str, ...]:
        """The value, if it is a list of texts."""
        return tuple(self.of(str, at, item) for item in self.of(list, at, value))

    def names(self, name: str, table: Mapping[str, Any]) -> tuple[str, ...]:
        """The name of a model and its aliases. Raises ConfigError for one that it cannot have."""
        at: KeyPath = ("models", name)
        for one in (all_names := (name, *self.texts((*at, "aliases"), table.get("aliases", [])))):
            here = at if one == name else (*at, "aliases")
            if one.lower() in BUILT_IN:
                what = "this name belongs to a model of specllama itself"
                self.fail(here, one, what, "use another name")
            if not _NAME.fullmatch(one):
                self.fail(here, one, NAME_FORM)
        return all_names

    def keys(self, at: KeyPath, table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        """Raise ConfigError for unknown keys."""
        for key in table:
            if key not in known:
                self.fail((*at, key), key, f"unknown key{where}", f"known: {', '.join(known)}")


def _is_file(table: Any) -> bool:
    """Whether an entry is a file of the user's own, and no repository."""
    return isinstance(table, dict) and "file" in table and "repo" not in table


def _file(file: ManifestFile, name: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    at = ("models", name)
    file.keys(at, table, ("file", "aliases"), f" of {name}, which is a file")
    path = file.of(str, (*at, "file"), table["file"])
    yield from ((one, file._path(path)) for one in file.names(name, table))


def is_own_name(name: str) -> bool:
    """Whether a file can have this name."""
    return _NAME.fullmatch(name) is not None and name.lower() not in BUILT_IN


def _entry(file: ManifestFile, name: str, table: Any) -> ManifestEntry:
    at = ("models", name)
    table = file.of(dict, at, table)
    _, *aliases = file.names(name, table)
    file.keys(at, table, (*_MODEL_KEYS, "aliases"), f" of {name}")
    for key, kind in _MODEL_KEYS.items():
        if key in table:
            file.of(kind, (*at, key), table[key])
    if "repo" not in table:
        file.fail(at, name, "repo is missing", "repo of the hub, or file for a file of your own")
    if "quant" in table and "file" in table:
        file.fail(at, name, "quant and file are both given")
    default = table.get("quant") or table.get("file", "")
    try:
        where = RepoName(table["repo"], default, table.get("revision", "main"))
        if "file" in table:
            check_file(table["file"])
        mmproj = RepoName(*table["mmproj"].split(":", 1)) if "mmproj" in table else None
    except UsageError as error:
        file.fail(at, name, error.message)
    where = RepoName(where.repo, "", where.revision)
    about = (table.get("licence", ""), table.get("source", ""))
    return ManifestEntry(name, where, default, *about, tuple(aliases), mmproj)


def _pair(file: ManifestFile, number: int, table: Any) -> KnownPair:
    at = ("pairs", number)
    table = file.of(dict, at, table)
    file.keys(at, table, _PAIR_KEYS, " of a pair")
    target = file.of(str, (*at, "target"), table.get("target"))
    drafts = file.texts((*at, "drafts"), table.get("drafts", []))
    if not drafts:
        file.fail(at, target, "the pair has no drafts")
    notes = file.texts((*at, "notes"), table.get("notes", []))
    return KnownPair(target, drafts, notes, file.of(str, (*at, "source"), table.get("source", "")))


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
        return self._by_name.get(name.lower())

    def of_repo(self, repo: str) -> ManifestEntry | None:
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
        return [known[n] for n in similar(name.lower(), known)]


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
    entries = {
        name: replace(entry, aliases=tuple(a for a in entry.aliases if a.lower() not in taken))
        for name, entry in entries.items()
        if name.lower() not in taken
    }
    cwd = cwd or working_directory()
    project = project_file(environ, cwd) if cwd is not None else None
    if project is not None:
        if project.files() or project.folders():
            message = f"{project.toml.path}: a project cannot name files and folders of this machine"
            raise ConfigError(message, f"name them in {user_path(environ)}")
        entries = _extended(Manifest(entries, {}), project, user_path(environ))
        pairs |= project.pairs()
    merged = Manifest(entries, {})
    known = {}
    for pair in pairs.values():
        target = merged.find(pair.target)
        for name in (pair.target, *pair.drafts):
            if merged.find(name) is None:
                pair_of = f"the pair of {quoted(pair.target)} names {quoted(name)}"
                if name.lower() in taken:
                    raise ConfigError(
                        f"{user or FILE}: {pair_of}, a file of your own: pairs are of models of the hub",
                        "give that file its draft with -md, or as draft_model in config.toml",
                    )
                raise ConfigError(
                    f"{user or FILE}: {pair_of}, which is not a model of a list",
                    "specllama models lists the names",
                )
        assert target is not None
        known[target.name] = pair
    return Manifest(entries, known, user, project.toml.path if project is not None else None, files, folders)


def check_names(environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a file of the user or of a project that has a name of specllama's own models."""
    user, cwd = user_file(environ), working_directory()
    project = project_file(environ, cwd) if cwd is not None else None
    for file in filter(None, (ManifestFile(read_toml(user)) if user is not None else None, project)):
        file.entries()
        file.files()


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
                message = f"{location}: {name} is {other.usual}, and a project cannot make it {entry.usual}"
                raise ConfigError(message, f"use another name, or put the entry into {user}")
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
    """The user's file, None if there is none. Raises ConfigError as `of_user`."""
    return of_user(environ, "SPECLLAMA_MODELS", user_path(environ), "your names of models")


def project_path(environ: Mapping[str, str], cwd: Path) -> Path | None:
    """Where a project's models.toml is, see `in_project`; None if that is the shipped one or the user's."""
    path = in_project(cwd, FILE)
    ours = path is None or any(is_same(path, other) for other in (_shipped(), user_path(environ)))
    return None if ours else path


def project_file(environ: Mapping[str, str], cwd: Path) -> ManifestFile | None:
    """A project's models.toml; None for one of another program: they use that name too. Raises ConfigError
    for one that cannot be used.
    """
    if (path := project_path(environ, cwd)) is None:
        return None
    start = (read_start(path) or b"").decode("utf-8", "replace")
    if SCHEMA.partition("/")[0] not in start and not _TABLES.search(start):
        return None
    return ManifestFile(read_toml(path, links=False))


MODELS_DIR = "SPECLLAMA_MODELS_DIR"  # names a folder of models, as --models-dir does
_MAX_FILES = 4096  # of a folder


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A model of the user's own. path: of its first part; parts: of all that are there. stem: how a file of a
    folder is called, even where that cannot be its name.
    """

    name: str
    path: str
    parts: tuple[str, ...]
    stem: str = ""


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
            stem = os.path.basename(model.stem)
            yield OwnFile(stem, parts[0], parts, stem)
