"""The chat in a real browser: what people do with it, by the roles and names of its elements."""

from __future__ import annotations

from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.support.browser import ENDLESS, Page, needs_chromium, written
from tests.support.serving import QUESTION, Server

pytestmark = needs_chromium()


MARKDOWN = (
    "# Title\n\nSome **bold** and `code`.\n\n- one\n- two\n\n```python\nprint(1 < 2)\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n1. first\n2. second\n\nThe end."
)


def test_markdown(page: Page) -> None:
    page.ask("Anything", **written(MARKDOWN))
    shape = page.js(
        "const b = document.querySelector('.answer .body');"
        "const t = (s) => [...b.querySelectorAll(s)].map(e => e.textContent.trim());"
        "return [t('h1'), t('strong'), t('p code'), t('ul li'), t('pre'), t('td'), t('ol li'), t('p').at(-1)]"
    )
    assert shape == [
        ["Title"], ["bold"], ["code"], ["one", "two"], ["print(1 < 2)"], ["1", "2"], ["first", "second"],
        "The end.",
    ]  # fmt: skip
    assert [b.accessible_name for b in page.all("button", "Copy python")] == ["Copy python"]


def test_an_answer_equals_the_server_s(page: Page, chat_server: Server) -> None:
    asked = {"seed": 5, "temperature": 0.5, "max_tokens": 40}
    text = chat_server.chat(QUESTION, **asked).json["choices"][0]["message"]["content"]
    page.ask(QUESTION[0]["content"], **asked)
    (stored,) = page.stored
    assert stored["messages"][1]["content"] == text
    assert stored["messages"][1]["trace"]["runs"][-1][0] == len(text)


def test_stop_keeps_the_text_and_continue_goes_on(page: Page) -> None:
    page.write("What does os.walk do?", **ENDLESS)
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    page.press("Stop")
    page.until_done()
    (text,) = page.answers
    assert "Stopped." in page.text_of(".answer")
    used = page.used
    assert used > 5
    page.driver.refresh()
    page.until(lambda: page.used == used, "the tokens after a reload")
    page.add(max_tokens=30, ignore_eos=True)
    page.press("Continue")
    page.until(lambda: len(page.answers[-1]) > len(text))
    page.until_done()
    assert page.answers[0].startswith(text[:20])
    assert len(page.answers) == 1


def test_an_answer_goes_on_when_the_page_was_closed(page: Page) -> None:
    page.write("What does os.walk do?", **ENDLESS)
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    text = page.answers[-1][:20]
    page.ready()
    page.press("What does os.walk do?")
    page.until(lambda: page.answers and page.answers[0].startswith(text))
    page.until_done()
    (answer,) = page.stored[0]["messages"][1:]
    assert answer["content"].startswith(text)
    assert answer["outcome"] == ""


def test_the_context_is_counted_while_an_answer_is_written(page: Page) -> None:
    page.write("What does os.walk do?", **ENDLESS)
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    first = page.until(lambda: page.used)
    assert page.js("return !document.getElementById('stop').hidden")
    assert "Ask again" not in page.text_of("#log")
    page.until(lambda: page.used > first)
    page.press("Stop")
    page.until_done()
    assert page.used > first
    stopped = page.used
    page.add(**ENDLESS)
    page.press("Continue")
    page.until(lambda: page.used > stopped)
    page.press("Stop")
    page.until_done()


def test_escape_stops(page: Page) -> None:
    page.write("What does os.walk do?", **ENDLESS)
    page.until(lambda: page.answers and page.answers[-1])
    page.get("textbox", "Message").send_keys(Keys.ESCAPE)
    page.until_done()
    assert "Stopped." in page.text_of(".answer")


def test_regenerate(page: Page) -> None:
    page.ask("Say something", **written("First."))
    page.add(**written("Second."))
    page.press("Regenerate")
    page.until(lambda: page.answers == ["Second."])
    assert page.questions == ["Say something"]


def test_edit_and_send_again(page: Page) -> None:
    page.ask("One", **written("A."))
    page.ask("Two", **written("B."))
    page.until(lambda: page.all("button", "Edit"))[0].click()
    field = page.get("textbox", "Edit the question")
    assert field.get_attribute("value") == "One"
    page.add(**written("C."))
    field.send_keys(" more", Keys.ENTER)
    page.until(lambda: page.answers == ["C."])
    assert page.questions == ["One more"]


def test_copy(page: Page) -> None:
    page.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": page.url},
    )
    page.ask("Anything", **written("Copy **me**."))
    page.press("Copy the answer")
    page.until(lambda: page.js("return navigator.clipboard.readText()") == "Copy **me**.")


