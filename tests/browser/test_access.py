"""Keyboard, screen readers, contrast, widths; and the key."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import AXE, WIDTHS, Page, browser, needs_chromium
from tests.support.serving import Server

pytestmark = needs_chromium()
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="there is no axe-core: scripts/browser installs it")
TEXT = (
    "# Title\n\nSome [link](https://example.org) and `code`.\n\n```python\nx = 1\n```\n\n| a |\n|---|\n| 1 |"
)
VIEWS = {"chat": "", "settings": "Settings", "status": "Status", "race": "Race"}


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_no_serious_violations(page: Page, view: str, scheme: str) -> None:
    page.emulate(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    page.ask("What does shutil.copytree do?", max_tokens=40, ignore_eos=True, seed=1)
    page.ask("And now?", grammar=f"root ::= {json.dumps(TEXT)}")
    if VIEWS[view]:
        page.press(VIEWS[view])
        page.until(lambda: page.all("dialog"))
    if view == "status":
        page.until(lambda: "Slots" in page.text_of("#dialog-body"))
    # axe-core adds a style of its own, which the policy refuses
    assert page.violations() == []
    assert [line for line in page.complaints if "style" not in line] == []


@needs_axe
def test_each_source_can_be_read(page: Page) -> None:
    """Contrast of all tints, in both schemes, of the text as it is."""
    for scheme in ("light", "dark"):
        page.emulate(prefers_color_scheme=scheme)
        page.js(
            "const b = document.createElement('p'); b.className = 'body'; b.id = 'all';"
            "for (const s of ['target', 'model', 'head', 'copy', 'memory', 'grammar', 'oracle']) {"
            "  const e = document.createElement('span'); e.dataset.source = e.textContent = s;"
            "  b.append(e, ' '); }"
            "document.getElementById('all')?.remove(); document.getElementById('log').append(b);"
        )
        assert page.violations() == []
        looks = page.js(
            "return [...document.querySelectorAll('#all span')].map(e => {"
            "  const s = getComputedStyle(e);"
            "  return [s.backgroundColor, s.textDecorationLine + s.textDecorationStyle]; })"
        )
        assert len({tuple(look) for look in looks}) == 7
        assert len({line for _, line in looks[:6]}) == 6  # not by colour alone


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(page: Page, width: int) -> None:
    page.resize(width)
    page.ready()
    page.ask("What does shutil.copytree do?", max_tokens=40, ignore_eos=True)
    wide = "return [document.documentElement.scrollWidth, innerWidth]"
    shown, room = page.js(wide)
    assert shown <= room == width
    for name in ("Race", "Status", "Settings"):
        page.press(name)
        assert page.js(wide)[0] <= width
        box = page.get("dialog").rect
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width
        page.press("Close")
    assert page.get("textbox", "Message").is_displayed()


def test_a_phone_has_everything_too(page: Page) -> None:
    page.resize(390, 844)
    page.ready()
    assert not page.all("button", "New conversation")
    page.ask("First", grammar='root ::= "One."')
    page.press("Conversations")
    page.press("New conversation")
    page.until(lambda: page.answers == [] and not page.all("button", "New conversation"))
    page.get("button", "Figures").click()
    page.until(lambda: "On: " in page.text_of("#panel"))


def test_all_by_keyboard(page: Page) -> None:
    """Tab reaches every control, in an order, with a visible focus."""
    page.ask("What does shutil.copytree do?", max_tokens=40, ignore_eos=True)
    page.js("document.querySelector('.skip').focus()")
    seen: list[str] = []
    for _ in range(60):
        active = page.driver.switch_to.active_element
        if active.tag_name == "body":
            break
        seen.append(active.accessible_name)
        ring = page.js("return getComputedStyle(document.activeElement).outlineStyle")
        assert ring != "none", seen[-1]
        active.send_keys(Keys.TAB)
    for name in (
        "Skip to the message field", "Model", "Race", "Status", "Settings", "New conversation", "Export",
        "Import", "Edit", "Round", "Copy the answer", "Regenerate", "Message", "Speculation", "Figures",
    ):  # fmt: skip
        assert any(found.startswith(name) for found in seen), (name, seen)


def test_an_answer_is_announced(page: Page) -> None:
    page.ask("Anything", grammar='root ::= "Done."')
    said = page.js("return document.getElementById('announcer').textContent")
    assert said.startswith("The answer is complete, ")
    assert page.get("log").get_attribute("aria-busy") == "false"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    env = {"SPECLLAMA_API_KEY": "right-key"}
    with (
        Server(tmp_path_factory.mktemp("keyed"), "-np", "1", env=env) as server,
        browser(server.url) as found,
    ):
        yield found


def test_the_key_is_asked_for_wrong_and_right(keyed: Page) -> None:
    keyed.open()
    field = keyed.get("textbox", "API key")
    assert keyed.get("dialog", "This server needs an API key").is_displayed()
    field.send_keys("wrong-key", Keys.ENTER)
    keyed.until(lambda: "That key is wrong" in keyed.text_of("#key-wrong"))
    keyed.get("textbox", "API key").send_keys("right-key", Keys.ENTER)
    keyed.until(lambda: "of" in keyed.text_of("#context-text"))
    assert keyed.ask("Anything", grammar='root ::= "Yes."') == "Yes."
    assert all("right-key" not in value for value in keyed.js("return Object.values(localStorage)"))
    keyed.driver.refresh()
    keyed.until(lambda: "of" in keyed.text_of("#context-text"))
    assert not keyed.all("dialog")
    keyed.driver.switch_to.new_window("tab")
    keyed.driver.get(keyed.url)
    keyed.until(lambda: keyed.all("dialog", "This server needs an API key"))
