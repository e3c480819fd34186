"""Tables, wrapped lines and readable figures, at any width."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest

from specllama.cli import formatting
from specllama.cli.formatting import columns, listing, table, wrapped
from specllama.models.quants import size
from specllama.wording import counted

HEADER = ["workload", "t/s", "x"]
ROWS = [["edit", "12.5", "1.30"], ["日本", "9", "0.98"]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_is_aligned_by_the_width_of_its_characters() -> None:
    assert list(table(HEADER, ROWS)) == [
        "workload  t/s    x",
        "edit     12.5 1.30",
        "日本        9 0.98",
    ]


def test_columns_without_room_follow_below_with_their_labels() -> None:
    assert list(table(HEADER, ROWS[:1], width=14)) == [
        "workload  t/s",
        "edit     12.5",
        "workload    x",
        "edit     1.30",
    ]


def test_markup_in_cells_is_shown_as_it_is() -> None:
    assert list(table(["a"], [["[bold]:smile:[/bold]"]])) == ["a", "[bold]:smile:[/bold]"]


@pytest.mark.parametrize(("width", "wide"), [(None, True), (80, True), (20, False)])
def test_a_listing_never_breaks_its_names_and_omits_empty_columns(width: int | None, wide: bool) -> None:
    rows: Sequence[Sequence[str]] = [("some-model (8B)", "user/a-rather-long-name:Q4_K_M", "")]
    lines = list(listing(("name", "repository", "drafts"), rows, width))
    assert (len(lines) == 2) == wide
    assert any("user/a-rather-long-name:Q4_K_M" in line for line in lines), "the name can be copied"
    assert not any("drafts:" in line for line in lines)


def test_lines_are_wrapped_but_paths_are_not_broken() -> None:
    assert wrapped("see /a/very/long/path/to/a/file now", 12, "  ", "    ") == [
        "  see",
        "    /a/very/long/path/to/a/file",
        "    now",
    ]
    assert wrapped("as it is", None) == ["as it is"]
    assert wrapped("", 20) == [""]


@pytest.mark.parametrize(
    ("given", "is_terminal", "expected"),
    [(None, False, None), ("100", False, 100), ("7", True, 20), ("x", False, None), ("0", False, None)],
)
def test_the_width_is_that_of_columns_or_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, given: str | None, is_terminal: bool, expected: int | None
) -> None:
    if given is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", given)
    assert columns(Terminal() if is_terminal else io.StringIO()) == expected


def test_a_terminal_of_unknown_width_has_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert columns(Terminal()) == 80


def test_sizes_have_decimal_units() -> None:
    assert [size(n) for n in (None, 0, 999, 1000, 1_500_000, 2_340_000_000)] == [
        "?", "0 bytes", "999 bytes", "1.0 kB", "1.5 MB", "2.3 GB",
    ]  # fmt: skip


def test_durations_and_counts_are_readable() -> None:
    assert [formatting.duration(s) for s in (0.4, 59, 61, 3700)] == [
        "0 s",
        "59 s",
        "1 min 01 s",
        "1 h 01 min",
    ]
    assert [formatting.rough_duration(s) for s in (0.1, 89, 95, 7200)] == ["1 s", "89 s", "2 min", "2.0 h"]
    assert counted(1, "turn") == "1 turn"
    assert counted(0, "turn") == "0 turns"


def test_the_nearest_name_is_suggested() -> None:
    assert formatting.nearest("temprature", ["temperature", "top_k"]) == "; did you mean temperature?"
    assert formatting.nearest("zzz", ["temperature"]) == ""
