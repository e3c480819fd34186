"""The precedence of values: flag > SPECLLAMA_* > project's specllama.toml > user's config.toml > default.

Unknown keys and wrong types are errors that name the file and line, or the variable. A project's file, which
anyone may have written, may set sampling, lengths, threads, layers and drafting alone (Scope.PROJECT).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specllama.config import places
from specllama.config.forms import TEMPLATE
from specllama.config.options import LONG_FLAGS, STORED
from specllama.config.toml_file import read_toml
from specllama.errors import ConfigError, quoted
from specllama.option import KINDS, Option, OptionValues, Scope
from specllama.wording import similar

MODEL, DRAFT = ("model", "hf_repo"), ("draft_model", "hf_repo_draft")  # the options that name one
PROJECT_FILE = "specllama.toml"
PREFIX = "SPECLLAMA_"
_READ_ELSEWHERE = (
    "BACKEND", "BUILD", "CACHE", "CONFIG", "DATA", "DEMO", "KERNELS", "LLAMA_CPP_SOURCE", "MODELS",
    "MODELS_DIR", "PYTHON",
)  # fmt: skip
NOT_OPTIONS = frozenset(PREFIX + name for name in _READ_ELSEWHERE)
# What Kubernetes sets for a service with a name such as specllama, and Docker for a link; not options.
_OF_SERVICE = re.compile(
    PREFIX
    + r"(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://.*")
_MAX_BITS = 1000  # of a number: fits a float


class Values(OptionValues):
    """Option values by name. origins: where a value from a file or the environment was set, as text that can
    start a message. project: the project's file, if it sets any. ignored: variables that are a service's.
    left_out: where a draft was set for another model.
    """

    def __init__(
        self,
        values: Mapping[str, Any] = {},
        origins: Mapping[str, str] = {},
        project: Path | None = None,
        ignored: tuple[str, ...] = (),
        left_out: str = "",
    ) -> None:
        super().__init__(values)
        self.origins, self.project, self.ignored = dict(origins), project, ignored
        self.left_out = left_out

    def without(self, *names: str) -> Values:
        kept = {name: v for name, v in self.items() if name not in names}
        return Values(kept, self.origins, self.project, self.ignored, self.left_out)

    def overlaid(self, values: Mapping[str, Any]) -> Values:
        """The values, overridden by those of a source with higher precedence. A model or draft that it names
        replaces one that is named in another way; a draft of the source of another model is left out.
        """
        lower = self
        for names in (MODEL, DRAFT):
            if any(name in values for name in names):
                lower = lower.without(*names)
        model = next((name for name in MODEL if name in self), "")
        draft = next((name for name in DRAFT if lower.get(name, "auto") not in ("auto", "none")), "")
        if model and draft and any(values.get(name, self[model]) != self[model] for name in MODEL):
            left_out = lower.origins.get(draft, "")
            if _source(left_out) == _source(self.origins.get(model, "")):
                lower = lower.without(*DRAFT)
                lower.left_out = left_out
        return lower._overlaid(values)

    def _overlaid(self, values: Mapping[str, Any]) -> Values:
        kept = {name: where for name, where in self.origins.items() if name not in values}
        other = values if isinstance(values, Values) else Values()
        return Values(
            {**self, **values},
            {**kept, **other.origins},
            other.project or self.project,
            self.ignored + other.ignored,
            other.left_out or self.left_out,
        )


def _source(origin: str) -> str:
    """The file of an origin, "" for variables and flags."""
    return origin.rpartition(", line ")[0]


def resolve(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> Values:
    """All values that are set, by precedence of their sources. Raises ConfigError."""
    values = Values()
    if (user := user_file(environ)) is not None:
        values = read_file(user)
    cwd = cwd or places.working_directory()
    if cwd is not None and (project := project_file(cwd, user)) is not None:
        values = values.overlaid(read_project_file(project, environ))
    return values.overlaid(read_environment(environ)).overlaid(flags)


def user_path(environ: Mapping[str, str]) -> Path:
    """Where the user's config file is or would be. SPECLLAMA_CONFIG overrides it."""
    named = places.from_variable(environ, "SPECLLAMA_CONFIG")
    return named or places.user_directory("config") / "config.toml"


def user_file(environ: Mapping[str, str]) -> Path | None:
    """The user's config file, None if there is none. Raises ConfigError as `of_user`."""
    return places.of_user(environ, "SPECLLAMA_CONFIG", user_path(environ), "your settings")


