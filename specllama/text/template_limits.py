"""Limits on single operations of chat templates, which run in C where nothing can interrupt them.

Each check looks at what an operation is given, and raises jinja2's SecurityError. Knows no environment.
"""

from __future__ import annotations

import re
import string
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any, TypeVar

from jinja2.exceptions import SecurityError

_MAX_REPEAT, MAX_WIDTH = 1_000_000, 10_000
MAX_SIZE = 8 * 1024 * 1024  # characters of one value
MAX_SLOW = 100_000  # characters for operations that take long per character
_MAX_BITS, _MAX_DIGITS = 4096, 1000  # of a number
MAX_SHORT = 16  # characters of separators and the like
WIDE = re.compile(r"\*|\d{5}")
_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_CONTAINERS = (list, tuple, Mapping, KeysView, ItemsView, ValuesView)
_FLAT = frozenset({bool, float, type(None)})
Value = TypeVar("Value")


def bounded(value: Value) -> Value:
    """The value, if its text is not too long; shared parts count each time they would be written."""
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise SecurityError("the template computes too large a number")
    elif isinstance(value, (str, bytes, *_CONTAINERS)) and size(value, {}) > MAX_SIZE:
        raise SecurityError("the template makes too large a value")
    return value


def size(value: Any, known: dict[int, int]) -> int:
    """Characters that the value would be written with, about. known: sizes by id."""
    if isinstance(value, (str, bytes)):
        return len(value) + 2
    if isinstance(value, int):
        return 8 + value.bit_length() // 3
    if not isinstance(value, _CONTAINERS):
        return 8
    if id(value) not in known:
        items = [*value, *value.values()] if isinstance(value, Mapping) else list(value)
        if len(items) > MAX_SIZE // 2 or set(map(type, items)) <= _FLAT:
            known[id(value)] = 2 + 8 * len(items)
        else:
            known[id(value)] = 2 + sum(size(item, known) for item in items)
    return known[id(value)]


def check_product(left: Any, right: Any) -> None:
    """`left * right`."""
    for a, b in ((left, right), (right, left)):
        if isinstance(a, (str, bytes, list, tuple)) and isinstance(b, int) and len(a) * b > _MAX_REPEAT:
            raise SecurityError("the template repeats a text too often")


def check_percent(text: Any, *values: Any) -> None:
    """`text % values`."""
    text = str(bounded(text))
    if WIDE.search(text):
        raise SecurityError("the template formats too wide a field")
    check_fields(text.count("%"), text, values)


def check_format(text: str, *values: Any) -> None:
    """`text.format(values)`."""
    n = 0
    for n, (_, _, spec, _) in enumerate(string.Formatter().parse(text), 1):  # noqa: B007
        if spec and ("{" in spec or WIDE.search(spec)):
            raise SecurityError("the template formats too wide a field")
    check_fields(n, text, values)


def check_fields(n: int, text: str, values: tuple[Any, ...]) -> None:
    """n fields in a text, each of which may show all values, or be as wide as a number in the text."""
    widest = max(map(int, re.findall(r"\d{1,4}", text)), default=0)
    if n * (size(values, {}) + widest) > MAX_SIZE:
        raise SecurityError("the template makes too large a value")


def check_widths(*args: Any) -> None:
    """Widths among arguments."""
    if any(isinstance(a, int) and abs(a) > MAX_WIDTH for a in args):
        raise SecurityError("the template formats too wide a field")


def check_padding(_: Any, *args: Any) -> None:
    """A filter that inserts text once: its arguments are widths and texts."""
    check_widths(*args)
    if any(isinstance(a, str) and len(a) > MAX_WIDTH for a in args):
        raise SecurityError("the template formats too wide a field")


def check_lines(n: int, *widths: Any) -> None:
    """n: places at which up to this many characters are inserted."""
    width = max(
        (len(w) if isinstance(w, str) else abs(w) for w in widths if isinstance(w, (str, int))), default=8
    )
    if n * width > MAX_SIZE:
        raise SecurityError("the template makes too large a value")


def check_indent(text: Any, *widths: Any) -> None:
    """The filter `indent`."""
    check_padding(text, *widths)
    check_lines(1 + sum(map(str(text).count, _LINE_ENDS)), 4, *widths)


def check_wrap(text: Any, *args: Any) -> None:
    """The filter `wordwrap`."""
    check_slow(text)
    check_padding(text, *args)
    check_lines(len(str(text)), *(a for a in args if isinstance(a, str)))


def check_slow(value: Any, *args: Any) -> None:
    """A filter that takes long per character, and inserts its arguments once."""
    check_padding(value, *args)
    if size(value, {}) > MAX_SLOW:
        raise SecurityError("the template makes too large a value")


def check_digits(text: Any, *_: Any) -> None:
    """A text that becomes a number."""
    if isinstance(text, (str, bytes, list)) and len(text) > _MAX_DIGITS:
        raise SecurityError("the template computes too large a number")


def check_strip(_: Any, *args: Any) -> None:
    """Characters to strip, each of which is compared with each of the text."""
    if any(isinstance(a, (str, bytes)) and len(a) > _MAX_DIGITS for a in args):
        raise SecurityError("the template strips too many characters")


def check_sum(_: Any, *args: Any) -> None:
    """The filter `sum`: adding lists is quadratic."""
    if any(isinstance(a, (list, tuple)) for a in args):
        raise SecurityError("the template adds up lists")


def check_replace(text: Any, old: Any, new: Any, *_: Any) -> None:
    """`text.replace(old, new)`."""
    text, old, new = (x if isinstance(x, (str, bytes)) else str(x) for x in (text, old, new))
    if len(text) + text.count(old) * len(new) > MAX_SIZE:
        raise SecurityError("the template makes too large a value")


def check_join(values: Any, separator: Any = "", *_: Any) -> None:
    """`separator.join(values)`."""
    if isinstance(values, (str, bytes, list, tuple, Mapping)):
        bounded(values)
        if len(str(separator)) * len(values) > MAX_SIZE:
            raise SecurityError("the template makes too large a value")
