"""The precedence of values: flag > SPECLLAMA_* > project's specllama.toml > user's config.toml > default.

Unknown keys and wrong types are errors that name the file and line, or the variable. A project's file, which
anyone may have written, may set sampling, lengths, threads, layers and drafting alone (options.IN_PROJECTS).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specllama.config.option import OptionValues
from specllama.config.places import from_variable, home, user_directory, working_directory
from specllama.config.toml_file import quoted, read_toml
from specllama.errors import ConfigError

MODEL, DRAFT = ("model", "hf_repo"), ("draft_model", "hf_repo_draft")  # the options that name one
PROJECT_FILE = "specllama.toml"
PREFIX = "SPECLLAMA_"
NOT_OPTIONS = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "BACKEND",
        "BUILD",
        "CACHE",
        "CONFIG",
        "DATA",
        "DEMO",
        "KERNELS",
        "MODELS",
        "MODELS_DIR",
        "PYTHON",
    )
)  # read elsewhere
# What Kubernetes sets for a service with a name such as specllama, and Docker for a link; not options.
_OF_SERVICE = re.compile(
    PREFIX
    + r"(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://.*")


class ValueKind(NamedTuple):
    """How files and the environment write an option. type: of a value. many: whether it is a list. words: all
    values in words, or "". separated: whether a text has items separated by commas, which files may also
    write as an array. flags: on a command line, for hints.
    """

    type: type
    many: bool = False
    words: str = ""
    separated: bool = False
    flags: tuple[str, ...] = ()


Kinds = Mapping[str, ValueKind]


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
        """The values without these names."""
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
    flags: Mapping[str, Any],
    kinds: Kinds,
    in_projects: Collection[str],
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    aliases: Mapping[str, str] = {},
) -> Values:
    """All values that are set, by precedence of their sources. in_projects: what a project's file may set.
    aliases: other names of options, such as their long flags.

    Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    values = Values()
    if (user := user_file(environ)) is not None:
        values = read_file(user, kinds, aliases)
    cwd = cwd or working_directory()
    if cwd is not None and (project := project_file(cwd, user)) is not None:
        values = values.overlaid(read_project_file(project, kinds, in_projects, environ, aliases))
    return values.overlaid(read_environment(environ, kinds, aliases)).overlaid(flags)


def user_path(environ: Mapping[str, str]) -> Path:
    """Where the user's config file is or would be. SPECLLAMA_CONFIG overrides it."""
    return from_variable(environ, "SPECLLAMA_CONFIG") or user_directory("config") / "config.toml"


def user_file(environ: Mapping[str, str]) -> Path | None:
    """The user's config file, None if there is none. Raises ConfigError if SPECLLAMA_CONFIG names no file."""
    path = user_path(environ)
    if path.is_file():
        return path
    if environ.get("SPECLLAMA_CONFIG"):
        raise ConfigError(f"SPECLLAMA_CONFIG names {path}, which is not a file")
    return None


def project_file(cwd: Path, user: Path | None = None) -> Path | None:
    """specllama.toml in this directory or the nearest one above, up to the repository's root or the home;
    whatever has that name, unless it is the user's own file.
    """
    for directory in (cwd, *cwd.parents):
        path = directory / PROJECT_FILE
        if os.path.lexists(path):
            return None if user is not None and is_same(path, user) else path
        if (directory / ".git").exists() or directory == home():
            return None
    return None


def near(path: Path) -> str:
    """The path of a file; in the working directory ./NAME."""
    return f"./{path.name}" if path.parent == working_directory() else str(path)


def is_same(path: Path, other: Path) -> bool:
    """Whether both lead to the same file."""
    try:
        return path.samefile(other)
    except OSError:
        return False


def read_project_file(
    path: Path,
    kinds: Kinds,
    in_projects: Collection[str],
    environ: Mapping[str, str],
    aliases: Mapping[str, str] = {},
) -> Values:
    """The options of a project's file. Raises ConfigError as `read_file`, and for options that are not in
    `in_projects`.
    """
    values = read_file(path, kinds, aliases, links=False)
    for name in values:
        if name not in in_projects:
            raise ConfigError(
                f"{values.origins[name]} cannot be set by a project's {PROJECT_FILE}",
                f"set it in {user_path(environ)}, by a flag or by {PREFIX}{name.upper()}; a project may set "
                "sampling, lengths, threads, layers and drafting",
            )
    values.project = path if values else None
    return values


def read_file(path: Path, kinds: Kinds, aliases: Mapping[str, str] = {}, links: bool = True) -> Values:
    """The options of a TOML file. links: whether it may be a symbolic link. Raises ConfigError, for unknown
    keys and wrong types with file and line.
    """
    file, values = read_toml(path, links), Values()
    for key, value in file.data.items():
        name, where = key.replace("-", "_"), file.where(key)
        name = aliases.get(name, name)
        if name not in kinds:
            raise ConfigError(f"{where}: unknown key {quoted(key)}", _similar(name, kinds, aliases))
        if name in values:
            raise ConfigError(f"{where}: {key} is set twice, in two spellings")
        values[name] = _checked(value, kinds[name], f"{where}: {key}")
        values.origins[name] = f"{where}: {key}"
    return values


def read_environment(environ: Mapping[str, str], kinds: Kinds, aliases: Mapping[str, str] = {}) -> Values:
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
        name = aliases.get(name, name)
        if name not in kinds:
            raise ConfigError(f"unknown environment variable {variable}", _similar(name, kinds, aliases))
        if name in values:
            raise ConfigError(f"{values.origins[name]} and {variable} set the same option")
        kind = kinds[name]
        if kind.many:
            parts = [part.strip() for part in text.split(",")]
            values[name] = [_parsed(part, kind.type, variable) for part in parts if part]
        else:
            values[name] = _parsed(text, kind.type, variable)
        values.origins[name] = variable
    return values


def _parsed(text: str, kind: type, where: str) -> Any:
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ConfigError(f"{where} must be true or false, not {text!r}")
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{where} must be {_NAMES[kind]}, not {text!r}") from None


def _checked(value: Any, form: ValueKind, where: str) -> Any:
    kind = form.type
    if form.many or (form.separated and isinstance(value, list)):
        one = form._replace(many=False, separated=False)
        items = [_checked(item, one, where) for item in (value if isinstance(value, list) else [value])]
        return items if form.many else ",".join(items)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ConfigError(f"{where} is a number with too many digits")
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        expected = form.words or _NAMES[kind] + (" or a list" if form.separated else "")
        raise ConfigError(f"{where} must be {expected}, not {quoted(value)}")
    return value


_MAX_BITS = 1000  # of a number: fits a float
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _similar(name: str, kinds: Kinds, aliases: Mapping[str, str]) -> str:
    import difflib

    close = [other for other, kind in kinds.items() if f"-{name}" in kind.flags]
    close = close or difflib.get_close_matches(name[:100], [*kinds, *aliases], n=3)
    return f"did you mean {' or '.join(close)}?" if close else "specllama run --help names them all"
