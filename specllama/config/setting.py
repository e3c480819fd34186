"""A field of the settings classes (load.py) as all fronts see it: the options that set it, how their values
are read, and its range. Knows no setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from specllama.config.option import Option, OptionValues, Scope, row
from specllama.config.values import NEGATED, Form, of_kind
from specllama.errors import UsageError

_HIGHEST = 2**31 - 1
DRAFT = "_draft"  # ends the names of options and arguments that are for the draft alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The table entry of a field. name, type: of the field, the type as written in source.

    options: set it, the main one first; () where no option does. draft: set it for the draft alone; () for a
    field that has no value of its own there. inherited: the draft has the target's value unless its own is
    given. form: how values are written, None for values of the field's own type. merge: the field's value
    from those of several options, by their names without `_draft`; None where there is one option. argument:
    of LLM. measuring: whether commands that measure have its options. low, high: the range of a whole number.
    choices: all values.
    """

    name: str = ""
    type: str = ""
    options: tuple[Option, ...] = ()
    draft: tuple[Option, ...] = ()
    inherited: bool = False
    form: Form | None = None
    merge: Callable[[Mapping[str, Any]], Any] | None = None
    argument: str = ""
    measuring: bool = True
    low: int | None = None
    high: int = _HIGHEST
    choices: tuple[str, ...] = ()

    @property
    def hint(self) -> str:
        """The type of the argument, as written in source."""
        return self.type if self.form is None else self.form.hint

    def given(self, values: Mapping[str, Any], suffix: str = "") -> OptionValues:
        """Those of these option values that set it. suffix: DRAFT for the draft's."""
        names = [option.name for option in (self.draft if suffix else self.options)]
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
        kind, _, other = self.type.partition(" | ")
        if value is None and other == "None":
            return None
        return of_kind(value, name, kind) if self.form is None else self.form.python(value, name)

    def check(self, value: Any) -> None:
        """Raises UsageError for a value of the field that is out of range."""
        if value is None and self.type.endswith("| None"):
            return
        if self.choices and value not in self.choices:
            raise UsageError(f"must be one of {', '.join(self.choices)}, not {value!r}", option=self.name)
        if self.low is None:
            return
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not self.low <= value <= self.high:
            limit = "" if self.high == _HIGHEST else f" to {self.high}"
            raise UsageError(
                f"must be a whole number from {self.low}{limit}, not {value!r}", option=self.name
            )


def setting(
    default: Any,
    kind: type,
    flags: str,
    help_: str,
    metavar: str | None = None,
    *,
    panel: str,
    option: str = "",
    draft: tuple[str, str] | None = None,
    also: tuple[Option, ...] = (),
    completes: tuple[str, ...] | None = None,
    scope: Scope = Scope.USER,
    choices: tuple[str, ...] = (),
    **more: Any,
) -> Any:
    """A dataclass field with its Setting. kind: of the option's value, as in `row`. option: its name, "" for
    the field's own. draft: flags and help of the draft's option. also: further options that set the field;
    those of the draft are named so. completes: None for `choices`. more: fields of Setting.
    """
    words = choices if completes is None else completes
    main = row(option, flags, kind, help_, metavar, words, "", scope)
    of_draft = []
    if draft is not None:
        of_draft = [row(f"{option}{DRAFT}", draft[0], kind, draft[1], metavar, words, "", scope)]
    further = [replace(o, scope=scope) for o in also]
    options = [main, *(o for o in further if not o.name.endswith(DRAFT))]
    drafts = [*of_draft, *(o for o in further if o.name.endswith(DRAFT))]
    entry = Setting(
        options=tuple(replace(o, panel=panel) for o in options),
        draft=tuple(replace(o, panel=panel) for o in drafts),
        choices=choices,
        **more,
    )
    return field(default=default, metadata={"setting": entry})


def argument(default: Any, **more: Any) -> Any:
    """A dataclass field that only Python sets. more: fields of its Setting."""
    return field(default=default, metadata={"setting": Setting(**more)})


def settings_of(kind: Any) -> dict[str, Setting]:
    """The entries of a class, by field; fields without one are no settings."""
    return {f.name: _named(f.metadata["setting"], f.name, str(f.type)) for f in fields(kind) if f.metadata}


def _named(entry: Setting, name: str, type_: str) -> Setting:
    """The entry, and its main options, with the names of their field."""
    called = entry.argument or name
    shown = f"{called}=False" if entry.form is NEGATED else called

    def done(option: Option, suffix: str, python: str) -> Option:
        own = option.name if option.name != suffix else name + suffix
        return replace(option, name=own, argument=option.argument or (python if python != own else ""))

    options = [done(o, "", shown if i == 0 else "") for i, o in enumerate(entry.options)]
    drafts = [done(o, DRAFT, name + DRAFT if i == 0 else "") for i, o in enumerate(entry.draft)]
    return replace(entry, name=name, type=type_, options=tuple(options), draft=tuple(drafts), argument=called)