def test_settings_show_the_server_s_defaults_and_are_kept(page: Page, chat_server: Server) -> None:
    defaults = chat_server.get("/props").json["default_generation_settings"]["params"]
    page.press("Settings")
    for name, field in (("Temperature", "temperature"), ("Top k", "top_k"), ("Min p", "min_p")):
        shown = page.get("spinbutton", name).get_attribute("placeholder")
        assert shown is not None
        assert float(shown) == defaults[field]
    page.get("spinbutton", "Longest answer").send_keys("7")
    page.get("spinbutton", "Temperature").send_keys("0")
    page.get("textbox", "System prompt").send_keys("Be brief.")
    page.press("Save")
    page.add(ignore_eos=True)
    page.write("What does os.walk do?", ignore_eos=True)
    page.until(lambda: "set to 7 tokens" in page.text_of(".answer"))
    assert "7 tokens" in page.text_of(".answer .figures")
    page.ready()
    page.js("document.querySelector('.choose').click()")
    page.press("Settings")
    assert page.get("spinbutton", "Longest answer").get_attribute("value") == "7"
    assert page.get("textbox", "System prompt").get_attribute("value") == "Be brief."


def test_reasoning_is_folded(page: Page) -> None:
    answer = page.ask("Anything", **written("<think>\nTwo is small.\n</think>\n\nIt is 2."))
    assert answer == "It is 2."
    assert "Two is small." not in page.text_of(".answer")
    page.press("Reasoning")
    assert "Two is small." in page.text_of(".answer .thoughts")


def test_conversations_are_kept_and_chosen_and_deleted(page: Page) -> None:
    page.ask("First question", **written("One."))
    page.press("New conversation")
    page.ask("Second question", **written("Two."))
    page.ready()
    page.press("First question")
    page.until(lambda: page.answers == ["One."])
    page.press("Second question")
    page.until(lambda: page.answers == ["Two."])
    page.press("Delete First question")
    page.until(lambda: not page.all("button", "First question"))
    page.ready()
    assert [b.text for b in page.all("button", "Second question")] == ["Second question"]


def test_export_and_import(page: Page, tmp_path: Path) -> None:
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    page.ask("Keep this", **written("Kept."))
    figures = page.text_of(".figures")
    assert "token" in figures
    page.press("Export")
    file = tmp_path / "specllama-conversations.json"
    page.until(lambda: file.exists() and file.stat().st_size > 0)
    page.open("/page/icon.svg")
    page.forget()
    page.ready()
    assert not page.all("button", "Keep this")
    page.js("document.getElementById('import-file').hidden = false")
    page.driver.find_element("id", "import-file").send_keys(str(file))
    page.until(lambda: "1 conversation imported" in page.notice)
    page.press("Dismiss")
    assert not page.notice
    page.press("Keep this")
    page.until(lambda: page.answers == ["Kept."])
    assert page.text_of(".figures") == figures
    page.until(lambda: not page.notice)
    page.driver.find_element("id", "import-file").send_keys(str(file))
    page.until(lambda: page.notice == "0 conversations imported. 1 there already.")
    assert len(page.all("button", "Keep this")) == 1
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    page.driver.find_element("id", "import-file").send_keys(str(broken))
    page.until(lambda: "no JSON" in page.notice)


def test_two_tabs_lose_nothing(page: Page) -> None:
    page.ask("Shared", **written("One."))
    first = page.new_tab()
    second = page.driver.current_window_handle
    try:
        page.press("Shared")
        page.until(lambda: page.answers == ["One."])
        page.write("From the second tab", **ENDLESS)
        page.until(lambda: len(page.answers) == 2 and page.answers[1])
        page.driver.switch_to.window(first)
        page.until(lambda: page.questions == ["Shared", "From the second tab"])
        page.ask("From the first tab", max_tokens=8)
        page.driver.switch_to.window(second)
        page.js("document.getElementById('stop').click()")  # if it has not ended
        page.until_done()
        page.until(lambda: len(page.stored[0]["all"]) == 6)
        for window in (first, second):
            page.driver.switch_to.window(window)
            page.ready()
            page.press("Shared")
            texts = [message["content"] for message in page.stored[0]["all"].values()]
            assert {"Shared", "One.", "From the second tab", "From the first tab"} < set(texts)
            assert len(page.all("button", "Shared")) == 1
    finally:
        page.driver.switch_to.window(second)
        page.driver.close()
        page.driver.switch_to.window(first)


def test_a_question_that_is_too_long_is_explained(page: Page) -> None:
    page.js("document.getElementById('question').value = 'word '.repeat(4000)")
    page.get("textbox", "Message").send_keys(Keys.ENTER)
    page.until(lambda: "the context holds" in page.notice)
    assert "Start a new conversation" in page.notice
    assert page.all("button", "Try again")
    assert not page.all("button", "Leave out the oldest turns")  # there are none
    assert any("400" in line for line in page.complaints)  # the browser's own line about the status


