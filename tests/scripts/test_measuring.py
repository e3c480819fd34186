"""Texts, random drafts and figures of the measurements by the clock, without a clock."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import gguf
import numpy as np
import pytest

from scripts.bench.measuring.adversarial_texts import STRETCH, dropping, noise, sources, switching
from scripts.bench.measuring.random_draft import write_random_draft
from scripts.bench.measuring.renames import LINES, MIN_USES, renamed, renames
from scripts.figures import mean, median_interval, overhead, quantile, ranged
from specllama.data import EMBEDDED_DRAFT


def test_renames_of_the_standard_library() -> None:
    found = renames(8, 3)
    assert found[:2] == renames(2, 3) != renames(2, 4)
    assert len({r.where for r in found}) == 8
    for r in found:
        assert r.code.count("\n") + 1 in LINES
        before, after = (_names(text) for text in (r.code, r.renamed))
        assert r.old not in after
        assert r.new not in before
        assert after.count(r.new) == before.count(r.old) >= MIN_USES
        assert [r.new if name == r.old else name for name in before] == after
        assert renamed(r.renamed, r.new, r.old) == r.code
        assert r.code in r.instruction
        assert r.renamed in r.answer


def _names(code: str) -> list[str]:
    nodes = ast.walk(ast.parse(code))
    return [n.id if isinstance(n, ast.Name) else n.arg for n in nodes if isinstance(n, (ast.Name, ast.arg))]


def test_all_places_and_no_others() -> None:
    code = "def f({0}, x=1):\n    values = [{0} for {0} in {0}]\n    return lambda {0}: values + {0} + x"
    assert renamed(code.format("value"), "value", "item") == code.format("item")


@pytest.mark.parametrize(
    "line",
    [
        "self.value = value", "call(value=value)", "import value", "global value", "return f'{value}'",
        "return {'value': value}", "from os import path as value",
    ],
)  # fmt: skip
def test_a_name_that_is_also_something_else_is_left_alone(line: str) -> None:
    assert renamed(f"def f(x):\n    {line}", "value", "item") is None


def test_broken_and_short_sources_give_no_renames(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(:\n")
    (tmp_path / "b.py").write_text("def f(a):\n    return a + a + a + a\n")
    (tmp_path / "c.py").write_bytes(b"\xff\xfe")
    assert renames(5, 0, tmp_path) == []


def test_switching_text() -> None:
    prompt, new = list(range(100, 400)), list(range(1000, 1100))
    text = switching(prompt, new, 260, random.Random(1))
    assert len(text) == 260
    for at in range(0, 260, STRETCH):
        stretch = text[at : at + STRETCH]
        assert stretch == list(range(stretch[0], stretch[0] + len(stretch)))
        assert (stretch[0] >= 1000) == bool(at // STRETCH % 2)
    assert text[STRETCH : 2 * STRETCH] != text[3 * STRETCH : 4 * STRETCH]


def test_dropping_text_and_noise() -> None:
    assert dropping([1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13, 14, 15], 8) == [1, 2, 3, 4, 14, 13, 12, 11]
    found = noise([5, 6, 7], 50, random.Random(1))
    assert len(found) == 50
    assert set(found) == {5, 6, 7}


def test_sources_are_those_of_this_python() -> None:
    first, second = sources(2, 0)
    assert first != second
    assert sources(2, 0) == [first, second]
    ast.parse(first)


@pytest.mark.parametrize("confident", [False, True])
def test_a_random_draft_is_the_same_file_with_other_weights(tmp_path: Path, confident: bool) -> None:
    out = tmp_path / "random.gguf"
    write_random_draft(Path(EMBEDDED_DRAFT), out, 1, confident)
    assert out.stat().st_size == Path(EMBEDDED_DRAFT).stat().st_size
    before, after = gguf.GGUFReader(EMBEDDED_DRAFT), gguf.GGUFReader(out)
    for a, b in zip(before.tensors, after.tensors, strict=True):
        assert (a.name, a.tensor_type, list(a.shape)) == (b.name, b.tensor_type, list(b.shape))
        if len(a.shape) > 1:
            assert a.data.tobytes() != b.data.tobytes()
            mine, theirs = (np.sort(x.data.reshape(-1).view(np.uint8)) for x in (a, b))
            assert (mine == theirs).all()
        else:
            assert (a.data.tobytes() == b.data.tobytes()) == (not confident or a.name != "output_norm.weight")


def test_overhead() -> None:
    found = overhead([[(1.0, 1.1), (1.0, 1.3), (1.2, 1.0)], [(3.0, 2.0)] * 3], 11)
    assert found.t1 == pytest.approx(4 / 20)
    assert found.ratio == pytest.approx(3.1 / 4)
    assert found.worst == pytest.approx(1.1)
    assert found.each == pytest.approx(-0.9 / 0.2 / 2)
    assert found.lost == pytest.approx((9.4 - 12.2) / 0.2)
    assert found.allowed == pytest.approx(0.01 * 12.2 / 0.2 + 4)
    assert found.kept
    assert found.pairs == pytest.approx((1.1 * 1.3 / 1.2 * (2 / 3) ** 3) ** (1 / 6))
    assert 0.2 < found.error < 0.3
    assert overhead([[(1.0, 1.1)] * 3], 11).error == pytest.approx(0)
    one = overhead([[(1.0, 1.6)]], 11)
    assert not one.kept
    assert one.pairs == pytest.approx(1.6)
    assert one.error == float("inf")


def test_means() -> None:
    assert mean([1, 4]) == 2
    assert ranged([1, 4]) == "2.00 (1.00 to 4.00)"


def test_quantiles() -> None:
    assert quantile([], 0.99) == 0
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile(range(1000), 0.99) == 990


def test_the_interval_of_a_median() -> None:
    found = median_interval([1.0, 1.1, 1.2, 1.3, 9.0])
    assert found.low is not None
    assert found.high is not None
    assert found.value == pytest.approx(1.2)
    assert 1.0 <= found.low < found.value < found.high <= 9.01
    single = median_interval([2.0])
    assert (single.low, single.high) == (pytest.approx(2), pytest.approx(2))
