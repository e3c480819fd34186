"""The page of `bench --report` in a real browser: its charts are drawn, under its own policy."""

from __future__ import annotations

from pathlib import Path

from specllama.bench.report import report
from specllama.bench.summary import summarise
from tests.support.bench_samples import ABOUT, sample
from tests.support.browser import AXE, Page, needs_chromium

pytestmark = needs_chromium()


def test_charts_of_a_report(shared_browser: Page, tmp_path: Path) -> None:
    stats = {"reached": [4, 2], "accepted_at": [3, 1], "n_drafted": 6, "verify_seconds": 1.5}
    rounds = {1: (5, 0.5), 2: (5, 0.7), 5: (5, 0.9)}
    samples = [
        sample(name, tps, "edit", run=run, round_seconds=rounds, **({} if name == "plain" else stats))
        for name, tps in (("plain", 10), ("4", 8), ("auto", 13))
        for run in (1, 2, 3)
    ]
    file = tmp_path / "bench.html"
    figures = summarise(samples, ["plain", "4", "auto"])
    file.write_text(report({**ABOUT, **figures, "verdict": "It pays."}), "utf-8")
    page = shared_browser
    assert page.complaints is not None  # of other tests
    page.driver.get(file.as_uri())
    page.until(lambda: page.js("return document.querySelectorAll('.chart svg[role=img]').length") == 4)
    assert page.js("return document.querySelectorAll('.chart svg title').length") > 8
    assert page.js("return document.querySelectorAll('b').length") == 0
    assert page.js("return getComputedStyle(document.querySelector('.line')).stroke") == "rgb(0, 104, 214)"
    assert page.complaints == []
    if AXE.exists():
        assert page.violations() == []