def test_a_full_context_is_explained(page: Page) -> None:
    page.write("What does os.walk do?", ignore_eos=True)
    page.until(lambda: "The context is full" in page.notice, seconds=150)
    assert "The context is full, which ended the answer." in page.text_of(".answer .outcome")
    assert "of 2,048 tokens" in page.text_of("#context-text")
    used = int(page.text_of("#context-text").split()[0].replace(",", ""))
    assert used > 2000


def test_what_is_not_sent_yet_counts_where_it_is_long(page: Page) -> None:
    """Files, and long texts that are typed: the gauge shows the tokens of the request that would be sent."""
    page.ask("One", **written("A."))
    used = page.used
    field = page.get("textbox", "Message")
    field.send_keys("a few words")
    page.js("return new Promise((resolve) => setTimeout(resolve, 900))")
    assert page.used == used
    assert "more than 2,000 characters" in page.js("return document.querySelector('.gauge').title")
    page.js(
        "const all = new DataTransfer(); all.items.add(new File(['some words '.repeat(300)], 'a.txt'));"
        "document.querySelector('main').dispatchEvent("
        "  new DragEvent('drop', { dataTransfer: all, bubbles: true, cancelable: true }))"
    )
    page.until(lambda: "tokens with this message" in page.text_of("#context-text"))
    counted = page.used
    assert counted > used + 300
    page.press("New conversation")
    page.until(lambda: page.text_of("#context-text").startswith("0 of "))
    page.press("One")
    page.until(lambda: page.used == counted)
    page.press("Send")
    page.until(lambda: len(page.answers) == 2)
    page.until_done()
    (stored,) = page.stored
    assert abs(stored["messages"][-1]["prompt"] - counted) < 3
    assert "with this message" not in page.text_of("#context-text")
    field.send_keys("x")
    page.js(
        "const field = document.getElementById('question'); field.value = 'word '.repeat(2500);"
        "field.dispatchEvent(new Event('input'))"
    )
    page.until(lambda: "longer than the context" in page.notice)
    assert not page.all("button", "Leave out the oldest turns")  # it is too long alone
    page.press("Dismiss")
    send = page.driver.find_element("id", "send")
    assert send.get_attribute("aria-disabled") == "true"
    send.click()
    page.until(lambda: "longer than the context" in page.notice)
    assert len(page.questions) == 2
    page.js(
        "const field = document.getElementById('question'); field.value = 'word '.repeat(900);"
        "field.dispatchEvent(new Event('input'))"
    )
    assert send.get_attribute("aria-disabled") is None, "it is not known whether it would be refused now"
    page.until(lambda: page.all("button", "Leave out the oldest turns"))
    page.js(
        "const field = document.getElementById('question'); field.value = '';"
        "field.dispatchEvent(new Event('input'))"
    )
    page.until(lambda: page.notice == "" and "with this message" not in page.text_of("#context-text"))


def test_an_empty_answer_says_why(page: Page) -> None:
    page.ask("Anything", grammar='root ::= "Yes."', stop=["Y", "No"])
    assert page.text_of(".answer .outcome") == 'The answer is empty: the stop text "Y" came first.'
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    page.ask("Anything", grammar='root ::= ""')
    assert page.text_of(".answer .outcome") == "The answer is empty: the model ended it at once."
    page.driver.refresh()
    page.until(lambda: "at once" in page.text_of(".answer .outcome"))
    assert page.ask("Again", **written("Yes.")) == "Yes."
    assert "empty" not in page.text_of(".answer:last-of-type .outcome")


def test_what_is_empty_is_not_sent_without_a_word(page: Page) -> None:
    """An edited question, by Enter and by the button, and the prompt of a race."""
    page.ask("One", **written("A."))
    page.press("Edit the question")
    field = page.get("textbox", "Edit the question")
    field.send_keys(Keys.CONTROL, "a", Keys.DELETE)
    for press in (
        lambda: field.send_keys(Keys.ENTER),
        lambda: page.js("document.querySelector('.edit .primary').click()"),
    ):
        press()
        assert page.js("return arguments[0].matches(':user-invalid')", field)
        assert page.driver.switch_to.active_element == field
    field.send_keys("Two", Keys.ENTER)
    page.until(lambda: page.questions == ["Two"])
    page.until_done()
    page.press("Race")
    prompt = page.get("textbox", "Prompt")
    prompt.clear()
    page.press("Start the race")
    assert page.js("return arguments[0].matches(':user-invalid')", prompt)
    page.press("Close")
