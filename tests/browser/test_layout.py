"""The places of things: what covers what, scrolling, zoom, themes, the keyboard of a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.support.browser import Page, needs_chromium
from tests.support.page_answers import answer_with, made_up

pytestmark = needs_chromium()
PARAGRAPHS = "".join(f"Paragraph {i} of the answer, with some words.\n\n" for i in range(60))
_BOX = "const e = document.getElementById(arguments[0]); const b = e.getBoundingClientRect()"
# Whether a click in the middle of the element would reach it.
_REACHED = (
    f"{_BOX};"
    "const hit = document.elementFromPoint(b.left + b.width / 2, b.top + b.height / 2);"
    "return e === hit || e.contains(hit)"
)


def shown(page: Page, name: str) -> bool:
    return bool(page.js("return !document.getElementById(arguments[0]).hidden", name))


def button_of(page: Page, name: str) -> None:
    page.js("document.getElementById(arguments[0]).click()", f"show-{name}")


@pytest.mark.parametrize("width", [800, 900, 1024, 1199, 1200, 1600])
def test_the_panel_covers_nothing(page: Page, width: int) -> None:
    page.resize(width)
    page.ready()
    if not shown(page, "panel"):
        button_of(page, "panel")
    assert shown(page, "panel")
    for name in ("send", "question", "speculate", "show-list", "show-panel"):
        assert page.js(_REACHED, name), name
    assert page.js("return document.querySelector('main').clientWidth") >= 400
    assert page.js("return document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("name", ["list", "panel"])
@pytest.mark.parametrize("width", [390, 700])
def test_escape_and_a_tap_outside_close_what_lies_over_the_conversation(
    page: Page, width: int, name: str
) -> None:
    page.resize(width)
    page.ready()
    button_of(page, name)
    assert shown(page, name)
    page.get("textbox", "Message").send_keys(Keys.ESCAPE) if width == 700 else page.js(
        "document.activeElement.blur()"
    )
    if width != 700:
        ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    page.until(lambda: not shown(page, name))
    button_of(page, name)
    box = page.js(f"{_BOX}; return [b.left, b.right, b.top]", name)
    outside = box[0] - 10 if name == "panel" else box[1] + 10
    ActionChains(page.driver).move_by_offset(int(outside), int(box[2]) + 60).click().perform()
    ActionChains(page.driver).move_by_offset(-int(outside), -int(box[2]) - 60).perform()
    page.until(lambda: not shown(page, name))
    assert page.js(f"return document.getElementById('show-{name}').getAttribute('aria-expanded')") == "false"


def test_a_tap_inside_closes_nothing(page: Page) -> None:
    page.resize(390)
    page.ready()
    button_of(page, "panel")
    page.driver.find_element("css selector", "#panel h2").click()
    assert shown(page, "panel")
    button_of(page, "list")
    assert shown(page, "list")
    assert not shown(page, "panel"), "one at a time"


def test_escape_closes_first_and_stops_then(page: Page) -> None:
    page.resize(390)
    page.ready()
    answer_with(page, PARAGRAPHS, endless=True, pause=5)
    page.write("Anything")
    page.until(lambda: page.answers and page.answers[-1])
    button_of(page, "panel")
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    page.until(lambda: not shown(page, "panel"))
    assert page.all("button", "Stop")
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    page.until_done()


def test_escape_closes_the_panel_at_middle_width(page: Page) -> None:
    page.resize(1024)
    page.ready()
    assert shown(page, "list")
    button_of(page, "panel")
    assert not shown(page, "list")
    page.get("textbox", "Message").send_keys(Keys.ESCAPE)
    page.until(lambda: not shown(page, "panel"))
    assert shown(page, "list")


_PLACE = "const l = document.getElementById('log'); return l.scrollHeight - l.scrollTop - l.clientHeight"


def test_scrolling_away_a_little_is_not_pulled_back(page: Page) -> None:
    answer_with(page, PARAGRAPHS, endless=True, pause=4)
    page.write("Anything")
    page.until(
        lambda: page.js(
            "const l = document.getElementById('log'); return l.scrollHeight > 1.5 * l.clientHeight"
        )
    )
    log = page.driver.find_element("id", "log")
    assert page.js(_PLACE) < 30
    page.js("document.getElementById('log').scrollTop -= 40")
    top = page.js("return document.getElementById('log').scrollTop")
    length = page.js("return document.querySelector('.answer .body').textContent.length")
    page.until(
        lambda: page.js("return document.querySelector('.answer .body').textContent.length") > length + 1500
    )
    assert abs(page.js("return document.getElementById('log').scrollTop") - top) < 2
    page.js("const l = document.getElementById('log'); l.scrollTop = l.scrollHeight")
    length = page.js("return document.querySelector('.answer .body').textContent.length")
    page.until(
        lambda: page.js("return document.querySelector('.answer .body').textContent.length") > length + 1500
    )
    assert page.js(_PLACE) < 30, "at the end, it follows again"
    log.click()
    page.press("Stop")
    page.until_done()


@pytest.mark.parametrize(("width", "height"), [(800, 450), (512, 400), (320, 480), (390, 420)])
def test_zoom_and_the_keyboard_of_a_phone(page: Page, width: int, height: int) -> None:
    """At 200 % and 400 % of a usual window, and with the keyboard over half of a phone, one can write."""
    page.resize(width, height)
    page.ready()
    made_up(page, PARAGRAPHS, "A question")
    assert page.js("return document.documentElement.scrollWidth") == width
    for name in ("question", "send"):
        assert page.js(_REACHED, name), name
        box = page.js(f"{_BOX}; return [b.top, b.bottom]", name)
        assert 0 <= box[0] < box[1] <= height
    assert page.js("return document.getElementById('log').clientHeight") >= 60
    page.press("Settings")
    box = page.get("dialog").rect
    assert box["height"] <= height
    save = page.get("button", "Save")
    assert 0 <= save.rect["y"] <= height


def test_the_theme_can_be_set(page: Page) -> None:
    look = (
        "document.documentElement.dataset.theme = arguments[0];"
        "const s = (e) => getComputedStyle(e);"
        "return [s(document.body).backgroundColor, s(document.documentElement).colorScheme,"
        "        s(document.documentElement).getPropertyValue('--chart-text')]"
    )
    seen = {}
    for scheme in ("light", "dark"):
        page.emulate(prefers_color_scheme=scheme)
        for theme in ("light", "dark", ""):
            seen[scheme, theme] = page.js(look, theme)[0]
    assert seen["light", "light"] == seen["dark", "light"] == seen["light", ""]
    assert seen["light", "dark"] == seen["dark", "dark"] == seen["dark", ""]
    assert seen["light", "light"] != seen["dark", "dark"]


def test_what_is_attached_and_sent_keeps_its_place(page: Page, tmp_path: Path) -> None:
    """Two rows of files end above the message field; Send is at the right, and the gauge has its bar."""
    for i in range(4):
        (tmp_path / f"quite-a-long-name-{i}.txt").write_text("some text")
    field = page.driver.find_element("id", "attach-file")
    field.send_keys("\n".join(str(file) for file in sorted(tmp_path.iterdir())))
    page.until(lambda: page.js("return document.querySelectorAll('#files li').length") == 4)
    for width in (390, 768, 1600):
        page.resize(width)
        files, question, send, bar = (
            page.js(f"{_BOX}; return b.toJSON()", name) for name in ("files", "question", "send", "context")
        )
        assert files["bottom"] + 4 < question["top"], "the ring of the focus takes four pixels"
        assert abs(send["right"] - question["right"]) < 2, width
        assert bar["width"] > 60, width


@pytest.mark.parametrize("width", [390, 640, 799, 800, 900, 1024, 1199, 1200, 1280])
def test_send_stays_in_its_row(page: Page, width: int) -> None:
    """With the longest text of the gauge, and what takes most room beside the conversation."""
    page.resize(width)
    page.ready()
    if width >= 800 and not shown(page, "panel"):
        button_of(page, "panel")
    long = "32,000 of 131,072 tokens with this message"
    page.js("document.getElementById('context-text').textContent = arguments[0]", long)
    send, attach, area, gauge = (
        page.js(f"{_BOX}; return b.toJSON()", name) for name in ("send", "attach", "question", "context-text")
    )
    assert abs(send["top"] + send["bottom"] - attach["top"] - attach["bottom"]) < 2
    assert abs(send["right"] - area["right"]) < 2
    assert gauge["right"] <= send["left"] or gauge["bottom"] <= send["top"]
    assert page.js("return document.documentElement.scrollWidth") == width


def test_long_names_and_answers_in_writing_are_seen_in_the_list(page: Page) -> None:
    answer_with(page, PARAGRAPHS, endless=True, pause=5)
    page.write("A question whose first words are the name of this conversation")
    page.until(lambda: "(writing)" in page.text_of(".choose"))
    mark, item = (
        page.js("return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", what)
        for what in (".writes", ".choose")
    )
    assert item["top"] < mark["top"] < mark["bottom"] <= item["bottom"]
    name = "const n = document.querySelector('.name'); return n.getBoundingClientRect().height"
    assert page.js(name) > 30, "two lines"
    page.press("Stop")
    page.until_done()


def test_the_list_stays_usable_while_an_answer_is_written(page: Page) -> None:
    """Storing the answer replaces no button under a finger, and closes no menu."""
    answer_with(page, PARAGRAPHS, endless=True, pause=5)
    page.write("A question")
    page.until(lambda: "(writing)" in page.text_of(".choose"))
    page.press("More for A question")
    page.js("window.item = document.querySelector('#conversations li')")
    stored = page.until(lambda: page.stored and page.stored[0]["changed"])
    page.until(lambda: page.stored[0]["changed"] > stored, "that it is stored again")
    assert page.js("return window.item.isConnected && window.item.querySelector('.actions') !== null")
    page.press("Rename")
    page.get("textbox", "Name of the conversation").send_keys(Keys.ESCAPE)
    page.until(lambda: page.all("button", "More for A question"))
    page.press("Stop")
    page.until_done()
    page.until(lambda: page.text_of(".choose") == "A question")


def test_a_question_stands_at_the_right_in_any_script(page: Page) -> None:
    made_up(page, "An answer.", "A question")
    made_up(page, "جواب", "ما هذا؟")
    edges = page.js(
        "return [...document.querySelectorAll('.question .body')].map(b => b.getBoundingClientRect().right)"
    )
    assert len(edges) == 2
    assert abs(edges[0] - edges[1]) < 1


def test_each_setting_can_be_clicked(page: Page) -> None:
    page.press("Settings")
    page.get("dialog")
    box = page.driver.find_element("id", "set-ignore_eos")
    box.click()
    assert box.is_selected()
    heights = "return ['.foot', '.foot .actions'].map(e => document.querySelector(e).clientHeight)"
    foot, buttons = page.js(heights)
    assert foot < buttons + 45
