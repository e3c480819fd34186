"""Speculation to look at: sources, rounds, figures, charts, the race, the state of the server."""

from __future__ import annotations

import re

from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.support.browser import ENDLESS, Page, needs_chromium

pytestmark = needs_chromium()
LONG = {"ignore_eos": True, "max_tokens": 60, "seed": 3, "temperature": 0}


def sources(page: Page) -> set[str]:
    return set(
        page.js("return [...document.querySelectorAll('.body [data-source]')].map(e => e.dataset.source)")
    )


def test_tokens_are_tinted_by_their_source(page: Page) -> None:
    page.ask("What does shutil.copytree do?", **LONG)
    found = sources(page)
    assert {"target"} < found <= {"target", "model", "copy", "memory", "grammar", "head"}
    drafted = sorted(found - {"target"})[0]
    look = (
        "const s = getComputedStyle(document.querySelector(arguments[0]));"
        "return [s.backgroundColor, s.textDecorationLine]"
    )
    drawn = page.js(look, f'.body [data-source="{drafted}"]')
    plain = page.js(look, '.body [data-source="target"]')
    assert drawn[1] == "underline"
    assert drawn[0] != plain[0]
    assert plain[1] == "none"
    page.get("switch", "Show where tokens came from").click()
    assert page.js(look, f'.body [data-source="{drafted}"]') == plain
    legend = page.text_of("#panel .sources")
    assert all(name in legend for name in found)


def test_forced_tokens_are_the_grammar_s(page: Page) -> None:
    page.ask("Anything", grammar='root ::= "The quick brown fox jumps over the lazy dog."')
    assert "grammar" in sources(page)


def test_an_unknown_source_has_a_look_too(page: Page) -> None:
    page.ask("What does shutil.copytree do?", **LONG)
    look = page.js(
        "const e = document.querySelector('.body [data-source]'); e.dataset.source = 'oracle';"
        "const s = getComputedStyle(e); return [s.backgroundColor, s.textDecorationLine]"
    )
    assert look[1] == "underline"
    assert look[0] != "rgba(0, 0, 0, 0)"


def test_rounds_by_keyboard(page: Page) -> None:
    page.ask("What does shutil.copytree do?", **LONG)
    slider = page.get("slider", "Round")
    page.js("arguments[0].focus()", slider)
    assert re.match(r"Round 1 of \d+: ", slider.get_attribute("aria-valuetext") or "")
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    said = slider.get_attribute("aria-valuetext") or ""
    assert re.match(r"Round 3 of \d+: (\d+ drafted, \d+ accepted|no draft), [\d.]+ ms$", said)
    assert page.text_of(".stepper output") == said
    marked = page.js("return [...document.querySelectorAll('.marked')].map(e => e.dataset.round)")
    assert set(marked) == {"3"}  # 0 is the prompt's decode, which is no round


def test_rounds_by_pointer(page: Page) -> None:
    page.ask("What does shutil.copytree do?", **LONG)
    part = page.driver.find_element("css selector", ".body [data-source]:not([data-source=target])")
    ActionChains(page.driver).move_to_element(part).perform()
    page.until(lambda: re.search(r"\d+ drafted, \d+ accepted, [\d.]+ ms", page.text_of("#tip")))
    page.get("textbox", "Message").send_keys(Keys.ESCAPE)
    assert page.text_of("#tip") == ""


def test_the_figures_are_the_server_s(page: Page) -> None:
    page.ask("What does shutil.copytree do?", **LONG)
    (stored,) = page.stored
    message = stored["messages"][1]
    figures = message["report"]["figures"]
    rounds = message["trace"]["rounds"]
    assert sum(drafted for drafted, *_ in rounds) == figures["n_drafted"] > 0
    assert sum(n for _, _, _, _, n, *_ in rounds) == figures["rounds"]
    assert rounds[0][4] == 0
    assert sum(accepted for _, accepted, *_ in rounds) == figures["n_accept"]
    panel = page.text_of("#panel")
    assert f"{figures['n_accept']} of {figures['n_drafted']}" in panel
    assert f"60 tokens, {figures['rounds']} rounds" in panel
    assert page.text_of(".stepper output") == f"{figures['rounds']} rounds"
    titles = page.js(
        "return [...document.querySelectorAll('#panel svg')].map(s => s.getAttribute('aria-label'))"
    )
    assert [title.split(":")[0].split(",")[0] for title in titles] == [
        "Share of draft tokens accepted", "Where the time went", "Milliseconds of a decode by its rows",
    ]  # fmt: skip
    axes = page.js(
        "return [...document.querySelectorAll('#panel svg')].map(s => [...s.children].map("
        "e => e.tagName === 'text' ? e.textContent : ''))"
    )
    assert {"rows", "ms"} <= set(axes[2])
    marks = page.js("return document.querySelectorAll('#panel svg .mark').length")
    assert marks == len(figures["decodes"])
    assert "On: " in panel
    assert "pydoc-draft" in panel


def test_switched_off(page: Page) -> None:
    with_drafts = page.ask("What does shutil.copytree do?", **LONG)
    page.press("New conversation")
    page.get("switch", "Speculation").click()
    assert "Off, because you switched it off" in page.text_of("#panel")
    assert page.ask("What does shutil.copytree do?", **LONG) == with_drafts
    assert sources(page) == {"target"}
    assert "had no drafts" in page.text_of("#panel")
    page.ready()
    assert page.get("switch", "Speculation").is_selected() is False


