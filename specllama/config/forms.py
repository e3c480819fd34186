"""How the values of load options are written: on command lines and in files, and as Python gives them.

Most functions take a value and the name of its option, which their errors name; some take the values of all
options that set a field. Reads templates; of other files only whether they exist.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specllama.config.text_file import expanded, read_text
from specllama.errors import NotFoundError, UsageError, option, quoted
from specllama.option import Form, of_kind
from specllama.regular_file import table_of
from specllama.rpc import endpoints

_NAME = re.compile(r"[a-z][a-z0-9._-]{0,31}")


@functools.cache
def named_templates() -> Mapping[str, str]:
    return table_of(__file__, "chat_templates.toml")


def named_template(given: str) -> str:
    """The template that is meant: the given one, or the one of this name. Raises UsageError for other names.

    No template is a single word: it would show no messages.
    """
    if not _NAME.fullmatch(given):
        return given
    if given not in named_templates():
        raise UsageError(
            f"{option('chat_template')}: {given!r} is no template, and no name of one: "
            f"{', '.join(named_templates())}",
            f"give the template itself, in a file with {option('chat_template_file')}, or none at all",
        )
    return named_templates()[given]


_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|([nrt'\"\\]))")
_CHARACTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescaped(text: str, name: str) -> str:
    r"""The text with \n \r \t \' \" \\ as the characters they stand for, and \xHH as a byte of UTF-8; others
    stay as they are (string_process_escapes of llama.cpp's common.cpp).

    name: of the option. Raises UsageError if the bytes are no text.
    """
    data = text.encode()
    processed = _ESCAPE.sub(_character, data)
    if processed == data:
        return text
    problem = UsageError(
        r"has escapes \x that make no text", "each character has to be whole UTF-8", option=name
    )
    if b"\0" in processed:
        raise problem
    try:
        return processed.decode()
    except UnicodeDecodeError:
        raise problem from None


def _character(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[1].decode()) if match[1] else _CHARACTERS.get(match[2], match[2])


AUTO, ALL_LAYERS = -1, -2  # n_gpu_layers: all that fit, all; cache_disk, cache_ram: decided by what is free
MOST_BYTES = 2**60


def _number_or(
    words: Mapping[str, int | None], python: str, what: str, hint: str = "", also: Sequence[str] = ()
) -> Form:
    """The form of a number from 0, or of a word that stands for a value. python: the type there. what: the
    number is. hint: of errors with a text. also: further texts for the words, in their order.
    """
    *some, last = words
    expected = f"{', '.join([f'{what} from 0', *some])} or {last}"

    def of(given: Any, name: str) -> int | None:
        if isinstance(given, str) and given in words:
            return words[given]
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            advice = "" if re.fullmatch("[-+.0-9]+", str(given)) else hint
            raise UsageError(f"must be {expected}, not {quoted(given)}", advice, option=name)
        return given

    def read(text: str, name: str) -> int | None:
        text = dict(zip(also, words, strict=False)).get(text, text)
        return of(int(text) if re.fullmatch("[0-9]{1,9}", text) else text, name)

    return Form(read, of, python)


def _names(text: str, _name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _names_of(value: Any, name: str) -> tuple[str, ...]:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    if not listed or not all(isinstance(v, str) for v in value):
        raise UsageError(f"must be a list of names, not {quoted(value)}", option=name)
    return tuple(value)


def _overrides(texts: list[str], name: str) -> tuple[tuple[str, str], ...]:
    overrides = []
    for part in ",".join(texts).split(","):
        pattern, equals, buffer = part.rpartition("=")
        if not equals or not pattern or not buffer:
            raise UsageError(f"must be PATTERN=BUFFER, not {quoted(part)}", option=name)
        overrides.append((pattern, buffer))
    return tuple(overrides)


def _shares(text: str, name: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in re.split("[,/]", text) if part.strip())
    except ValueError:
        raise UsageError(f"must be numbers separated by commas, not {quoted(text)}", option=name) from None


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
            raise UsageError(f"must be a list of {shape}, not {quoted(value)}", option=name) from None

    return read


def _pair(one: Any) -> tuple[str, str]:
    first, second = one
    return str(first), str(second)


def _scaled_adapter(one: Any) -> tuple[str, float]:
    path, scale = one
    return existing_file(os.path.expanduser(os.fspath(path)), "lora"), float(scale)


def adapters(given: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """(path, scale) of all LoRA adapters that the options name. Raises UsageError, NotFoundError."""
    adapters = list(_adapters(given.get("lora", []), "lora"))
    for text in given.get("lora_scaled", []):
        path, _, factor = text.rpartition(":")
        try:
            scale = float(factor)
        except ValueError:
            raise UsageError(f"must be FILE:SCALE, not {quoted(text)}", option="lora_scaled") from None
        adapters.append((existing_file(path, "lora_scaled"), scale))
    return tuple(adapters)


def _adapters(paths: list[str], name: str) -> tuple[tuple[str, float], ...]:
    return tuple((existing_file(path, name), 1.0) for path in paths)


def existing_file(path: str, name: str, hint: str = "give the path of a GGUF file") -> str:
    """The path with the home directory for ~, if there is a file. Raises NotFoundError, UsageError."""
    if not path or "\0" in path:
        raise UsageError("needs the path of a file", option=name)
    try:
        file = expanded(path)
        there = file.exists()
    except OSError as error:
        raise UsageError(f": {path} cannot be used: {error.strerror or error}", option=name) from None
    if not there:
        raise NotFoundError(f": there is no file {path}", hint, option=name)
    return str(file)


def _absolute(path: Any, name: str) -> str:
    """The absolute path of a file or folder that exists. Raises NotFoundError, UsageError."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(plain := os.fspath(path), str):
        raise UsageError(f"must be the path of a file or folder, not {quoted(path)}", option=name)
    return os.path.abspath(existing_file(plain, name, "give a file, a folder or a repository"))


def _paths(given: Any, name: str) -> tuple[str, ...]:
    if not isinstance(given, Sequence):
        raise UsageError(f"must be a list of paths, not {quoted(given)}", option=name)
    return tuple(_absolute(path, name) for path in ([given] if isinstance(given, str) else given))


def _projector(given: Any, name: str) -> str:
    """The file of a projector; "" where one is looked for, "none" for none. In Python True and False, too."""
    if given is None or isinstance(given, bool):
        return "" if given else "none"
    if given in ("", "auto", "none"):
        return str(given).removeprefix("auto")
    if not isinstance(given, (str, os.PathLike)) or not isinstance(path := os.fspath(given), str):
        raise UsageError(f"must be the path of a projector, auto or none, not {quoted(given)}", option=name)
    return existing_file(path, name, "give the path of a projector, mmproj-*.gguf")


def _ram_bytes(text: str, name: str) -> int:
    """As `disk_bytes`; numbers alone are MiB, and -1 is no limit, as in llama.cpp."""
    if re.fullmatch("[0-9]{1,12}", text.strip()):
        return min(int(text) << 20, MOST_BYTES)
    return MOST_BYTES if text.strip() == "-1" else disk_bytes(text, name, "a number of MiB, -1 for no limit")


def disk_bytes(text: str, name: str = "cache_disk", others: str = "") -> int:
    """Bytes from a size as "8G", "1.5 GB" or "500 MiB"; AUTO from "auto". others: further forms of the value,
    for the message. Raises UsageError.
    """
    if text.strip() == "auto":
        return AUTO
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kKmMgGtT]?)([iI]?)[bB]?", text.strip())
    if not match or (not match[2] and (match[3] or float(match[1]) != 0)):
        forms = ", ".join(filter(None, ("a size with its unit, as 8G or 500M", others)))
        raise UsageError(f"must be {forms}, auto, or 0 for none, not {quoted(text)}", option=name)
    unit = float(1024 if match[3] else 1000) ** " kmgt".index(match[2].lower() or " ")
    return min(round(float(match[1]) * unit), MOST_BYTES)


