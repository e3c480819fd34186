"""The typed reader of stored files: lenient towards newer versions, and never surprised."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from specllama import wire


@dataclass
class Stored:
    number: float
    sizes: dict[str, int] = field(default_factory=dict)


def test_keys_of_newer_versions_are_ignored_in_files_alone(tmp_path: Path) -> None:
    path = tmp_path / "stored.json"
    path.write_text('{"number": 1, "sizes": {"a": 2}, "more": [null]}')
    assert wire.from_file(Stored, path, 100) == Stored(1, {"a": 2})
    with pytest.raises(ValueError, match="unknown key 'more'"):
        wire.from_plain(Stored, {"number": 1, "more": 2})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"number": "1"}', '{"number": true}', '{"number": 1, "sizes": {"a": 1.5}}',
             "[" * 100_000, b"\xff\xfe", '{"number": 1}' + 100 * " "],
)  # fmt: skip
def test_what_is_malformed_or_too_long_is_one_error(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "stored.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError):
        wire.from_file(Stored, path, 100)


def test_one_of_several_values_is_named_as_they_are_written() -> None:
    for allowed, words in ((Literal["user"], "'user' expected"), (Literal["a", "b"], "'a' or 'b' expected")):
        with pytest.raises(ValueError, match=f"^{words}, not 'c'$"):
            wire.from_plain(allowed, "c")


def test_a_part_that_is_malformed_has_a_default() -> None:
    assert wire.stored(dict[str, int], {"a": 1}, {}) == {"a": 1}
    assert wire.stored(dict[str, int], {"a": "1"}, {}) == {}
    assert wire.stored(list[object], None, []) == []
