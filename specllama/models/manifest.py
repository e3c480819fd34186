"""models.toml: the models and pairs known by name. The user's file overrides the shipped one, and a project's
file both, entry by entry.

Knows nothing of disks, hubs or GGUF. Mistakes are errors that name the file and line.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from specllama.errors import ConfigError, UsageError
from specllama.models.names import BUILT_IN, RepoName, check_file

SCHEMA = "specllama.models/1"
FILE = "models.toml"
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,95}", re.ASCII)
_MODEL_KEYS = {"repo": str, "quant": str, "file": str, "revision": str, "licence": str, "source": str}
_KINDS: Mapping[type, str] = {dict: "a table", list: "a list", str: "a text"}
_PAIR_KEYS = ("target", "drafts", "notes", "source")


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A model known by name. default: its quantisation or file if the user names none."""

    name: str
    where: RepoName
    default: str = ""
    licence: str = ""
    source: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownPair:
    """Drafts for a target, by name, best first."""

    target: str
    drafts: tuple[str, ...]
    notes: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Manifest:
    """All entries. Names and aliases are case-insensitive."""

    entries: Mapping[str, ManifestEntry]
    pairs: Mapping[str, KnownPair]

    def find(self, name: str) -> ManifestEntry | None:
        """The entry with this name or alias."""
        wanted = name.lower()
        exact = next((e for e in self.entries.values() if e.name.lower() == wanted), None)
        return exact or next(
            (e for e in self.entries.values() if wanted in (a.lower() for a in e.aliases)), None
        )

    def of_repo(self, repo: str) -> ManifestEntry | None:
        """The entry of a repository of the hub."""
        return next((e for e in self.entries.values() if e.where.repo.lower() == repo.lower()), None)

    def drafts_for(self, entry: ManifestEntry) -> list[ManifestEntry]:
        """The drafts that are known to fit, best first."""
        pair = self.pairs.get(entry.name)
        found = [self.find(name) for name in pair.drafts] if pair else []
        return [e for e in found if e is not None]

    def names(self) -> list[str]:
        """Every name and alias."""
        return [name for e in self.entries.values() for name in (*e.aliases, e.name)]

    def similar(self, name: str) -> list[str]:
        """Up to three names that resemble this one."""
        known = {n.lower(): n for n in self.names()}
        return [known[n] for n in difflib.get_close_matches(name.lower(), known, n=3)]


