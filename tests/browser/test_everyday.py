"""What people do all day: read, look at figures, choose models, use a phone."""

from __future__ import annotations

import base64
import re

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.support.browser import Page, needs_chromium
from tests.support.page_answers import answer_with, made_up

pytestmark = needs_chromium()
WORDS = "Some words of an answer, and some more of them.\n\n" * 4
# Of the last question and its answer: what is neither text nor the space between them.
_MACHINERY = """
const height = (e) => e?.getBoundingClientRect().height ?? 0;
const last = (name) => [...document.querySelectorAll(name)].at(-1);
const [question, answer] = [last(".question"), last(".answer")];
return height(question) - height(question.querySelector(".body"))
  + height(answer) - height(answer.querySelector(".body"));
"""


def shown_tools(page: Page) -> float:
    return float(page.js("return +getComputedStyle(document.querySelector('.answer .tools')).opacity"))


def test_below_an_answer_is_one_quiet_line(page: Page) -> None:
    """Its icons come where one points or goes with the keyboard, and on a phone they are there."""
    page.ask("A question", max_tokens=40, ignore_eos=True, seed=1)
    made_up(page, WORDS, "A question")
    assert page.js(_MACHINERY) <= 60
    assert page.text_of(".figures").startswith("40 tokens · ")
    assert shown_tools(page) == 0
    ActionChains(page.driver).move_to_element(
        page.driver.find_element("css selector", ".answer .body")
    ).perform()
    assert shown_tools(page) == 1
    ActionChains(page.driver).move_to_element(page.driver.find_element("id", "question")).perform()
    assert shown_tools(page) == 0
    page.js("document.querySelector('.answer .tools button').focus()")
    assert shown_tools(page) == 1
    with page.phone():
        page.press("Conversations")
        page.press("A question")
        page.until(lambda: len(page.answers) == 2)
        page.until(lambda: page.js("return document.querySelectorAll('.answer .figures').length") == 2)
        assert page.js(_MACHINERY) <= 90
        assert shown_tools(page) == 1


def test_the_panel_shows_the_answer_whose_line_is_pressed(page: Page) -> None:
    page.ask("One", max_tokens=20, ignore_eos=True, seed=1)
    page.ask("Two", max_tokens=30, ignore_eos=True, seed=1)
    assert "answer 2 of 2" in page.text_of("#panel")
    page.until(lambda: "30 tokens" in page.text_of("#panel .tiles"))
    page.js("document.getElementById('show-panel').click()")
    assert not page.text_of("#panel")
    page.js("document.querySelector('.figures').click()")
    page.until(lambda: "20 tokens" in page.text_of("#panel .tiles"))
    assert "answer 1 of 2" in page.text_of("#panel")
    slider = page.get("slider", "Round")
    slider.send_keys(Keys.ARROW_RIGHT)
    assert page.js("return document.querySelectorAll('.answer:nth-child(2) .marked').length") > 0
    assert page.js("return document.querySelectorAll('.answer:nth-child(4) .marked').length") == 0
    page.ask("Three", max_tokens=10, ignore_eos=True, seed=1)
    assert "answer 3 of 3" in page.text_of("#panel")


@pytest.fixture
def listed(page: Page) -> Page:
    """A page that gets a list of models of all groups."""
    page.js("""
        const list = window.fetch;
        const known = [
          ["here", { value: "unloaded" }, { size: 5e9 }, true],
          ["large-70b", { value: "not downloaded", pull: "specllama pull l" }, { about_size: 4e10 }, false],
          ["small-1b", { value: "not downloaded", pull: "specllama pull s" }, { about_size: 5e8 }, true],
          ["an-embedder", { value: "unloaded" }, { size: 1e6, embeds: true }, true],
          ["a-head", { value: "not downloaded", pull: "specllama pull h" }, { is_head: true }],
        ].map(([id, status, meta, fits]) => ({ id, status, meta, fits }));
        window.fetch = async (path, options) => {
          const found = await list(path, options);
          if (!String(path).includes("/v1/models?")) return found;
          const { data } = await found.json();
          return new Response(JSON.stringify({ data: [...data, ...known] }));
        };
    """)
    return page


def options(page: Page) -> list[str]:
    found = page.js("return [...document.querySelectorAll('[role=option]')].map(e => e.innerText)")
    return [" ".join(str(text).split()) for text in found]


def test_models_are_in_groups_with_sizes_and_a_search(listed: Page) -> None:
    page = listed
    page.press("Model")
    field = page.get("combobox", "Search the models")
    page.until(lambda: len(options(page)) == 4)
    groups = page.js("return [...document.querySelectorAll('#model-list .group')].map(e => e.textContent)")
    assert groups == ["In memory", "On this disk", "Can be downloaded"]
    assert options(page)[1:] == [
        "here 4.66 GiB · fits", "small-1b about 477 MiB · fits", "large-70b about 37.3 GiB · too large here",
    ]  # fmt: skip
    assert options(page)[0].startswith("✓ pydoc-target 7.")
    field.send_keys("B")
    assert [name.split()[0] for name in options(page)] == ["small-1b", "large-70b"]
    field.send_keys("x")
    assert page.text_of("#no-models") == "No model has that name."
    field.send_keys(Keys.ESCAPE)
    assert len(options(page)) == 4
    field.send_keys(Keys.ESCAPE)
    page.until(lambda: not page.driver.find_element("id", "models").is_displayed())
    assert page.driver.switch_to.active_element.accessible_name.startswith("Model ")
    page.press("Model")
    page.get("combobox", "Search the models").send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    page.until(lambda: page.notice == "small-1b is not on this disk.")
    assert page.model == "pydoc-target"


