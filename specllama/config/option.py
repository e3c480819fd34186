"""What an option is, and rows of tables of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Literal

from specllama.config.defaults import DRAFTERS
from specllama.config.named_templates import named_template
from specllama.config.text_file import expanded, read_text
from specllama.errors import NotFoundError, UsageError, option
from specllama.rpc.endpoints import endpoints

GGUF, DOWNLOADED, RUNNING, KEPT, CHATS = "*.gguf", "downloaded", "running", "kept", "chats"  # in `completes`
LIST = ","
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
class Option:
    """One option of a command.

    flags: () for a positional argument. kind: the type of its value. panel: its group in --help. many: may be
    given several times. stored: allowed in files and environment. completes: the completions of its value:
    words, GGUF for files and model names, DOWNLOADED for names of downloaded models, KEPT for prompts on disk
    and their models, CHATS for names of saved conversations, LIST first for a comma-separated list of the
    words; () leaves it to the shell, which completes file names. argument: its name in Python. bare: may
    stand without a value, which is then "".
    """

    name: str
    flags: tuple[str, ...]
    kind: type
    help: str
    panel: str = ""
    metavar: str | None = None
    many: bool = False
    stored: bool = True
    completes: tuple[str, ...] = ()
    argument: str = ""
    required: bool = False
    bare: bool = False
    scope: Scope = Scope.USER

    @property
    def values(self) -> str:
        """All values in words, where they are some words, or numbers and words; else ""."""
        if not self.completes or not all(word.isalpha() and word.islower() for word in self.completes):
            return ""
        words = [*(["a number"] if self.metavar == "N" else []), *self.completes]
        return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def row(
    name: str,
    flags: str,
    kind: type,
    text: str,
    metavar: str | None = None,
    completes: tuple[str, ...] = (),
    argument: str = "",
    scope: Scope = Scope.USER,
) -> Option:
    """One option of a table; the kind `list` means a text that may be given several times."""
    many = kind is list
    return Option(
        name,
        tuple(flags.split()),
        str if many else kind,
        text,
        metavar=metavar,
        many=many,
        completes=completes,
        argument=argument,
        scope=scope,
    )


def table(panel: str, *rows: Option, stored: bool = True) -> list[Option]:
    """The options of one panel in --help."""
    return [replace(option, panel=panel, stored=stored) for option in rows]


# Backslash escapes in texts of a command line, as llama.cpp processes them.


_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|([nrt'\"\\]))")
_CHARACTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescaped(text: str, name: str) -> str:
    r"""The text with \n \r \t \' \" \\ as the characters they stand for, and \xHH as a byte of UTF-8; others
    stay as they are (string_process_escapes of llama.cpp's common.cpp).

    name: of the option. Raises UsageError if the bytes are no text.
    """
    data = text.encode("utf-8", "surrogateescape")  # an argument may have bytes that are not UTF-8
    processed = _ESCAPE.sub(_character, data)
    if processed == data:
        return text
    problem = UsageError(
        r"has escapes \x that make no text", "each character has to be whole UTF-8", option=name
    )
    if b"\0" in processed:
        raise problem
    try:
        return processed.decode("utf-8", "strict" if _is_text(text) else "surrogateescape")
    except UnicodeDecodeError:
        raise problem from None


def _character(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[1].decode()) if match[1] else _CHARACTERS.get(match[2], match[2])


def _is_text(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


# The values of load options, from the texts of command lines and files, and as Python gives them.
#
# Most functions take a value and the name of its option, which their errors name; some take the values of all
# options that set a field. Reads templates; of other files only whether they exist.


AUTO, ALL_LAYERS = -1, -2  # n_gpu_layers: all that fit, all; cache_disk, cache_ram: decided by what is free
_MOST_BYTES = 2**60


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of an option are written. text: from the text on a command line. python: from what
    Python gives. hint: the type of the latter, as written in source. Both raise UsageError. separated:
    whether the text has items separated by commas, which files may also write as an array.
    """

    text: Callable[[Any, str], Any]
    python: Callable[[Any, str], Any]
    hint: str
    separated: bool = False


def _layers(text: str, name: str) -> int:
    if text in ("auto", "all", "-1", "-2"):
        return AUTO if text in ("auto", "-1") else ALL_LAYERS
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(f"must be a number of layers from 0, auto or all, not {text!r}", option=name)
    return int(text)


def layers_of(given: int | Literal["auto", "all"], name: str) -> int:
    """n_gpu_layers as Python gives it."""
    if given in ("auto", "all"):
        return AUTO if given == "auto" else ALL_LAYERS
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise UsageError(f'must be a number of layers, "auto" or "all", not {given!r}', option=name)
    return given


def _names(text: str, _name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def names_of(value: Any, name: str) -> tuple[str, ...]:
    """A list of names as Python gives it."""
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(v, str) for v in value)
    ):
        raise UsageError(f"must be a list of names, not {value!r}", option=name)
    return tuple(value)