def project_file(cwd: Path, user: Path | None = None) -> Path | None:
    """A project's specllama.toml, see `in_project`; whatever has that name, unless it is the user's file."""
    path = places.in_project(cwd, PROJECT_FILE)
    return None if path is None or (user is not None and places.is_same(path, user)) else path


def read_project_file(path: Path, environ: Mapping[str, str]) -> Values:
    """The options of a project's file. Raises ConfigError as `read_file`, and for forbidden ones."""
    values = read_file(path, links=False)
    for name in values:
        if STORED[name].scope is not Scope.PROJECT:
            raise ConfigError(
                f"{values.origins[name]} cannot be set by a project's {PROJECT_FILE}",
                f"set it in {user_path(environ)}, by a flag or by {PREFIX}{name.upper()}; a project may set "
                "sampling, lengths, threads, layers and drafting",
            )
    values.project = path if values else None
    return values


def read_file(path: Path, links: bool = True) -> Values:
    """The options of a TOML file. links: whether it may be a symbolic link. Raises ConfigError, for unknown
    keys, tables and wrong types with file and line.
    """
    file, values = read_toml(path, links), Values()
    for key, value in file.data.items():
        name, where = key.replace("-", "_"), file.where(key)
        name = LONG_FLAGS.get(name, name)
        if name not in STORED:
            first = value[0] if isinstance(value, list) and value else value
            if isinstance(first, dict):
                raise ConfigError(f"{where}: unknown table {quoted(key)}", "options stand in no table")
            raise ConfigError(f"{where}: unknown key {quoted(key)}", _similar(name))
        if name in values:
            raise ConfigError(f"{where}: {key} is set twice, in two spellings")
        entry, origin = STORED[name], f"{where}: {key}"
        values[name] = _checked(value, entry, origin, entry.many, entry.separated)
        values.origins[name] = origin
    return values


def read_environment(environ: Mapping[str, str]) -> Values:
    """The options among the environment variables, without those that an orchestrator sets for a service.
    Raises ConfigError, naming the variable.
    """
    values = Values()
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in NOT_OPTIONS or not text:
            continue  # an empty one is as if it were not set
        if _OF_SERVICE.fullmatch(variable) or (variable.endswith("PORT") and _ADDRESS.fullmatch(text)):
            values.ignored += (variable,)
            continue
        name = variable[len(PREFIX) :].lower()
        name = LONG_FLAGS.get(name, name)
        if name not in STORED:
            raise ConfigError(f"unknown environment variable {variable}", _similar(name, PREFIX))
        if name in values:
            raise ConfigError(f"{values.origins[name]} and {variable} set the same option")
        entry = STORED[name]
        if entry.many:
            parts = [part.strip() for part in text.split(",")]
            values[name] = [_parsed(part, entry, variable) for part in parts if part]
        else:
            values[name] = _parsed(text, entry, variable)
        values.origins[name] = variable
    return values


def _parsed(text: str, entry: Option, where: str) -> Any:
    if entry.kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ConfigError(f"{where} must be true or false, not {quoted(text)}")
    try:
        return entry.number(text) if entry.is_number else entry.kind(text)
    except ValueError as error:
        raise ConfigError(f"{where} {error}") from None


def _checked(value: Any, entry: Option, where: str, many: bool, separated: bool) -> Any:
    """The value of a key. many, separated: whether it may be a list, of values or of the items of a text."""
    kind = entry.kind
    if many or (separated and isinstance(value, list)):
        given = value if isinstance(value, list) else [value]
        items = [_checked(item, entry, where, False, False) for item in given]
        return items if many else ",".join(items)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        expected = entry.values or entry.expected()
        raise ConfigError(f"{where} must be {expected}, not a number of so many digits")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is str and is_number and entry.form not in (None, TEMPLATE):
        return str(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        expected = entry.values or KINDS[kind]
        if entry.many or entry.separated:
            expected = f"{KINDS[kind]} or a list of {KINDS[kind].removeprefix('a ')}s"
        raise ConfigError(f"{where} must be {expected}, not {quoted(value)}")
    return value


def _similar(name: str, prefix: str = "") -> str:
    """A hint for an unknown option. prefix: of the names of variables."""
    close = [other for other, entry in STORED.items() if f"-{name}" in entry.flags]
    close = close or similar(name, [*STORED, *LONG_FLAGS])
    names = [prefix + other.upper() if prefix else other for other in close]
    return f"did you mean {' or '.join(names)}?" if names else "docs/options.md names them all"
