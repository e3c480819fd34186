"""The comparison with llama.cpp's tools, without them: order of cells, what is kept, what figures come to."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.bench.peers import environment
from scripts.bench.peers.cells import Cell, Figures, key, measure, spread, together
from scripts.bench.peers.points import Case, Measured, Point, grid, literal
from scripts.bench.peers.raw import SCHEMA, OtherSettings, Raw
from scripts.bench.peers.table import TITLE, markdown, summary, totals

names = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5, unique=True)
SETTINGS = {"n": 64, "runs": 4, "points": ["plain", "n_max 3", "n_max 7"]}


@settings(deadline=None)
@given(names, names, names, st.sampled_from([[0.0], [0.0, 0.8]]))
def test_every_cell_is_there_once(
    kinds: list[str], costs: list[str], works: list[str], temps: list[float]
) -> None:
    cells = spread(kinds, costs, works, temps)
    assert Counter(cells) == Counter(Cell(*c) for c in itertools.product(kinds, costs, works, temps))


def test_a_beginning_covers_everything() -> None:
    kinds, costs = ["f16", "q8_0", "q4_0", "q4_k_m"], ["0.02", "0.07", "0.15"]
    cells = spread(kinds, costs, ["explain", "source", "json", "edit", "free"], [0.0, 0.8])
    assert len(cells) == 120
    assert {c.kind for c in cells[:4]} == set(kinds)
    assert {c.cost for c in cells[:4]} == set(costs)
    assert len({(c.kind, c.cost) for c in cells[:12]}) == 12
    assert len({(c.workload, c.temperature) for c in cells[:12]}) == 10


@settings(deadline=None)
@given(names, names, names)
def test_cells_that_differ_in_their_drafts_are_together(
    kinds: list[str], costs: list[str], works: list[str]
) -> None:
    cells = spread(kinds, costs, works, [0.0, 0.8])
    groups = together(cells)
    assert [group[0] for group in groups] == sorted((group[0] for group in groups), key=cells.index)
    assert Counter(cell for group in groups for cell in group) == Counter(cells)
    for group in groups:
        assert {cell.cost for cell in group} == set(costs)
        assert len({(cell.kind, cell.workload, cell.temperature) for cell in group}) == 1
    assert together(cells[1:])[0][0] == cells[1]


def figures(cell: Cell, rates: dict[str, list[float]], **more: object) -> Figures:
    found = Figures(cell, "k", "1 (abc)", "M", "2026-01-02", rates)
    for name, value in more.items():
        setattr(found, name, value)
    return found


RATES = {
    "specllama": [30.0, 30.0, 50.0, 34.0], "specllama plain": [20.0, 20.0, 20.0, 20.0],
    "plain": [21.0, 20.0, 21.0, 20.0], "n_max 3": [40.0, 24.0, 40.0, 24.0],
    "n_max 7": [30.0, 90.0, 30.0, 90.0],
}  # fmt: skip
TOLD = {
    "n_threads": 2, "commits": ["1 (abc)"], "binding": "0.3", "peer": "0.5", "dates": "today",
    "command": "scripts/x", "n": 64, "per_workload": 1, "runs": 4, "grid": "short", "planned": 2,
    "peer_points": ["plain", "n_max 3"], "raw": "x.json",
}  # fmt: skip
EDIT, JSON = Cell("f16", "0.02", "edit", 0.0), Cell("q4_0", "0.15", "json", 0.8)


def test_other_cells_are_not_counted(tmp_path: Path) -> None:
    tool = tmp_path / "llama-speculative-simple"
    tool.write_text(
        """#!/bin/sh
        echo "encoded   19 tokens in    0.062 seconds, speed:  308.757 t/s"
        echo "decoded  144 tokens in    3.000 seconds, speed:   48.000 t/s"
        echo "common_perf_print:    sampling time =       4.42 ms"
        """
    )
    tool.chmod(0o755)
    (point,) = (p for p in grid(draft=False, short=True) if p.name == "ngram-mod")
    for asked, counted in ((128, 128), (200, 144)):
        case = Case(tmp_path / "m.gguf", None, "hi", asked, 0.0, 1, 2)
        measured = point.run(tmp_path, case)
        assert (measured.n, measured.seconds, measured.before) == (counted, 3.0, 0.062)
        assert measured.rate == counted / 3.0


def test_what_takes_no_draft_is_decoded_once_for_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, str, int]] = []

    def run(self: Point, _tools: Path, case: Case) -> Measured:
        ran.append((self.name, case.draft.name if case.draft else "", case.seed))
        return Measured(10, float(len(ran)), 1.0)

    monkeypatch.setattr(Point, "run", run)
    compared, runs = grid(short=True), 3
    found = [Figures(Cell("f16", cost, "edit", 0.0), "k", "1", "M", "") for cost in ("a", "b")]
    drafts = [tmp_path / f"{f.cell.cost}.gguf" for f in found]
    asked = [
        ([Case(tmp_path, draft, text, 8, 0.0, 1 + i, 2) for i, text in enumerate("xy")], f)
        for draft, f in zip(drafts, found, strict=True)
    ]
    measure(tmp_path, asked, compared, runs)
    free = [point.name for point in compared if not point.drafts]
    assert free == ["plain", "ngram-mod", "ngram-map-k", "ngram-simple 4/15", "specllama plain"]
    assert len(ran) == len(set(ran)) == 6 * (5 + 6 * 2)
    assert Counter(name for name, _, _ in ran) == {p.name: 12 if p.drafts else 6 for p in compared}
    assert {(draft, seed) for name, draft, seed in ran if name == "n_max 3"} == {
        (draft, seed) for draft in ("a.gguf", "b.gguf") for seed in range(1, 7)
    }
    assert {seed for name, _, seed in ran if name == "plain"} == set(range(1, 7))
    a, b = found
    for point in compared:
        assert len(a.rates[point.name]) == len(a.wholes[point.name]) == 6
        assert (a.rates[point.name] == b.rates[point.name]) is (not point.drafts)
    assert set(a.ttft_ms) == {"specllama", "specllama plain"}
    assert [name for name, _, _ in ran[:17]] != [name for name, _, _ in ran[17:34]]
    assert all(f.date for f in found)


def test_the_best_point_is_chosen_on_other_runs_than_it_is_compared_on() -> None:
    s = summary(figures(EDIT, RATES, ttft_ms={"specllama": [11.0, 13.0], "specllama plain": [10.0, 10.0]}))
    assert [(pick.name, pick.best) for pick in s.picks] == [("n_max 3", 32 / 24), ("n_max 7", 40 / 30)]
    assert (s.best_name, s.best) == ("n_max 3 or n_max 7", pytest.approx(4 / 3))
    assert (s.rate, s.plain, s.peer_plain, s.default, s.ttft) == (32, 1.6, 32 / 20.5, 1.0, 1.2)


def test_totals_and_page() -> None:
    slow = {**RATES, "plain": [95.0] * 4, "specllama": [19.0] * 4}
    half = {name: [rate / 2 for rate in rates] for name, rates in RATES.items()}
    found = [figures(EDIT, RATES, wholes=half), figures(JSON, slow, wholes=half)]
    text = "\n".join(totals([summary(f) for f in found]))
    assert "over its own plain decoding: 1.23 over 2 cells, worst 0.95 (q4_0 0.15 json T=0.8)" in text
    assert "where that point drafts: 1.33 over 2 choices," in text
    assert "where it is plain: 0.20 over 2 choices," in text
    assert "first token" not in text
    page = markdown(found, TOLD | {"planned": 3})
    of_wholes = page.split("prompt and answer together\n\n")[1].split("##")[0]
    assert "over its own plain decoding: 1.60 over 2 cells" in of_wholes
    assert page.startswith(TITLE)
    assert "2 of 3 cells" in page
    assert "grid (short): plain; n_max 3" in page
    assert "| f16 0.02 | 1 | 1.60 |" in page
    assert "| f16 | 1.60 x, 1.60, 1.60 | 1.00 x |" in page
    assert "| q4_0 0.15 json T=0.8 |" in page
    assert "- Machine: M; 2 threads\n" in page
    assert "By machine" not in page
    assert "Not complete" not in markdown(found, TOLD)


def test_a_page_of_two_machines() -> None:
    fast = {**RATES, "specllama": [60.0] * 4}
    found = [figures(EDIT, RATES), figures(JSON, fast, machine="N")]
    for f in found:
        f.wholes = f.rates
    page = markdown(found, TOLD)
    assert "- Machine A: M; 2 threads; cells: 1\n- Machine B: N; 2 threads; cells: 1\n" in page
    of_each = page.split("## By machine\n")[1].split("\n## ")[0]
    assert "A, M\n\n- over its own plain decoding: 1.60 over 1 cell, worst 1.60 (f16" in of_each
    assert "B, N\n\n- over its own plain decoding: 3.00 over 1 cell, worst 3.00 (q4_0" in of_each
    rows = [row for row in page.splitlines() if " T=0" in row and row.startswith("|")]
    assert [row.split("|")[-2].strip() for row in rows] == ["A", "B"]


def test_totals_of_nothing() -> None:
    assert totals([]) == []


def test_a_comparison_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    raw = Raw(path, SETTINGS)
    raw.add(figures(EDIT, RATES), {"command": "x"})
    again = Raw(path, SETTINGS)
    assert again.known(EDIT, "k") == figures(EDIT, RATES)
    assert again.known(EDIT, "other prompts") is None
    assert again.known(JSON, "k") is None
    again.add(figures(JSON, RATES, ttft_ms={"specllama": [1.0]}), {"command": "x"})
    assert set(Raw(path, SETTINGS).figures) == {EDIT, JSON}
    assert [p.name for p in tmp_path.iterdir()] == ["found.json"]
    assert Raw(path, {**SETTINGS, "n": 5}, fresh=True).figures == {}
    with pytest.raises(OtherSettings, match=r"runs 4, not 2.*--fresh"):
        Raw(path, {**SETTINGS, "runs": 2})
    path.write_text(path.read_text().replace(SCHEMA, "specllama.peers/1"))
    with pytest.raises(OtherSettings, match=r"another version.*--fresh"):
        Raw(path, SETTINGS)
    assert Raw(path, SETTINGS, fresh=True).figures == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"command": "old", "rates": {}}'])
def test_foreign_files_are_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    for anew in (False, True):
        with pytest.raises(OtherSettings):
            Raw(path, SETTINGS, anew)
    assert path.read_text() == text


def test_what_figures_depend_on(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"1234")
    case = Case(file, None, "prompt", 8, 0.0, 1, 1)
    known = key([case])
    assert key([case, case]) != known
    assert key([Case(file, None, "other", 8, 0.0, 1, 1)]) != known
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(b"1")
    with_draft = key([Case(file, draft, "prompt", 8, 0.0, 1, 1)])
    assert with_draft != known
    draft.write_bytes(b"12")  # the size that has the same cost on another machine
    assert key([Case(file, draft, "prompt", 8, 0.0, 1, 1)]) == with_draft
    file.write_bytes(b"12345")
    assert key([case]) != known


def test_grids() -> None:
    whole, short = grid(), grid(short=True)
    kinds = Counter(p.kind for p in whole)
    assert (kinds["draft"], kinds["ngram"], kinds["plain"]) == (9, 6, 1)
    assert [p.name for p in short] == [
        "plain", "n_max 1", "n_max 3", "n_max 7", "n_max 15", "n_max 15, p_min 0.8", "ngram-mod",
        "ngram-map-k", "ngram-simple 4/15", "specllama", "specllama plain",
    ]  # fmt: skip
    assert {p.name for p in short} <= {p.name for p in whole}
    assert not any(p.kind == "draft" for p in grid(draft=False))


def test_a_command_line_shows_no_folders() -> None:
    argv = ["/opt/x/bench/peers/__main__.py", "--pairs", "/srv/pairs", "--out=/srv/b.md", "--temps", "0,0.8"]
    assert environment.command(argv) == "python -m scripts.bench.peers --pairs pairs --out=b.md --temps 0,0.8"
    assert environment.machine()
    assert environment.commit()


def test_a_grammar_of_tokens() -> None:
    assert literal([5, 0, 17]) == "root ::= <[5]> <[0]> <[17]>\n"


def test_figures_are_json() -> None:
    found = json.loads(json.dumps(figures(EDIT, RATES).to_dict()))
    assert Figures.from_dict(found) == figures(EDIT, RATES)
