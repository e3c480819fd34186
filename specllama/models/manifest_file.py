"""One models.toml: its models and pairs, checked. Mistakes are errors that name the file and line.

Knows nothing of other files, which may have the same names: manifest.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from specllama.config.toml_file import KeyPath, TomlFile, quoted
from specllama.errors import ConfigError, UsageError
from specllama.models.names import BUILT_IN, RepoName, check_file
from specllama.models.quants import PREFERRED, is_head_name
from specllama.models.sizes import guessed_bytes

SCHEMA = "specllama.models/1"
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,95}", re.ASCII)
NAME_FORM = "names are letters, digits, dots and dashes"
_MODEL_KEYS = {"repo": str, "quant": str, "file": str, "revision": str, "licence": str, "source": str}
_KINDS: Mapping[type, str] = {dict: "a table", list: "a list", str: "a text"}
_MAX_WORD = 100  # characters in a message
_MAX_ENTRIES = 1000  # models, pairs, names in a list; of a file
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
    for one in (name, *file.texts((*at, "aliases"), table.get("aliases", []))):
        if not is_own_name(one):
            file.fail(at, one, NAME_FORM)
        yield one, file._path(path)


def is_own_name(name: str) -> bool:
    """Whether a file can have this name."""
    return _NAME.fullmatch(name) is not None and name.lower() not in BUILT_IN


def _entry(file: ManifestFile, name: str, table: Any) -> ManifestEntry:
    at = ("models", name)
    if not _NAME.fullmatch(name):
        file.fail(at, name, NAME_FORM)
    table = file.of(dict, at, table)
    file.keys(at, table, (*_MODEL_KEYS, "aliases"), f" of {name}")
    for key, kind in _MODEL_KEYS.items():
        if key in table:
            file.of(kind, (*at, key), table[key])
    if "repo" not in table:
        file.fail(at, name, "repo is missing", "repo of the hub, or file for a file of your own")
    if "quant" in table and "file" in table:
        file.fail(at, name, "quant and file are both given")
    aliases = file.texts((*at, "aliases"), table.get("aliases", []))
    for taken in (name, *aliases):
        if taken.lower() in BUILT_IN:
            path = at if taken == name else (*at, "aliases")
            file.fail(path, taken, "this name belongs to a model of specllama itself")
    for alias in aliases:
        if not _NAME.fullmatch(alias):
            file.fail((*at, "aliases"), alias, "aliases are letters, digits, dots and dashes")
    default = table.get("quant") or table.get("file", "")
    try:
        where = RepoName(table["repo"], default, table.get("revision", "main"))
        if "file" in table:
            check_file(table["file"])
    except UsageError as error:
        file.fail(at, name, error.message)
    where = RepoName(where.repo, "", where.revision)
    return ManifestEntry(name, where, default, table.get("licence", ""), table.get("source", ""), aliases)


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