def load(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Manifest:
    """The shipped manifest, overridden by the user's and the project's. Raises ConfigError."""
    entries: dict[str, ManifestEntry] = {}
    pairs: dict[str, KnownPair] = {}
    for path in files(os.environ if environ is None else environ, cwd or Path.cwd()):
        read = _read(path)
        for new in read.entries.values():
            taken = {n.lower() for n in (new.name, *new.aliases)}
            entries = {n: _without(e, taken) for n, e in entries.items() if n.lower() != new.name.lower()}
            entries[new.name] = new
        pairs |= read.pairs
    found = Manifest(entries, {})
    known = {}
    for pair in pairs.values():
        target = found.find(pair.target)
        for name in (pair.target, *pair.drafts):
            if found.find(name) is None:
                raise ConfigError(
                    f"{FILE}: the pair of {pair.target} names {name!r}, which is not a model in it"
                )
        assert target is not None
        known[target.name] = pair
    return Manifest(entries, known)


def files(environ: Mapping[str, str], cwd: Path) -> Iterator[Path]:
    """The files to read, the shipped one first. Raises ConfigError if SPECLLAMA_MODELS names no file."""
    ours = Path(__file__).parent.parent / FILE
    yield ours if ours.is_file() else ours.parent.parent / FILE  # in a wheel, in a checkout
    user = Path(platformdirs.user_config_dir("specllama", appauthor=False)) / FILE
    if given := environ.get("SPECLLAMA_MODELS"):
        if not Path(given).is_file():
            raise ConfigError(f"SPECLLAMA_MODELS names {given}, which is not a file")
        user = Path(given)
    if user.is_file():
        yield user
    for directory in (cwd, *cwd.parents):
        if (directory / FILE).is_file():
            if _is_ours(directory / FILE):
                yield directory / FILE
            return
        if (directory / ".git").exists() or directory == Path.home():
            return


def _is_ours(path: Path) -> bool:
    """Whether a project's models.toml is specllama's: other programs use that name too."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return (
        "specllama.models/" in text
        or re.search(r"^\s*\[+\s*(models\s*\.|pairs\s*\])", text, re.M) is not None
    )


def _without(entry: ManifestEntry, taken: set[str]) -> ManifestEntry:
    """The entry without the aliases that an overriding file gives to another model."""
    kept = tuple(a for a in entry.aliases if a.lower() not in taken)
    return ManifestEntry(entry.name, entry.where, entry.default, entry.licence, entry.source, kept)


def _read(path: Path) -> Manifest:
    try:
        text = path.read_text("utf-8")
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        end = f"at the end, line {len(text.splitlines())}"
        raise ConfigError(f"{path} is not TOML: {error}".replace("at end of document", end)) from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    file = _File(path, text)
    file.keys(data, ("schema", "models", "pairs"), "")
    if data.get("schema", SCHEMA) != SCHEMA:
        file.fail("schema", f"{data['schema']!r} is not {SCHEMA!r}: another version of specllama may read it")
    tables = file.of(dict, data.get("models", {}), "models")
    entries = {name: _entry(file, name, table) for name, table in tables.items()}
    pairs = [_pair(file, pair) for pair in file.of(list, data.get("pairs", []), "pairs")]
    return Manifest(entries, {pair.target: pair for pair in pairs})


@dataclass(frozen=True)
class _File:
    """A file and its text, for errors that name a line. word: the key or value at fault."""

    path: Path
    text: str

    def fail(self, word: str, reason: str, hint: str = "") -> Any:
        found = next((i for i, line in enumerate(self.text.splitlines(), 1) if word in line), 1)
        raise ConfigError(f"{self.path}, line {found}: {word}: {reason}", hint)

    def of(self, kind: type, value: Any, word: str) -> Any:
        return value if isinstance(value, kind) else self.fail(word, f"must be {_KINDS[kind]}, not {value!r}")

    def texts(self, value: Any, word: str) -> tuple[str, ...]:
        return tuple(self.of(str, item, word) for item in self.of(list, value, word))

    def keys(self, table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in known:
                self.fail(key, f"unknown key{where}", f"known: {', '.join(known)}")


def _entry(file: _File, name: str, table: Any) -> ManifestEntry:
    if not _NAME.fullmatch(name):
        file.fail(name, "names are letters, digits, dots and dashes")
    table = file.of(dict, table, name)
    file.keys(table, (*_MODEL_KEYS, "aliases"), f" of {name}")
    for key, kind in _MODEL_KEYS.items():
        if key in table:
            file.of(kind, table[key], key)
    if "repo" not in table:
        file.fail(name, "repo is missing")
    if "quant" in table and "file" in table:
        file.fail(name, "quant and file are both given")
    aliases = file.texts(table.get("aliases", []), "aliases")
    for taken in (name, *aliases):
        if taken.lower() in BUILT_IN:
            file.fail(taken, "this name belongs to a model of specllama itself")
    for alias in aliases:
        if not _NAME.fullmatch(alias):
            file.fail(alias, "aliases are letters, digits, dots and dashes")
    default = table.get("quant") or table.get("file", "")
    try:
        where = RepoName(table["repo"], default, table.get("revision", "main"))
        if "file" in table:
            check_file(table["file"])
    except UsageError as error:
        file.fail(name, error.message)
    where = RepoName(where.repo, "", where.revision)
    return ManifestEntry(name, where, default, table.get("licence", ""), table.get("source", ""), aliases)


def _pair(file: _File, table: Any) -> KnownPair:
    table = file.of(dict, table, "pairs")
    file.keys(table, _PAIR_KEYS, " of a pair")
    target = file.of(str, table.get("target"), "target")
    drafts = file.texts(table.get("drafts", []), "drafts")
    if not drafts:
        file.fail(target, "the pair has no drafts")
    notes = file.texts(table.get("notes", []), "notes")
    return KnownPair(target, drafts, notes, file.of(str, table.get("source", ""), "source"))