def _overrides(texts: list[str], name: str) -> tuple[tuple[str, str], ...]:
    overrides = []
    for part in ",".join(texts).split(","):
        pattern, equals, buffer = part.rpartition("=")
        if not equals or not pattern or not buffer:
            raise UsageError(f"must be PATTERN=BUFFER, not {part!r}", option=name)
        overrides.append((pattern, buffer))
    return tuple(overrides)


def _shares(text: str, name: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in re.split("[,/]", text) if part.strip())
    except ValueError:
        raise UsageError(f"must be numbers separated by commas, not {text!r}", option=name) from None


def _separated(text: Callable[[str, str], Any], items: Callable[[Any, str], Any], item: str) -> Form:
    """The form of a list that Python gives as its items, or as the text of a command line. text, items: read
    these. item: the type of one.
    """

    def read(value: Any, name: str) -> Any:
        return text(value, name) if isinstance(value, str) else items(value, name)

    return Form(text, read, f"Sequence[{item}] | str", separated=True)


def _list_of(shape: str, item: Callable[[Any], Any]) -> Callable[[Any, str], tuple[Any, ...]]:
    """The reader of a list in Python. item: reads one of it."""

    def read(value: Any, name: str) -> tuple[Any, ...]:
        try:
            return tuple(item(one) for one in value)
        except (TypeError, ValueError):
            raise UsageError(f"must be a list of {shape}, not {value!r}", option=name) from None

    return read


def _pair(one: Any) -> tuple[str, str]:
    first, second = one
    return str(first), str(second)


def _scaled_adapter(one: Any) -> tuple[str, float]:
    path, scale = one
    return existing_file(os.path.expanduser(os.fspath(path)), "lora"), float(scale)


def adapters(given: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """(path, scale) of all LoRA adapters that the options name. Raises UsageError, NotFoundError."""
    plain = _adapters(given.get("lora", []), "lora")
    return plain + _scaled_adapters(given.get("lora_scaled", []), "lora_scaled")


def _adapters(paths: list[str], name: str) -> tuple[tuple[str, float], ...]:
    return tuple((existing_file(path, name), 1.0) for path in paths)


def _scaled_adapters(texts: list[str], name: str) -> tuple[tuple[str, float], ...]:
    adapters = []
    for text in texts:
        path, _, given = text.rpartition(":")
        try:
            scale = float(given)
        except ValueError:
            raise UsageError(f"must be FILE:SCALE, not {text!r}", option=name) from None
        adapters.append((existing_file(path, name), scale))
    return tuple(adapters)


def existing_file(path: str, name: str) -> str:
    """The path with the home directory for ~, if there is a file. Raises NotFoundError, UsageError."""
    if not path or "\0" in path:
        raise UsageError("needs the path of a file", option=name)
    try:
        file = expanded(path)
        there = file.exists()
    except OSError as error:
        raise UsageError(f": {path} cannot be used: {error.strerror or error}", option=name) from None
    if not there:
        raise NotFoundError(f": there is no file {path}", "give the path of a GGUF file", option=name)
    return str(file)


def _endpoints(text: str, _name: str) -> tuple[str, ...]:
    return endpoints(text)


def _endpoints_of(value: Any, name: str) -> tuple[str, ...]:
    return endpoints(names_of(value, name))


def disk_bytes(text: str, name: str = "cache_disk") -> int:
    """Bytes from a size as "8G", "1.5 GB" or "500 MiB"; AUTO from "auto". Raises UsageError."""
    return _bytes(text, name)


def ram_bytes(text: str, name: str = "cache_ram") -> int:
    """As `disk_bytes`; numbers alone are MiB, and -1 is no limit, as in llama.cpp. Raises UsageError."""
    if re.fullmatch("[0-9]{1,12}", text.strip()):
        return min(int(text) << 20, _MOST_BYTES)
    return _MOST_BYTES if text.strip() == "-1" else _bytes(text, name, "a number of MiB, -1 for no limit")


def _bytes(text: str, name: str, others: str = "") -> int:
    """others: further forms of the value, for the message."""
    if text.strip() == "auto":
        return AUTO
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kKmMgGtT]?)([iI]?)[bB]?", text.strip())
    if not match or (not match[2] and (match[3] or float(match[1]) != 0)):
        forms = ", ".join(filter(None, ("a size with its unit, as 8G or 500M", others)))
        raise UsageError(f"must be {forms}, auto, or 0 for none, not {text!r}", option=name)
    unit = float(1024 if match[3] else 1000) ** " kmgt".index(match[2].lower() or " ")
    return min(round(float(match[1]) * unit), _MOST_BYTES)