def _size(parse: Callable[[str, str], int]) -> Form:
    def of(given: int | str, name: str) -> int:
        return parse(given if isinstance(given, str) else str(of_kind(given, name, int)), name)

    return Form(parse, of, "int | str")


def _drafters(value: Any, name: str) -> tuple[str, ...]:
    names = _names_of(value, name)
    return () if names == ("none",) else names


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
    return named_template(of_kind(text, name, str))


LAYERS = _number_or({"auto": AUTO, "all": ALL_LAYERS}, "Layers", "a number of layers", "", ("-1", "-2"))
NAMES = _separated(_names, _names_of, "str")
OVERRIDES = Form(_overrides, _list_of("pairs", _pair), "Sequence[tuple[str, str]]", list)
SHARES = _separated(_shares, _list_of("numbers", float), "float")
PATHS = Form(_paths, _paths, "Sequence[str] | str", list)
ADAPTERS = Form(_adapters, _list_of("pairs", _scaled_adapter), "Sequence[tuple[str, float]]", list)
PROJECTOR = Form(_projector, _projector, "str | bool | None")
ENDPOINTS = _separated(
    lambda text, _: endpoints(text), lambda value, name: endpoints(_names_of(value, name)), "str"
)
DISK_BYTES, RAM_BYTES = _size(disk_bytes), _size(_ram_bytes)
DRAFTERS = _separated(lambda text, name: _drafters(_names(text, name), name), _drafters, "str")
_NOT_TOKENS = f"{option('draft_model')} names a draft model"
TOKENS = _number_or({"auto": None}, 'int | Literal["auto"]', "a whole number", _NOT_TOKENS)
TREE = _number_or({"auto": None, "off": 0}, 'int | Literal["auto", "off"]', "a whole number")
TEMPLATE = Form(_template, _template, "str")
NEGATED = Form(
    lambda value, _: not value, lambda given, name: of_kind(given, name, bool), "bool", bool
)  # of a flag --no-…
