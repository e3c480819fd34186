"""Where the keyboard goes on after a button that its action takes away, replaces or disables."""

from __future__ import annotations

from selenium.webdriver.common.keys import Keys

from tests.support.browser import ENDLESS, Page, needs_chromium, written

pytestmark = needs_chromium()


def type_enter(page: Page, name: str, n: int = -1) -> None:
    """Press the nth of the buttons with this name as the keyboard does."""
    page.until(lambda: page.all("button", name))[n].send_keys(Keys.ENTER)


def until_at(page: Page, name: str) -> None:
    """Wait until what is called so has the focus."""
    page.until(lambda: focused(page) == name, f"the focus at {name!r}, not {focused(page)!r}", 10)


def focused(page: Page) -> str:
    return str(page.driver.switch_to.active_element.accessible_name)


def test_after_buttons_of_messages(page: Page) -> None:
    page.ask("One", **written("A."))
    page.ask("Two", **written("B."))
    type_enter(page, "Delete the answer", 0)
    until_at(page, "Undo")
    type_enter(page, "Undo")
    until_at(page, "Message")
    page.until(lambda: page.answers == ["A.", "B."])
    type_enter(page, "Delete the question", 0)
    until_at(page, "Undo")
    type_enter(page, "Dismiss")
    until_at(page, "Message")
    page.add(**written("C."))
    type_enter(page, "Regenerate")
    until_at(page, "Message")
    page.until(lambda: page.answers[-1:] == ["C."])
    page.until_done()
    type_enter(page, "Edit the answer")
    until_at(page, "Edit the answer")
    page.driver.switch_to.active_element.send_keys(" and", Keys.ENTER)
    page.until(lambda: page.answers[-1:] == ["C. and"])
    until_at(page, "Edit the answer")
    assert page.driver.switch_to.active_element.tag_name == "button"
    page.add(**written(" so on"))
    type_enter(page, "Continue")
    until_at(page, "Message")
    page.until(lambda: page.answers[-1:] == ["C. and so on"])
    page.until_done()


def test_after_a_question_that_waits(page: Page) -> None:
    page.js(
        "window.answers = ({ signal }) => new Promise((resolve, reject) => signal.addEventListener("
        "  'abort', () => reject(new DOMException('aborted', 'AbortError'))));"
    )
    page.write("Anything")
    page.until(lambda: page.all("button", "Stop"))
    type_enter(page, "Stop")
    until_at(page, "Message")
    page.js("window.answers = null")
    page.add(**written("Yes."))
    page.until(lambda: page.all("button", "Ask again"))
    type_enter(page, "Ask again")
    until_at(page, "Message")
    page.until(lambda: page.answers == ["Yes."])
    page.until_done()


def test_the_versions_keep_the_focus_on_the_arrow(page: Page) -> None:
    """At the last version too, where the arrow does nothing more; of answers and of questions."""
    page.ask("One", **written("A."))
    for text in ("B.", "C."):
        page.add(**written(text))
        page.press("Regenerate")
        page.until(lambda due=text: page.answers == [due])
        page.until_done()
    for name, texts in (("Previous version", ["B.", "A.", "A."]), ("Next version", ["B.", "C.", "C."])):
        page.get("button", name)
        page.js("document.querySelector(`[aria-label='${arguments[0]}']`).focus()", name)
        for text in texts:
            page.driver.switch_to.active_element.send_keys(Keys.ENTER)
            page.until(lambda due=text: page.answers == [due])
            assert focused(page) == name
    arrow = page.get("button", "Next version")
    assert arrow.get_attribute("aria-disabled") == "true"
    page.press("Edit the question")
    page.add(**written("D."))
    page.get("textbox", "Edit the question").send_keys(" more", Keys.ENTER)
    page.until(lambda: page.answers == ["D."])
    page.until_done()
    type_enter(page, "Previous version", 0)
    page.until(lambda: page.questions == ["One"])
    assert focused(page) == "Previous version"


def test_in_the_list(page: Page) -> None:
    for name in ("First", "Second", "Third"):
        page.press("New conversation")
        page.until(lambda: page.answers == [])
        page.ask(name, **written(f"{name}."))
    type_enter(page, "Delete Second")
    until_at(page, "First")  # the next one
    type_enter(page, "Delete First")
    until_at(page, "Third")
    type_enter(page, "More for Third")
    type_enter(page, "Rename")
    field = page.get("textbox", "Name of the conversation")
    field.send_keys(" changed", Keys.ESCAPE)
    until_at(page, "Third")
    type_enter(page, "More for Third")
    type_enter(page, "Rename")
    page.get("textbox", "Name of the conversation").send_keys(Keys.CONTROL, "a")
    page.get("textbox", "Name of the conversation").send_keys("Other", Keys.ENTER)
    until_at(page, "Other")
    type_enter(page, "Delete Other")  # the one that is shown
    until_at(page, "Message")


def test_after_files_are_removed(page: Page) -> None:
    page.js(
        "const all = new DataTransfer();"
        "for (const name of ['a.txt', 'b.txt']) all.items.add(new File(['words'], name));"
        "document.querySelector('main').dispatchEvent("
        "  new DragEvent('drop', { dataTransfer: all, bubbles: true, cancelable: true }))"
    )
    page.until(lambda: "b.txt" in page.text_of("#files"))
    type_enter(page, "Remove a.txt")
    until_at(page, "Remove b.txt")
    type_enter(page, "Remove b.txt")
    until_at(page, "Message")


def test_in_the_race(page: Page) -> None:
    page.press("Race")
    page.add(ignore_eos=True, pause=50)
    type_enter(page, "Start the race")
    page.until(lambda: "Pair 1" in page.text_of(".race"))
    assert focused(page) == "Start the race"
    type_enter(page, "Start the race")  # which does nothing more
    type_enter(page, "Stop and judge")
    page.until(lambda: "Stopped before both had run once" in page.text_of(".race"))
    until_at(page, "Start the race")
    page.press("Close")
    until_at(page, "Race")


def test_in_the_view_of_speculation_while_an_answer_is_written(page: Page) -> None:
    """The figures are drawn again and again, and those of the status too."""
    page.write("Long", **ENDLESS)
    page.until(lambda: page.all("button", "tokens a round"))
    page.js("document.querySelectorAll('#panel .term')[3].focus()")
    page.js("return new Promise((resolve) => setTimeout(resolve, 900))")
    assert focused(page).startswith("tokens a round")
    page.press("Stop")
    page.until_done()
    page.press("Status")
    page.until(lambda: page.all("region", "Slots"))
    page.js("document.querySelector('#dialog .scroll').focus()")
    page.js("return new Promise((resolve) => setTimeout(resolve, 2500))")
    assert focused(page) == "Slots"
    page.press("Close")
