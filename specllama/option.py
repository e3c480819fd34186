"""An option as all fronts see it: flag, key in files, environment variable, argument in Python and field of
request bodies, with its description, how its values are written, and their range.

The tables are in config/load.py, core/sampling/params.py, config/options.toml and cli/options.toml.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from string import Template
from typing import Any

from specllama.errors import UsageError, quoted

GGUF, DOWNLOADED, RUNNING, KEPT, CHATS = "*.gguf", "downloaded", "running", "kept", "chats"  # in `completes`
LIST = ","
DRAFT = "_draft"  # ends the names of options and arguments that are for the draft alone
KINDS: Mapping[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
"""The types of values, in words."""
_TOO_LONG = re.compile(r"[-+]?[0-9_]{100,}")  # a number that is in no range
_TYPES = {kind.__name__: kind for kind in KINDS}
_MAX_INT = 2**31 - 1
OptionValues = dict[str, Any]
"""Values of options by name, each of its option's kind; checked when settings are made of them."""


class Scope(Enum):
    """Who may set an option that is stored.

    PROJECT: a project's specllama.toml too, which anyone may have written: nothing that names a file, a
    model, a host or a key, or opens the server further. USER: flags, the environment and the user's own file.
    MODEL: the same; and as it makes sense for one model alone, a server that has it loads no other model.
    """

    PROJECT = "project"
    USER = "user"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of an option are written. text: from the text on a command line. python: from what
    Python gives. hint: the type of the latter, as written in source. Both raise UsageError. kind: of the
    value on a command line; `list` for texts that may be given several times. separated: whether the text has
    items separated by commas, which files may also write as an array.
    """

    text: Callable[[Any, str], Any]
    python: Callable[[Any, str], Any]
    hint: str
    kind: type = str
    separated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a command, or a field of settings with the options that set it.

    flags: () for a positional argument, and where programs alone give it. kind: the type of its value on a
    command line. panel: its group in --help. many: may be given several times. stored: allowed in files and
    environment. completes: the completions of its value: words, GGUF for files and model names, DOWNLOADED
    for names of downloaded models, KEPT for prompts on disk and their models, CHATS for names of saved
    conversations, LIST first for a comma-separated list of the words; () leaves it to the shell, which
    completes file names. argument: its name in Python, "" for the same. bare: may stand without a value,
    which is then "".

    Of fields: declared: the type, as written in source. form: how values are written, None for values of the
    field's own type. low, high: the range of a number; without `low` none is checked, without `high` it ends
    at 2^31 - 1. choices: all values. check: returns the value in its final form or raises UsageError. also:
    further options that set the field. draft: those that set it for the draft alone; () for a field that has
    no value of its own there. inherited: the draft has the target's value unless its own is given. merge: the
    field's value from those of several options, by their names without `_draft`; None where there is one
    option. measuring: whether commands that measure have its options.

    Of sampling parameters: api_names: more names in request bodies, after its own, separated by spaces; None:
    each API has its own form. step: the letter of --sampling-seq for the sampling step that it controls.
    file_key: its key in a model's file, after general.sampling., "" for none.
    """

    name: str = ""
    flags: tuple[str, ...] = ()
    kind: type = str
    help: str = ""
    metavar: str | None = None
    panel: str = ""
    many: bool = False
    stored: bool = True
    completes: tuple[str, ...] = ()
    argument: str = ""
    required: bool = False
    bare: bool = False
    scope: Scope = Scope.USER

    declared: str = ""
    default: Any = None
    form: Form | None = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[Any], Any] | None = None
    also: tuple[Option, ...] = ()
    draft: tuple[Option, ...] = ()
    inherited: bool = False
    merge: Callable[[Mapping[str, Any]], Any] | None = None
    measuring: bool = True

    api_names: str | None = ""
    step: str = ""
    file_key: str = ""

    @property
    def options(self) -> tuple[Option, ...]:
        """All options that set the field, the main one first; () where no option does."""
        return (self, *self.also) if self.flags else ()

    @property
    def api_fields(self) -> tuple[str, ...]:
        """Its names in request bodies, the preferred one first; () where each API has its own form."""
        return () if self.api_names is None else (self.name, *self.api_names.split())

    @property
    def has_plain_value(self) -> bool:
        """Whether a form can ask for it: a number, a switch or texts that files may set."""
        return self.stored and not isinstance(self.default, Mapping)

    @property
    def is_number(self) -> bool:
        return self.kind in (int, float) and not self.many

    @property
    def highest(self) -> float:
        """The highest value of a number."""
        return _MAX_INT if self.high is None else self.high

    def expected(self, top: bool = True) -> str:
        """Its values in words. top: whether the highest number is named also where it is the usual one."""
        kind = KINDS.get(self._type, KINDS[self.kind])
        if self.low is None:
            return kind
        return f"{kind} from {self.low}" + (f" to {self.highest}" if top or self.high is not None else "")

    def number(self, text: str) -> Any:
        """The number that a text is. Raises ValueError, whose message goes on after the option's name."""
        if _TOO_LONG.fullmatch(text):
            raise ValueError(f"must be {self.expected()}, not one of {len(text)} digits")
        try:
            return self.kind(text)
        except ValueError:
            raise ValueError(f"must be {KINDS[self.kind]}, not {text[:60]!r}") from None

    @property
    def separated(self) -> bool:
        """Whether its text has items separated by commas, which files may also write as an array."""
        return self.form is not None and self.form.separated

    @property
    def values(self) -> str:
        """All values in words, where they are some words, or numbers and words; else ""."""
        if not self.completes or not all(word.isalpha() and word.islower() for word in self.completes):
            return ""
        words = [*(["a number"] if self.metavar == "N" else []), *self.completes]
        return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))

    @property
    def hint(self) -> str:
        """The type of the argument in Python, as written in source."""
        return self.declared if self.form is None else self.form.hint

    def described(self, default: Any) -> str:
        """The description, with a default."""
        return self.help.replace("{default}", f"{default:g}" if isinstance(default, (int, float)) else "")

    def given(self, values: Mapping[str, Any], draft: bool = False) -> OptionValues:
        """Those of these option values that set it, or that set the draft's."""
        names = [option.name for option in (self.draft if draft else self.options)]
        return {name: values[name] for name in names if name in values}

    def read(self, given: Mapping[str, Any]) -> Any:
        """The field's value from what `given` found. Raises UsageError, NotFoundError."""
        if self.merge is not None:
            try:
                return self.merge({name.removesuffix(DRAFT): value for name, value in given.items()})
            except UsageError as error:
                if error.option in given or f"{error.option}{DRAFT}" not in given:
                    raise
                raise error.renamed(f"{error.option}{DRAFT}") from None
        ((name, value),) = given.items()
        return value if self.form is None else self.form.text(value, name)

    def accept(self, value: Any, name: str) -> Any:
        """The field's value from that of an argument. Raises UsageError, NotFoundError."""
        if value is None and self.default is None:
            return None
        return of_kind(value, name, self._type) if self.form is None else self.form.python(value, name)

    @property
    def _type(self) -> type:
        """The type of the field's value, where that is one of KINDS; else None's."""
        return _TYPES.get(self.declared.partition(" | ")[0], type(None))

    def checked(self, value: Any) -> Any:
        """The value of the field in its final form. Raises UsageError."""
        if value is None and self.default is None:
            return None
        if self.choices and value not in self.choices:
            words = ", ".join(self.choices)
            raise UsageError(f"must be one of {words}, not {quoted(value)}", option=self.name)
        if self._type in (int, float) and self.low is not None:
            if not _is_of(value, self._type) or not self.low <= value <= self.highest:  # NaN is in no range
                above = _is_of(value, self._type) and value > self.highest
                raise UsageError(f"must be {self.expected(above)}, not {quoted(value)}", option=self.name)
        elif self._type is float:
            if not math.isfinite(of_kind(value, self.name, float)):
                raise UsageError(f"must be a number, not {quoted(value)}", option=self.name)
        elif self._type is bool and self.form is None:
            of_kind(value, self.name, bool)
        return value if self.check is None else self.check(value)