def test_on_a_phone_enter_begins_a_line_and_a_tap_shows_what_a_token_is(page: Page) -> None:
    made_up(page, WORDS, "A question")
    with page.phone():
        page.press("Conversations")
        page.press("A question")
        field = page.get("textbox", "Message")
        assert field.get_attribute("enterkeyhint") == "enter"
        field.send_keys("a", Keys.ENTER, "b")
        assert field.get_attribute("value") == "a\nb"
        assert page.questions == ["A question"]
        page.until(lambda: page.js("return document.querySelector('.body [data-round]') !== null"))
        x, y = page.js(
            "const part = document.querySelector('.body [data-round]'); part.scrollIntoView();"
            "const { left, top } = part.getClientRects()[0]; return [left + 3, top + 5]"
        )
        tap(page, x, y)
        page.until(lambda: "4 drafted, 3 accepted" in page.text_of("#tip"))
        tap(page, *page.js("const b = document.getElementById('question').getBoundingClientRect();"
                           "return [b.left + 30, b.top + 10]"))  # fmt: skip
        page.until(lambda: page.text_of("#tip") == "")
        page.press("Edit the question")
        edited = page.get("textbox", "Edit the question")
        edited.send_keys(Keys.ENTER, "more")
        assert edited.get_attribute("value") == "A question\nmore"
        answer_with(page, "Yes.")
        edited.send_keys(Keys.CONTROL, Keys.ENTER)
        page.until(lambda: page.answers == ["Yes."])


def tap(page: Page, x: float, y: float) -> None:
    point = {"x": x, "y": y}
    for kind, points in (("touchStart", [point]), ("touchEnd", [])):
        page.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})


_FAR = "const l = document.getElementById('log'); return l.scrollHeight - l.scrollTop - l.clientHeight"


def test_a_button_leads_back_to_the_end(page: Page) -> None:
    """While an answer is written, too, and it is followed again."""
    answer_with(page, WORDS, endless=True, pause=4)
    page.write("Anything")
    page.until(lambda: page.js("const l = document.getElementById('log');"
                               "return l.scrollHeight > 3 * l.clientHeight"))  # fmt: skip
    assert not page.all("button", "To the end")
    page.js("document.getElementById('log').scrollTop = 0")
    page.get("button", "To the end").send_keys(Keys.ENTER)
    page.until(lambda: page.js(_FAR) < 30)
    assert not page.all("button", "To the end")
    assert page.driver.switch_to.active_element.accessible_name == "Message"
    length = page.js("return document.querySelector('.answer .body').textContent.length")
    page.until(
        lambda: page.js("return document.querySelector('.answer .body').textContent.length") > length + 2000
    )
    assert page.js(_FAR) < 30
    page.press("Stop")
    page.until_done()


def control(page: Page, key: str, shift: bool = False) -> None:
    keys = ActionChains(page.driver).key_down(Keys.CONTROL)
    if shift:
        keys.key_down(Keys.SHIFT)
    keys.send_keys(key).perform()
    ActionChains(page.driver).key_up(Keys.SHIFT).key_up(Keys.CONTROL).perform()


def test_shortcuts(page: Page) -> None:
    page.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": page.url},
    )
    made_up(page, "An *answer*.", "A question")
    control(page, "c", shift=True)
    page.until(lambda: page.js("return navigator.clipboard.readText()") == "An *answer*.")
    control(page, "o", shift=True)
    page.until(lambda: page.answers == [])
    control(page, "l", shift=True)
    assert not page.all("button", "New conversation")
    control(page, "k")
    assert page.driver.switch_to.active_element.accessible_name == "Search the conversations"
    control(page, "/")
    page.get("dialog", "Keyboard shortcuts")
    shown = page.text_of("#dialog-body")
    assert "New conversation Ctrl + Shift + O" in shown
    assert "Stop the answer" in shown
    control(page, "o", shift=True)  # nothing behind the sheet
    page.press("Close")
    page.press("Keyboard shortcuts")
    page.get("dialog", "Keyboard shortcuts")


def test_the_print_has_the_whole_conversation(page: Page) -> None:
    question = "\n".join(f"line {n}" for n in range(60))
    answer_with(page, WORDS * 5)
    for n in range(8):
        page.write(f"{n}\n{question}")
        page.until(lambda due=n + 1: len(page.answers) == due)
        page.until_done()
    page.ready()
    page.press("0")
    page.until(lambda: len(page.answers) == 8)
    printed = page.driver.execute_cdp_cmd("Page.printToPDF", {})["data"]
    n_pages = len(re.findall(rb"/Type /Page\b", base64.b64decode(printed)))
    assert n_pages >= 8, "with eight questions of sixty lines"
    page.emulate(prefers_color_scheme="dark")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        page.js("window.dispatchEvent(new Event('beforeprint'))")
        assert page.js("return [...document.querySelectorAll('.question .body')].every("
                       "b => b.innerText.includes('line 59'))")  # fmt: skip
        shown = page.js(
            "return [...document.querySelectorAll('.bar, aside, #composer, .tools, .fold')]"
            ".filter(e => e.checkVisibility()).length"
        )
        assert shown == 0
        assert page.js("return getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 253)"
        page.js("window.dispatchEvent(new Event('afterprint'))")
        assert page.js("return document.querySelectorAll('.fold[aria-expanded=false]').length") == 8
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
