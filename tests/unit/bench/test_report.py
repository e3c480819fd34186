"""The page of `bench --report`: it is complete, loads nothing else, and escapes every text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from specllama.bench.intervals import Estimate
from specllama.bench.page import lines, whiskers
from specllama.bench.report import report
from specllama.bench.summary import summarise
from tests.support.bench_samples import sample

NASTY = "</title><script>alert(1)</script>&\"'\ud800\x1b[31m"
MODEL = {"name": "pydoc", "quant": "Q4_0", "path": "x", "params": 1, "n_gpu_layers": 0}
NAMES = ["plain", "1", "4", "auto"]
VOID = ("meta",)


def about(**changes: Any) -> dict[str, Any]:
    return {
        "version": "1", "date": "today", "target": MODEL, "draft": MODEL, "drafters": ["copy", "model"],
        "machine": {"system": "Linux", "machine": "x86", "cores": 2, "n_threads": 2},
        "settings": {"text": None, "n_tokens": 8, "runs": 1}, "interrupted": False, "skipped": {},
        "planned": 9, "exact": False, **changes,
    }  # fmt: skip


def page(workload: str = "edit", verdict: str = "It pays.", **changes: Any) -> str:
    stats = {"reached": [4, 2], "accepted_at": [3, 1], "n_drafted": 6, "verify_seconds": 1.5}
    rounds = {1: (5, 0.5), 2: (5, 0.7), 5: (5, 0.9)}
    samples = [
        sample(name, tps, workload, run=run, round_seconds=rounds, **({} if name == "plain" else stats))
        for name, tps in zip(NAMES, (10, 12, 8, 13), strict=True)
        for run in (1, 2, 3)
    ]
    return report(summarise(samples, NAMES), about(**changes), verdict)


class Tags(HTMLParser):
    """Checks that every tag is closed; collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_charts_tables_and_the_verdict() -> None:
    tags = Tags(page())
    names = [tag for tag, _ in tags.tags]
    assert names.count("svg") == 4
    assert names.count("table") == 3
    assert "It pays." in tags.text
    assert "Texts: all 9 equal plain decoding's" in tags.text
    assert "1.30 x (1.30 - 1.30)" in tags.text  # auto against plain
    assert page().startswith("<!doctype html>")


def test_the_page_loads_nothing_and_runs_no_script() -> None:
    text = page()
    tags = Tags(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in tags.tags}
    for _, attributes in tags.tags:
        assert not {"src", "href", "xlink:href"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert "//" not in text
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in text
    assert "prefers-color-scheme:dark" in text


@pytest.mark.parametrize("where", ["model", "draft", "workload", "verdict", "skipped", "version"])
def test_every_text_is_escaped(where: str) -> None:
    clean, named = Tags(page()), {**MODEL, "name": NASTY}
    changes: dict[str, Any] = {
        "model": {"target": named},
        "draft": {"draft": named},
        "workload": {"workload": NASTY},
        "verdict": {"verdict": NASTY},
        "skipped": {"skipped": {NASTY: NASTY}},
        "version": {"version": NASTY},
    }[where]
    text = page(**changes)
    tags = Tags(text)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert abs(len(tags.tags) - len(clean.tags)) <= 1  # at most one more paragraph
    text.encode()  # a lone surrogate can be written, too


def test_charts_are_xml_and_draw_inside_their_area() -> None:
    charts = re.findall(r"<svg.*?</svg>", page(), re.DOTALL)
    for chart in charts:
        svg = ElementTree.fromstring(chart)
        _, _, width, height = map(float, svg.attrib["viewBox"].split())
        for element in svg.iter():
            for name, value in element.attrib.items():
                if name in ("x", "x1", "x2", "cx"):
                    assert 0 <= float(value) <= width, (element.tag, element.attrib)
                if name in ("y", "y1", "y2", "cy"):
                    assert 0 <= float(value) <= height, (element.tag, element.attrib)


@pytest.mark.parametrize("scale", [1e-6, 0.3, 1, 7, 64, 1e6])
def test_axes_cover_all_points(scale: float) -> None:
    chart = lines({"a": [(1, scale), (64, 2 * scale)]}, "t", "rows")
    points = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', chart)
    assert len(points) == 2
    assert all(0 <= float(x) <= 640 and 0 <= float(y) <= 300 for x, y in points)
    assert float(points[0][1]) > float(points[1][1])  # the larger one is higher up
    assert 4 <= chart.count('class="grid"') <= 10


def test_higher_speeds_are_drawn_higher() -> None:
    chart = whiskers(["a", "b"], [Estimate(0.5, 0.4, 0.6, 9), Estimate(2.0, None, None, 1)], "t")
    a, b = (float(y) for y in re.findall(r'cy="([\d.]+)"', chart))
    line = re.search(r'class="mark".*?y1="([\d.]+)"', chart)
    assert line is not None
    assert a > float(line[1]) > b
    assert chart.count("thick") == 1


def test_there_is_a_page_without_drafts_and_without_speeds() -> None:
    s = summarise([sample("plain", 10)], ["plain"])
    tags = Tags(report(s, about(draft=None, drafters=[]), "Only plain decoding was measured."))
    assert "no drafter" in tags.text
    empty = summarise([sample("plain", 10, n_predict=1, decode_seconds=0.0)], ["plain"])
    Tags(report(empty, about(), ""))