def of_kind(value: Any, name: str, kind: type) -> Any:
    """The value as Python gives it, if it is of this kind. Raises UsageError."""
    if not _is_of(value, kind):
        raise UsageError(f"must be {KINDS[kind]}, not {quoted(value)}", option=name)
    return value


def _is_of(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def tables(
    panels: Mapping[str, Mapping[str, Any]], words: Mapping[str, object] = {}, stored: bool = False
) -> list[Option]:
    """The options of a table in TOML: by panel of --help and name [flags, kind and placeholder, help], and
    maybe a table of further attributes; the kind `list` means a text that may be given several times. words:
    for which $NAME stands in a help.
    """
    options = list[Option]()
    for panel, rows in panels.items():
        for name, (flags, value, text, *more) in rows.items():
            kind, _, metavar = value.partition(" ")
            given: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in dict(*more).items()
            }
            if "scope" in given:
                given["scope"] = Scope[given["scope"]]
            given |= {"panel": panel, "stored": stored, "help": Template(text).safe_substitute(words)}
            given |= {"kind": _TYPES.get(kind, str), "many": kind not in _TYPES, "metavar": metavar or None}
            options.append(Option(name=name, flags=tuple(flags.split()), **given))
    return options


def option_field(
    default: Any, flags: str = "", text: str = "", metavar: str | None = None, **more: Any
) -> Any:
    """A dataclass field with its Option; without flags, here or in `options_of`, one that only Python sets.
    more: attributes of Option; among `also` those of the draft are named so.
    """
    entry = Option(default=default, flags=tuple(flags.split()), help=text, metavar=metavar, **more)
    metadata = {"option": entry}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(
    settings: Any, texts: Mapping[str, Sequence[str]] = {}, words: Mapping[str, object] = {}
) -> dict[str, Option]:
    """The options of a class, by field; fields without one are no settings. texts: by field [flags,
    placeholder, help], where the field does not have them, and maybe flags and help of the draft's option.
    words: as in `tables`.
    """
    options = dict[str, Option]()
    for one in fields(settings):
        entry: Option | None = one.metadata.get("option")
        if entry is not None and one.name in texts:
            flags, metavar, *helps = texts[one.name]
            text, *draft = (Template(part).safe_substitute(words) for part in helps)
            own = (Option(flags=tuple(draft[0].split()), help=draft[1]),) if draft else ()
            given = tuple(flags.split())
            entry = replace(entry, flags=given, metavar=metavar or None, help=text, draft=own)
        if entry is not None:
            options[one.name] = _complete(entry, one.name, str(one.type))
    return options


def _complete(entry: Option, name: str, declared: str) -> Option:
    """The option with what its field says."""
    kind = _TYPES.get(declared.partition(" | ")[0], entry.kind) if entry.form is None else entry.form.kind
    own, python = entry.name or name, f"{name}=False" if kind is bool and entry.form is not None else name
    main = replace(
        entry,
        name=own,
        declared=declared,
        kind=str if kind is list else kind,
        many=entry.many or kind is list,
        completes=entry.completes or entry.choices,
        argument=entry.argument or (python if python != own else ""),
    )
    further = [replace(o, panel=entry.panel, scope=entry.scope) for o in entry.also]
    drafts = [
        *(replace(main, name=name + DRAFT, flags=o.flags, help=o.help, argument="") for o in entry.draft),
        *(o for o in further if o.name.endswith(DRAFT)),
    ]
    others = [o for o in further if not o.name.endswith(DRAFT)]
    return replace(main, also=tuple(others), draft=tuple(drafts))