def _size(parse: Callable[[str, str], int]) -> Form:
    def of(given: int | str, name: str) -> int:
        return parse(given, name) if isinstance(given, str) else int(of_kind(given, name, "int"))

    return Form(parse, of, "int | str")


def _drafters(text: str, name: str) -> tuple[str, ...]:
    return _drafters_of(_names(text, name), name)


def _drafters_of(value: Any, name: str) -> tuple[str, ...]:
    names = names_of(value, name)
    if names == ("none",):
        return ()
    for one in names:
        if one not in DRAFTERS:
            hint = f"there are: {', '.join(DRAFTERS)}; or none"
            raise UsageError(f": no drafter {one!r}", hint, option=name)
    return names


def _draft_max(text: str, name: str) -> int | None:
    if text == "auto":
        return None
    if not re.fullmatch("[0-9]{1,9}", text):
        hint = f"{option('draft_model')} names a draft model"
        raise UsageError(f"must be a whole number from 0 or auto, not {text!r}", hint, option=name)
    return int(text)


def draft_tokens_of(given: int | Literal["auto"], name: str) -> int | None:
    """draft_max as Python gives it."""
    return None if given == "auto" else int(of_kind(given, name, "int"))


def experts_on_cpu(given: Mapping[str, Any]) -> int:
    """The layers whose experts stay on the CPU, -1 for all. Raises UsageError."""
    n_layers = int(given.get("n_cpu_moe", 0))
    if n_layers < 0:
        what = f"{option('cpu_moe')} is for all layers"
        raise UsageError(f"must be a whole number from 0, not {n_layers}", what, option="n_cpu_moe")
    return -1 if given.get("cpu_moe") else n_layers


def template(given: Mapping[str, Any]) -> str:
    """A chat template: the given one, that of a name, or that of a file. Raises UsageError, NotFoundError."""
    if len(given) > 1:
        raise UsageError(f"{option('chat_template')} and {option('chat_template_file')} are both given")
    if "chat_template_file" in given:
        return read_text(given["chat_template_file"], "chat_template_file")
    return named_template(given["chat_template"])


def _template(text: Any, name: str) -> str:
    return named_template(of_kind(text, name, "str"))


def _negated(value: bool, _name: str) -> bool:
    return not value


def _switch(given: Any, name: str) -> Any:
    return of_kind(given, name, "bool")


_KINDS = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "str": ((str,), "a text"),
    "float": ((int, float), "a number"),
}


def of_kind(value: Any, name: str, kind: str) -> Any:
    """The value as Python gives it, if it is of this kind. Raises UsageError."""
    types, description = _KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(f"must be {description}, not {value!r}", option=name)
    return value


def _tree(given: Any, name: str) -> int | None:
    """Second candidates of a draft: a number, auto (None) or off (0)."""
    if given in ("auto", "off"):
        return None if given == "auto" else 0
    if isinstance(given, str) and not re.fullmatch("[0-9]{1,9}", given):
        raise UsageError(f"must be a whole number from 0, auto or off, not {given!r}", option=name)
    return int(of_kind(int(given) if isinstance(given, str) else given, name, "int"))


LAYERS = Form(_layers, layers_of, "Layers")
NAMES = _separated(_names, names_of, "str")
OVERRIDES = Form(_overrides, _list_of("pairs", _pair), "Sequence[tuple[str, str]]")
SHARES = _separated(_shares, _list_of("numbers", float), "float")
ADAPTERS = Form(_adapters, _list_of("pairs", _scaled_adapter), "Sequence[tuple[str, float]]")
ENDPOINTS = _separated(_endpoints, _endpoints_of, "str")
DISK_BYTES, RAM_BYTES = _size(disk_bytes), _size(ram_bytes)
DRAFTER_NAMES = _separated(_drafters, _drafters_of, "str")
DRAFT_TOKENS = Form(_draft_max, draft_tokens_of, 'int | Literal["auto"]')
TREE = Form(_tree, _tree, 'int | Literal["auto", "off"]')
TEMPLATE = Form(_template, _template, "str")
NEGATED = Form(_negated, _switch, "bool")  # of a flag --no-…


# A field of the settings classes (load.py) as all fronts see it: the options that set it, how their values
# are read, and its range.


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
