"""The page of `bench --report`: it is complete, loads nothing else, and escapes every text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from specllama.bench.report import bars, lines, report, whiskers
from specllama.bench.summary import Estimate, summarise
from specllama.data import CHARTS_JS
from tests.support.bench_samples import ABOUT, MODEL, sample

NASTY = "</title><script>alert(1)</script>&\"'\ud800\x1b[31m"
NAMES = ["plain", "1", "4", "auto"]
VOID = ("meta",)


def page(workload: str = "edit", verdict: str = "It pays.", **changes: Any) -> str:
    stats = {"reached": [4, 2], "accepted_at": [3, 1], "n_drafted": 6, "verify_seconds": 1.5}
    rounds = {1: (5, 0.5), 2: (5, 0.7), 5: (5, 0.9)}
    samples = [
        sample(name, tps, workload, run=run, round_seconds=rounds, **({} if name == "plain" else stats))
        for name, tps in zip(NAMES, (10, 12, 8, 13), strict=True)
        for run in (1, 2, 3)
    ]
    return report({**ABOUT, **changes, **summarise(samples, NAMES), "verdict": verdict})


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
    assert [json.loads(a["data-chart"] or "")["kind"] for _, a in tags.tags if "data-chart" in a] == [
        "whiskers", "lines", "bars", "lines"
    ]  # fmt: skip
    assert names.count("table") == 3
    assert "It pays." in tags.text
    assert "Texts: all 9 equal plain decoding's" in tags.text
    assert "1.30 x (1.30 - 1.30)" in tags.text  # auto against plain
    assert page().startswith("<!doctype html>")


def test_the_page_loads_nothing_and_runs_the_chart_code_alone() -> None:
    text = page()
    tags = Tags(text)
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in tags.tags}
    for _, attributes in tags.tags:
        assert not {"src", "href", "xlink:href"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert set(re.findall(r"\w+://[^\s\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in text
    (script,) = re.findall(r"<script type=\"module\">(.*?)</script>", text, re.DOTALL)
    assert script.startswith(CHARTS_JS.read_text("utf-8"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert [a["content"] for _, a in tags.tags if "http-equiv" in a] == [allowed]
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
    assert text.count("<script") == 1
    assert "&lt;script&gt;" in text
    assert abs(len(tags.tags) - len(clean.tags)) <= 1  # at most one more paragraph
    text.encode()  # a lone surrogate can be written, too


def chart(html: str) -> dict[str, Any]:
    """What the script gets of a chart."""
    ((_, attributes),) = (tag for tag in Tags(html).tags if "data-chart" in tag[1])
    parsed: dict[str, Any] = json.loads(attributes["data-chart"] or "")
    return parsed


def test_a_chart_has_its_values_and_shows_them_as_text_without_scripts() -> None:
    drawn = lines({"a": [(1, 0.5), (64, 0.25)], "<b>": [(1, 1)]}, "t", "rows", percent=True)
    assert chart(drawn) == {
        "kind": "lines", "title": "t", "x_name": "rows", "percent": True,
        "series": [["a", [[1, 0.5], [64, 0.25]]], ["<b>", [[1, 1]]]],
    }  # fmt: skip
    assert Tags(drawn).text == "t: a: 50 % at 1, 25 % at 64; <b>: 100 % at 1"
    assert chart(lines({"a": [(1, 2)]}, "t", "rows", "ms"))["y_name"] == "ms"
    drawn = whiskers(["a", "b"], [Estimate(0.5, 0.4, 0.6, 9), Estimate(2.0, None, None, 1)], "t")
    assert chart(drawn)["values"] == [[0.5, 0.4, 0.6], [2.0, None, None]]
    assert Tags(drawn).text == "t: a: 0.50; b: 2.00"
    drawn = bars({"k = 1": {"verify": 0.75, "draft": 0.25}}, "t")
    assert chart(drawn)["rows"] == [["k = 1", [["verify", 0.75], ["draft", 0.25]]]]
    assert Tags(drawn).text == "t: k = 1: verify 75 %, draft 25 %"


def test_there_is_a_page_without_drafts_and_without_speeds() -> None:
    s = summarise([sample("plain", 10)], ["plain"])
    tags = Tags(
        report({**ABOUT, "draft": None, "drafters": [], **s, "verdict": "Only plain decoding was measured."})
    )
    assert "no drafter" in tags.text
    empty = summarise([sample("plain", 10, n_predict=1, decode_seconds=0.0)], ["plain"])
    Tags(report({**ABOUT, **empty, "verdict": ""}))