def test_names_of_heads_and_draft_models(page: Page) -> None:
    found = page.driver.execute_async_script("""
        const [done] = arguments;
        const props = (file, head, inside) => ({model_path: "/big", draft_model_path: file, speculation:
            {draft: file && {name: file.slice(1), quant: "Q8_0"}, head, head_in_target: inside,
             vocabulary: "identical", drafters: ["copy", "model"], draft_max: 4}});
        import('/page/panel.js').then(({draftNames, inWords}) => done([
            draftNames(props(null, "", false)), draftNames(props("/small", "", false), "!"),
            draftNames(props("/eagle", "EAGLE-3", false), "!"), draftNames(props("/big", "MTP", true), "!"),
            draftNames(props("/small", "MTP", true), "!"), inWords(props("/small", "MTP", true), true),
        ]));
    """)
    own = "head of the model (MTP)"
    assert found == [
        [], ["draft small Q8_0!"], ["head eagle Q8_0 (EAGLE-3)"], [own], [own, "draft small Q8_0!"],
        f"On: copy + {own} + draft small Q8_0, at most 4 tokens a round.",
    ]  # fmt: skip


def test_status(page: Page) -> None:
    page.ask("What does shutil.copytree do?", max_tokens=8)
    page.press("Status")
    page.until(lambda: "of 2 busy" in page.text_of("#dialog-body"))
    shown = page.text_of("#dialog-body")
    for text in (
        "specllama ", "pydoc-target Q4_0", "pydoc-draft", "vocabulary identical", "CPU with 1 thread", "MiB",
        "0 waiting", "1 answer of this page", "Gain", "2,048 tokens",
    ):  # fmt: skip
        assert text in shown, text
    page.driver.find_element("tag name", "body").send_keys(Keys.ESCAPE)
    page.until(lambda: not page.all("dialog"))


_DRAWN = """
const [done] = arguments;
const found = [];
const number = (element, name) => Number(element.getAttribute(name));
const look = (figure) => {
  const [, , width, height] = figure.querySelector("svg").getAttribute("viewBox").split(" ").map(Number);
  const ends = { x: width, x1: width, x2: width, cx: width, y: height, y1: height, y2: height, cy: height };
  for (const element of figure.querySelectorAll("svg *")) {
    for (const [name, end] of Object.entries(ends)) {
      if (!element.hasAttribute(name)) continue;
      const value = number(element, name);
      if (!(value >= 0 && value <= end)) found.push(element.outerHTML);
    }
  }
  return figure;
};
import("/page/charts.js").then((charts) => {
  for (const scale of [1e-6, 0.3, 1, 7, 64, 1e6]) {
    const series = [["a", [[1, scale], [64, 2 * scale]]], ["b", [[2, 0]]]];
    const marks = [[1, "one"]];
    const figure = look(charts.lines({ series, title: "t", x_name: "rows", y_name: "ms", marks }));
    const [a, b] = [...figure.querySelectorAll("circle")].map((dot) => number(dot, "cy"));
    if (a <= b) found.push("the larger value is not higher");
    const n = figure.querySelectorAll(".grid").length;
    if (n < 4 || n > 10) found.push(`${n} lines`);
  }
  const rows = [["a", [["x", 0.4], ["y", 0.6]]], ["b", [["x", 1], ["y", 0]]]];
  look(charts.bars({ rows, title: "t" }));
  const values = [[0.5, 0.4, 0.6], [2, null, null]];
  const points = look(charts.whiskers({ labels: ["a", "b"], values, title: "t" }));
  const [low, high] = [...points.querySelectorAll("circle")].map((dot) => number(dot, "cy"));
  const line = number(points.querySelector(".mark"), "y1");
  if (!(low > line && line > high)) found.push("a higher speed is not higher");
  done(found);
});
"""


def test_charts_draw_inside_their_area(page: Page) -> None:
    """Those of the page and of bench's reports, which have the same code."""
    assert page.driver.execute_async_script(_DRAWN) == []


def test_an_explanation_goes_away_with_escape(page: Page) -> None:
    """And does not come back when its figure is drawn again; that key closes and stops nothing else."""

    def said() -> str:
        return page.text_of("#explanation")

    def point_at(selector: str) -> None:
        def pointed() -> bool:
            element = page.driver.find_element("css selector", selector)
            ActionChains(page.driver).move_to_element(element).perform()
            return True

        page.until(pointed)  # the element may be drawn again meanwhile

    def escape() -> None:
        ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()

    page.write("Long", **ENDLESS)
    page.until(lambda: page.all("button", "tokens a round"))
    point_at("#panel .tiles div")
    page.until(said)
    escape()
    assert said() == ""
    n = len(page.answers[-1])
    page.until(lambda: len(page.answers[-1]) > n + 40, "that the answer goes on")
    assert said() == ""
    assert page.all("button", "Stop")
    point_at("#panel .tiles div:nth-child(2)")
    page.until(lambda: "Speed over plain decoding" in said())
    escape()
    point_at("h1")
    point_at("#panel .tiles div:nth-child(2)")
    page.until(said)
    escape()
    escape()
    page.until_done()
    assert "Stopped." in page.text_of(".answer .outcome")
    assert said() == ""
    page.press("Status")
    page.until(lambda: page.all("button", "Slots"))
    point_at("#dialog .term")
    page.until(said)
    escape()
    assert said() == ""
    assert page.all("dialog")
    escape()
    page.until(lambda: not page.all("dialog"))
