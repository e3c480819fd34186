"""The precedence of values: flag > SPECLLAMA_* > project's specllama.toml > user's config.toml > default.

Unknown keys and wrong types are errors that name the file and line, or the variable.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

from specllama.errors import ConfigError

PREFIX = "SPECLLAMA_"
NOT_OPTIONS = frozenset(
    f"{PREFIX}{name}"
    for name in ("BACKEND", "BUILD", "CACHE", "CONFIG", "DATA", "DEMO", "KERNELS", "MODELS", "PYTHON")
)  # read elsewhere
Kinds = Mapping[str, tuple[type, bool]]  # option name to (type of a value, whether it is a list)


class Values(dict[str, Any]):
    """Option values by name. origins: where a value from a file or the environment was set, as text that can
    start a message.
    """

    def __init__(self, values: Mapping[str, Any] = {}, origins: Mapping[str, str] = {}) -> None:
        super().__init__(values)
        self.origins = dict(origins)

    def without(self, *names: str) -> Values:
        """The values without these names."""
        return Values({name: v for name, v in self.items() if name not in names}, self.origins)

    def overlaid(self, values: Mapping[str, Any]) -> Values:
        """The values, overridden by those of a source with higher precedence."""
        kept = {name: where for name, where in self.origins.items() if name not in values}
        more = values.origins if isinstance(values, Values) else {}
        return Values({**self, **values}, {**kept, **more})


def resolve(
    flags: Mapping[str, Any], kinds: Kinds, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Values:
    """All values that are set, by precedence of their sources. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    layers = [user_file(environ), project_file(cwd or Path.cwd())]
    values = Values()
    for path in layers:
        if path is not None:
            values = values.overlaid(read_file(path, kinds))
    return values.overlaid(read_environment(environ, kinds)).overlaid(flags)


def user_file(environ: Mapping[str, str]) -> Path | None:
    """The user's config file, None if there is none. SPECLLAMA_CONFIG overrides its path. Raises ConfigError
    if that is not a file.
    """
    if given := environ.get("SPECLLAMA_CONFIG"):
        if not Path(given).is_file():
            raise ConfigError(f"SPECLLAMA_CONFIG names {given}, which is not a file")
        return Path(given)
    path = Path(platformdirs.user_config_dir("specllama", appauthor=False)) / "config.toml"
    return path if path.is_file() else None


def project_file(cwd: Path) -> Path | None:
    """specllama.toml in this directory or the nearest one above, up to the repository's root or the home."""
    for directory in (cwd, *cwd.parents):
        if (directory / "specllama.toml").is_file():
            return directory / "specllama.toml"
        if (directory / ".git").exists() or directory == Path.home():
            return None
    return None


def read_file(path: Path, kinds: Kinds) -> Values:
    """The options of a TOML file. Raises ConfigError for unknown keys and wrong types, with file and line."""
    try:
        text = path.read_text("utf-8")
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        end = f"at the end, line {len(text.splitlines())}"
        raise ConfigError(f"{path} is not TOML: {error}".replace("at end of document", end)) from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    values = Values()
    for key, value in data.items():
        name = key.replace("-", "_")
        where = f"{path}, line {_line_of(text, key)}"
        if name not in kinds:
            raise ConfigError(f"{where}: unknown key {key!r}", _similar(name, kinds))
        if name in values:
            raise ConfigError(f"{where}: {key} is set twice, in two spellings")
        values[name] = _checked(value, *kinds[name], where=f"{where}: {key}")
        values.origins[name] = f"{where}: {key}"
    return values


def read_environment(environ: Mapping[str, str], kinds: Kinds) -> Values:
    """The options among the environment variables. Raises ConfigError, naming the variable."""
    values = Values()
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in NOT_OPTIONS:
            continue
        name = variable[len(PREFIX) :].lower()
        if name not in kinds:
            raise ConfigError(f"unknown environment variable {variable}", _similar(name, kinds))
        kind, many = kinds[name]
        if many:
            values[name] = [_parsed(part.strip(), kind, variable) for part in text.split(",") if part.strip()]
        else:
            values[name] = _parsed(text, kind, variable)
        values.origins[name] = variable
    return values


def _parsed(text: str, kind: type, where: str) -> Any:
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        raise ConfigError(f"{where} must be true or false, not {text!r}")
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{where} must be {_NAMES[kind]}, not {text!r}") from None


def _checked(value: Any, kind: type, many: bool, where: str) -> Any:
    if many:
        items = value if isinstance(value, list) else [value]
        return [_checked(item, kind, False, where) for item in items]
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{where} must be {_NAMES[kind]}, not {value!r}")
    return value


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _line_of(text: str, key: str) -> int:
    """The line that sets a top-level key or opens its table."""
    pattern = re.compile(rf"""\s*(\[+\s*)?["']?{re.escape(key)}["']?\s*[=.\]]""")
    return next((i for i, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)


def _similar(name: str, kinds: Kinds) -> str:
    import difflib

    close = difflib.get_close_matches(name, kinds, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(kinds))}"
