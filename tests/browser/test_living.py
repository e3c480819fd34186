"""A chat that one lives in: addresses, answers in the background, names, search, versions, drafts, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import ENDLESS, Page, needs_chromium, written

pytestmark = needs_chromium()
HOSTILE = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\u202e\n[x](javascript:hacked=1)'
)


def drop(page: Page, name: str, data: str, kind: str = "") -> None:
    """Drop a file of these bytes (as Latin-1) on the conversation."""
    page.js(
        "const [name, data, type] = arguments; const all = new DataTransfer();"
        "all.items.add(new File([Uint8Array.from(data, (c) => c.charCodeAt(0))], name, { type }));"
        "document.querySelector('main').dispatchEvent("
        "  new DragEvent('drop', { dataTransfer: all, bubbles: true, cancelable: true }))",
        name, data, kind,
    )  # fmt: skip


def test_addresses(page: Page) -> None:
    page.ask("First", **written("One."))
    first = page.driver.current_url
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    page.ask("Second", **written("Two."))
    assert page.driver.current_url != first
    page.driver.back()
    page.until(lambda: page.answers == ["One."])
    page.driver.forward()
    page.until(lambda: page.answers == ["Two."])
    page.driver.refresh()
    page.until(lambda: page.answers == ["Two."])
    page.driver.get(first)
    page.until(lambda: page.answers == ["One."])
    assert "First" in page.driver.title
    page.js("document.querySelector('.skip').click()")
    assert page.driver.current_url == first
    page.driver.get(f"{page.url}/#/nothing")
    page.until(lambda: "no such conversation" in page.notice)
    page.js("history.replaceState(null, '', '#/<script>')")
    page.ready()


def test_an_answer_goes_on_while_another_conversation_is_open(page: Page) -> None:
    page.write("What does os.walk do?", **{**ENDLESS, "max_tokens": 400})
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    begun = page.answers[-1][:20]
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    page.press("What does os.walk do?")
    page.until(lambda: page.answers and page.answers[0].startswith(begun))
    page.press("New conversation")
    assert page.ask("Another one", **written("Meanwhile.")) == "Meanwhile."
    page.press("What does os.walk do?")
    page.until_done()
    (text,) = page.answers
    assert text.startswith(begun)
    assert "Stopped" not in page.text_of(".answer .outcome")
    assert "(writing)" not in page.text_of("#conversations")


def test_names_and_search(page: Page) -> None:
    page.ask("About llamas", **written("They spit."))
    page.press("New conversation")
    page.ask("About bees", **written("They sting."))
    page.press("More for About llamas")
    page.press("Rename")
    field = page.get("textbox", "Name of the conversation")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(HOSTILE.split("\n")[0], Keys.ENTER)
    page.until(lambda: page.all("button", "<img src=x"))
    search = page.get("textbox", "Search the conversations")
    search.send_keys("STING")
    page.until(lambda: not page.all("button", "<img"))
    assert page.all("button", "About bees")
    search.send_keys(" nowhere")
    page.until(lambda: "Nothing is found." in page.text_of("#list"))
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys("onerror")
    page.until(lambda: page.all("button", "<img"))
    page.ready()
    page.press("<img src=x")
    page.until(lambda: page.answers == ["They spit."])
    assert page.js("return window.hacked") is None


def test_versions_and_branches(page: Page) -> None:
    page.ask("One", **written("A."))
    page.ask("Two", **written("B."))
    page.add(**written("C."))
    page.until(lambda: page.all("button", "Regenerate"))[0].click()
    page.until(lambda: page.answers == ["C."])
    page.until_done()
    page.ask("Three", **written("D."))
    page.press("Previous version")
    page.until(lambda: page.answers == ["A.", "B."])
    page.press("Next version")
    page.until(lambda: page.answers == ["C.", "D."])
    assert page.questions == ["One", "Three"]
    page.driver.refresh()
    page.until(lambda: page.answers == ["C.", "D."])
    # An edited question is a version too, and the versions of its answers belong to it.
    page.until(lambda: page.all("button", "Edit"))[0].click()
    page.add(**written("E."))
    page.get("textbox", "Edit the question").send_keys(" more", Keys.ENTER)
    page.until(lambda: page.answers == ["E."])
    page.until_done()
    page.press("Previous version")
    page.until(lambda: page.answers == ["C.", "D."])
    assert page.text_of(".question .versions") == "‹\n1/2\n›"


def test_an_answer_is_edited_and_continued(page: Page) -> None:
    page.ask("Count", **written("one two three"))
    page.press("Edit the answer")
    field = page.get("textbox", "Edit the answer")
    field.clear()
    field.send_keys("uno due", Keys.ENTER)
    page.until(lambda: page.answers == ["uno due"])
    assert "edited by you" in page.text_of("#panel")
    page.note_requests()
    page.add(**written(" tre"))
    page.press("Continue")
    page.until(lambda: page.answers == ["uno due tre"])
    page.until_done()
    (sent,) = page.js("return window.sent")
    assert sent["messages"][-1] == {"role": "assistant", "content": "uno due"}
    page.press("Previous version")
    page.until(lambda: page.answers == ["one two three"])


def test_a_message_is_deleted(page: Page) -> None:
    page.ask("One", **written("A."))
    page.ask("Two", **written("B."))
    page.until(lambda: page.all("button", "Delete the answer"))[0].click()
    page.until(lambda: page.answers == ["B."])
    page.until(lambda: page.all("button", "Delete the question"))[0].click()
    page.until(lambda: page.questions == ["Two"])
    page.note_requests()
    page.ask("Three", **written("C."))
    (sent,) = page.js("return window.sent")
    assert [message["content"] for message in sent["messages"]] == ["Two", "B.", "Three"]
    page.driver.refresh()
    page.until(lambda: page.questions == ["Two", "Three"])


def test_drafts(page: Page) -> None:
    page.ask("First", **written("One."))
    page.get("textbox", "Message").send_keys("half a thought")
    drop(page, "note.txt", "some words")
    page.until(lambda: "note.txt" in page.text_of("#files"))
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    assert page.get("textbox", "Message").get_attribute("value") == ""
    page.get("textbox", "Message").send_keys("another")
    page.press("First")
    page.until(lambda: page.answers == ["One."])
    page.until(lambda: "note.txt" in page.text_of("#files"))
    assert page.get("textbox", "Message").get_attribute("value") == "half a thought"
    page.driver.refresh()
    page.until(lambda: "note.txt" in page.text_of("#files"))
    assert page.get("textbox", "Message").get_attribute("value") == "half a thought"
    page.ready()
    assert page.get("textbox", "Message").get_attribute("value") == "another"
    page.press("First")
    page.until(lambda: "note.txt" in page.text_of("#files"))
    page.add(**written("Two."))
    page.press("Send")
    page.until(lambda: page.answers == ["One.", "Two."])
    page.until_done()
    page.driver.refresh()
    page.until(lambda: page.answers == ["One.", "Two."])
    assert page.get("textbox", "Message").get_attribute("value") == ""
    assert page.text_of("#files") == ""


def test_files(page: Page) -> None:
    name = "<b onmouseover=hacked=1>\u202egpj.txt"
    drop(page, name, "def add(a, b):\r\n    return a + b\r\n", "text/plain")
    page.until(lambda: "onmouseover" in page.text_of("#files"))
    page.js(
        "const data = new DataTransfer(); data.setData('text/plain', 'pasted words '.repeat(400));"
        "document.getElementById('question').dispatchEvent("
        "  new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }))"
    )
    page.until(lambda: "pasted-1.txt" in page.text_of("#files"))
    page.press("Remove pasted-1.txt")
    page.until(lambda: "pasted-1.txt" not in page.text_of("#files"))
    page.note_requests()
    page.ask("What is this?", **written("A sum."))
    (sent,) = page.js("return window.sent")
    text = sent["messages"][0]["content"]
    assert text.endswith("---\ndef add(a, b):\n    return a + b\n\n\nWhat is this?")
    assert text.startswith("--- File: <b onmouseover=hacked=1> gpj.txt ---\n")
    assert page.questions == ["What is this?"]
    page.js("document.querySelector('.question summary').click()")
    page.until(lambda: "return a + b" in page.text_of(".question pre"))
    assert page.js("return document.querySelectorAll('.question b, .question script').length") == 0
    page.driver.refresh()
    page.until(lambda: page.answers == ["A sum."])
    assert "onmouseover" in page.text_of(".question .files")
    # A file can be left out when the question is asked again.
    page.press("Edit the question")
    page.press("Remove <b onmouseover=hacked=1> gpj.txt")
    page.js("document.querySelector('.edit .primary').click()")
    page.until(lambda: page.text_of(".question .files") == "" and page.questions == ["What is this?"])
    page.until_done()
    page.press("Previous version")
    page.until(lambda: "onmouseover" in page.text_of(".question .files"))


@pytest.mark.parametrize(
    ("name", "data", "kind", "said"),
    [
        ("a.png", "\x89PNG\r\n", "image/png", "the chosen model reads no images"),
        ("a.pdf", "%PDF-1.7", "application/pdf", "PDF files are not read"),
        ("a.bin", "\x00\x01\xff", "", "it is not a text file"),
        ("a.mp3", "ID3", "audio/mpeg", "no sound and no video"),
        ("empty.txt", "", "text/plain", "it is empty"),
    ],
)
def test_files_that_are_refused(page: Page, name: str, data: str, kind: str, said: str) -> None:
    drop(page, name, data, kind)
    page.until(lambda: said in page.notice)
    assert page.text_of("#files") == ""


def test_a_file_that_is_too_large(page: Page) -> None:
    drop(page, "one.txt", "words " * 2**19, "text/plain")
    assert not page.notice.endswith("remove some.")
    drop(page, "two.txt", "words " * 2**18, "text/plain")
    page.until(lambda: "a request holds at most 4 MiB: remove some." in page.notice)
    page.press("Remove one.txt")
    page.press("Remove two.txt")
    page.js(
        "const all = new DataTransfer();"
        "all.items.add(new File(['x'.repeat(4 * 2 ** 20 + 1)], 'huge.txt', { type: 'text/plain' }));"
        "all.items.add(new File(['words '.repeat(2 ** 19)], 'big.txt', { type: 'text/plain' }));"
        "document.querySelector('main').dispatchEvent("
        "  new DragEvent('drop', { dataTransfer: all, bubbles: true, cancelable: true }))"
    )
    page.until(lambda: "huge.txt is not attached" in page.notice)
    page.until(lambda: "big.txt" in page.text_of("#files"))
    page.write("Read it")
    page.until(lambda: "bytes" in page.notice or "context holds" in page.notice)
    assert page.questions == ["Read it"]
    page.driver.refresh()
    page.until(lambda: page.all("button", "Read it"))
    page.complaints  # noqa: B018 - the browser's line about the status


def given(page: Page, tmp_path: Path, content: Any) -> None:
    """Import a file of this content."""
    file = tmp_path / "given.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    page.js("document.getElementById('import-file').hidden = false")
    page.driver.find_element("id", "import-file").send_keys(str(file))


def test_one_conversation_as_files(page: Page, tmp_path: Path) -> None:
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    page.ask("Keep / this", **written("Kept."))
    page.add(**written("Again."))
    page.press("Regenerate")
    page.until(lambda: page.answers == ["Again."])
    page.until_done()
    page.press("More for Keep / this")
    page.press("Export Keep / this")
    file = tmp_path / "Keep-this.json"
    page.until(lambda: file.exists() and file.stat().st_size > 0)
    page.press("As Markdown")
    markdown = tmp_path / "Keep-this.md"
    page.until(lambda: markdown.exists() and markdown.stat().st_size > 0)
    assert markdown.read_text("utf-8") == (
        "# Keep / this\n\n## Question\n\nKeep / this\n\n## Answer (pydoc-target)\n\nAgain.\n"
    )
    page.open("/page/icon.svg")
    page.forget()
    page.ready()
    given(page, tmp_path, file.read_text("utf-8"))
    page.until(lambda: "1 conversation imported" in page.notice)
    page.press("Keep / this")
    page.until(lambda: page.answers == ["Again."])
    page.press("Previous version")
    page.until(lambda: page.answers == ["Kept."])


def test_hostile_files_of_conversations(page: Page, tmp_path: Path) -> None:
    circle = [
        {"role": "user", "content": HOSTILE, "id": "a", "parent": "c", "at": 1},
        {"role": "assistant", "content": HOSTILE, "id": "b", "parent": "a", "at": 1, "figures": {"n": HOSTILE,
         "rate": "x", "speedup": "y", "drafted": {}, "accepted": []}, "report": {"figures": 3, "timings": 1}},
        {"role": "user", "content": "c", "id": "c", "parent": "b", "at": "x", "files": [{"name": HOSTILE,
         "text": HOSTILE}, 3, {"name": 1}]},
        {"role": "assistant", "content": "end", "id": "d", "parent": "c", "trace": {"runs": [[1, {}, 3]],
         "rounds": [["x"]]}, "reasoning": {}, "outcome": {"a": 1}, "model": ["m"], "tokens": "many"},
        {"role": "assistant", "content": "end", "id": "d", "parent": "nowhere"},
        {"role": "system", "content": "s"}, 7, None, {"role": "user", "content": {}},
    ]  # fmt: skip
    content = {
        "format": "specllama.conversations",
        "version": 2,
        "conversations": [
            {"id": "../../x", "title": HOSTILE, "system": {}, "leaf": "a", "messages": circle},
            {"id": "__proto__", "title": {"a": 1}, "messages": []}, 3, None, {"messages": "x"},
        ],
    }  # fmt: skip
    given(page, tmp_path, content)
    page.until(lambda: "2 conversations imported" in page.notice)
    assert "In 1, messages could not be read or followed themselves" in page.notice
    assert page.notice.endswith("3 could not be read.")
    page.js("[...document.querySelectorAll('.choose')].find(b => b.textContent.startsWith('<img')).click()")
    page.until(lambda: page.answers)
    assert page.js("return window.hacked") is None
    assert page.js("return document.querySelectorAll('.message :is(img, script)').length") == 0
    assert page.ask("More", **written("Yes.")) == "Yes."
    for trace in (
        {"runs": [[1e9, "model", 0]], "rounds": [[1, 1, 2.5, 1]]},
        {"runs": [[3, "model", 0], [1, "copy", 0]], "rounds": [[1, 1, 2.5, 1]]},
        {"runs": [[3, "model", 99999]], "rounds": [[1, 1, 2.5, 1]]},
        {"runs": [[3, "model", 0]], "rounds": [[1e9, 1e9, 2.5, 1]]},
        {"runs": [[3, "model", 0]], "rounds": [[-1, 0.5, 2.5, 1], [1, 1, 1, 1, 1e15]]},
    ):
        answer = {"role": "assistant", "content": "abc", "trace": trace, "figures": {"n": 3}}
        one = {"id": "odd", "title": "Odd rounds", "messages": [{"role": "user", "content": "q"}, answer]}
        given(page, tmp_path, {"format": "specllama.conversations", "version": 1, "conversations": [one]})
        page.until(lambda: page.all("button", "Odd rounds"))
        page.press("Odd rounds")
        page.until(lambda: page.answers == ["abc"])
        assert not page.all("button", "Play the rounds")
        page.press("Delete Odd rounds")
        page.until(lambda: not page.all("button", "Odd rounds"))
    for bad, said in (
        ("{", "no JSON"), ({"format": "specllama.conversations", "version": 9, "conversations": []}, "newer"),
        ([], "no conversations"), ({"format": "specllama.conversations", "conversations": []}, "newer"),
    ):  # fmt: skip
        given(page, tmp_path, bad)
        page.until(lambda said=said: said in page.notice)


def test_search_looks_through_all_messages(page: Page, tmp_path: Path) -> None:
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": f"number {i}.", "id": f"m{i:03}", "at": i,
         "parent": f"m{i - 1:03}" if i else None}
        for i in range(350)
    ]  # fmt: skip
    one = {"id": "a", "title": "Many", "messages": messages}
    other = {"id": "b", "title": "Few", "messages": messages[:2]}
    given(page, tmp_path, {"format": "specllama.conversations", "version": 2, "conversations": [one, other]})
    page.until(lambda: "2 conversations imported" in page.notice)
    search = page.get("textbox", "Search the conversations")
    for words in ("NUMBER 349.", "number 199.", "number 100.", "number 99."):
        search.send_keys(words)
        page.until(lambda: page.all("button", "Many") and not page.all("button", "Few"), words)
        search.send_keys(Keys.CONTROL, "a", Keys.DELETE)
        page.until(lambda: page.all("button", "Few"))
    search.send_keys("number 350.")
    page.until(lambda: "Nothing is found." in page.text_of("#list"))


def test_presets_system_prompt_and_theme(page: Page) -> None:
    page.press("Settings")
    page.get("spinbutton", "Temperature").send_keys("0.33")
    page.get("spinbutton", "Longest time").send_keys("2.5")
    page.get("textbox", "Name of the preset").send_keys(HOSTILE.split("\n")[0])
    page.press("Save as preset")
    page.press("Server's defaults")
    assert page.get("spinbutton", "Temperature").get_attribute("value") == ""
    page.js("const m = document.getElementById('preset'); m.dispatchEvent(new Event('change'))")
    assert page.get("spinbutton", "Temperature").get_attribute("value") == "0.33"
    assert page.get("spinbutton", "Longest time").get_attribute("value") == "2.5"
    page.get("textbox", "System prompt").send_keys("Be brief.")
    page.js("document.getElementById('system-default').click()")
    page.js(
        "const m = document.getElementById('theme'); m.value = 'dark'; m.dispatchEvent(new Event('change'))"
    )
    page.press("Save")
    dark = page.js("return getComputedStyle(document.body).backgroundColor")
    page.ready()
    assert page.js("return getComputedStyle(document.body).backgroundColor") == dark
    page.note_requests()
    page.ask("Hello", **written("Hi."))
    (sent,) = page.js("return window.sent")
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent["temperature"], sent["t_max_predict_ms"]) == (0.33, 2500)
    page.press("Settings")
    page.get("combobox", "Preset")
    page.js(
        "const m = document.getElementById('preset'); m.selectedIndex = 1;"
        "m.dispatchEvent(new Event('change'))"
    )
    page.press("Delete preset")
    assert page.js("return document.getElementById('preset').length") == 1
    assert page.js("return window.hacked") is None


# An answer that never ends, a word at a time.
SLOW = r"""
window.answers = ({ signal }) => new Response(new ReadableStream({ start(controller) {
  const event = "data: " + JSON.stringify({ choices: [{ index: 0, delta: { content: "word " } }] });
  const timer = setInterval(() => controller.enqueue(new TextEncoder().encode(`${event}\n\n`)), 50);
  signal.addEventListener("abort", () => {
    clearInterval(timer);
    controller.error(new DOMException("aborted", "AbortError"));
  });
} }), { headers: { "content-type": "text/event-stream" } });
"""


def test_another_tab_goes_on_with_an_answer_of_a_closed_one(page: Page) -> None:
    page.js(SLOW)
    page.write("Say something")
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    first = page.new_tab()
    second = page.driver.current_window_handle
    page.press("Say something")
    page.until(lambda: page.answers and "word word" in page.answers[0])
    page.driver.switch_to.window(first)
    page.driver.close()
    page.driver.switch_to.window(second)
    page.until(lambda: len(page.stored[0]["messages"]) == 2 and page.stored[0]["messages"][1].get("tokens"))
    page.until_done()
    (stored,) = page.stored
    (answer,) = [m for m in stored["all"].values() if m["role"] == "assistant"]
    assert answer["content"].startswith("word word")
    assert page.answers[0].startswith("word word")


def test_an_answer_goes_on_whenever_the_page_is_left(page: Page) -> None:
    """Right after a part was stored, and before the first new text: it is the same version that goes on."""
    script = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SLOW})
    page.ready()
    page.write("Say something")
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    page.driver.refresh()
    page.until(lambda: page.answers and page.all("button", "Stop"), "that it goes on")
    page.js(
        "const put = IDBObjectStore.prototype.put; IDBObjectStore.prototype.put = function (one) {"
        "  if (one.writing && !window.left) { window.left = true; dispatchEvent(new Event('pagehide'));"
        "    Storage.prototype.setItem = () => {}; } return put.call(this, one); };"
    )
    page.until(lambda: page.js("return window.left"), "a part that is stored")
    page.ready()
    page.press("Say something")
    page.until(lambda: page.answers and page.all("button", "Stop"), "that it goes on again")
    assert len(page.stored[0]["all"]) == 2
    page.press("Stop")
    page.until_done()
    assert page.answers[0].startswith("word word")
    assert page.text_of(".answer .versions") == ""
    assert page.all("button", "Continue")
    page.press("Continue")
    page.until(lambda: page.all("button", "Stop"))
    page.driver.refresh()
    page.until(lambda: page.answers and page.all("button", "Stop"), "that what had not begun goes on")
    assert len(page.stored[0]["all"]) == 2
    page.driver.execute_cdp_cmd(
        "Page.removeScriptToEvaluateOnNewDocument", {"identifier": script["identifier"]}
    )
    page.press("Stop")
    page.until_done()


def test_two_tabs_have_drafts_of_their_own(page: Page) -> None:
    page.get("textbox", "Message").send_keys("the first")
    first = page.new_tab()
    second = page.driver.current_window_handle
    assert page.get("textbox", "Message").get_attribute("value") == ""
    page.get("textbox", "Message").send_keys("the second")
    page.driver.switch_to.window(first)
    page.ready()
    page.until(lambda: page.get("textbox", "Message").get_attribute("value") == "the first")
    page.driver.switch_to.window(second)
    page.ready()
    page.until(lambda: page.get("textbox", "Message").get_attribute("value") == "the second")
    page.driver.close()
    page.driver.switch_to.window(first)
    page.get("textbox", "Message").send_keys(Keys.CONTROL, "a", Keys.DELETE)
    page.ready()
    page.until(lambda: page.get("textbox", "Message").get_attribute("value") == "the second")


def test_back_from_the_address_of_a_deleted_conversation(page: Page) -> None:
    """It leads on to what was before, also from an address that is none, and not here again."""
    page.open("/page/icon.svg")
    page.ready()
    page.ask("First", **written("One."))
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    page.ask("Second", **written("Two."))
    page.press("Delete First")
    page.until(lambda: not page.all("button", "First"))
    page.driver.back()
    page.until(lambda: "no such conversation" in page.notice)
    page.driver.back()
    page.until(lambda: page.driver.current_url.endswith("icon.svg"))
    page.ready()


def test_escape_closes_what_is_open_and_does_not_stop_the_answer(page: Page) -> None:
    page.write("Long", **ENDLESS)
    page.until(lambda: page.answers and page.answers[-1])
    page.press("More for Long")
    page.get("button", "Rename").send_keys(Keys.ESCAPE)
    assert not page.all("button", "Rename")
    more = page.get("button", "More for Long")
    assert more.get_attribute("aria-expanded") == "false"
    assert page.js("return document.activeElement === arguments[0]", more)
    search = page.get("textbox", "Search the conversations")
    search.send_keys("nowhere")
    page.until(lambda: "Nothing is found." in page.text_of("#list"))
    search.send_keys(Keys.ESCAPE)
    page.until(lambda: page.all("button", "More for Long"))
    assert search.get_attribute("value") == ""
    assert page.all("button", "Stop")
    page.press("Stop")
    page.until_done()


@pytest.mark.parametrize("bad", [{"n": -5}, {"n": 5, "rate": 1e300}, {"n": 5, "nested": [{"a": -1}]}])
def test_imported_figures_that_cannot_be(page: Page, tmp_path: Path, bad: dict[str, Any]) -> None:
    good = {"n": 7, "rate": 3.5, "drafted": 2, "accepted": 1, "why": "text"}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "abc", "figures": good},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "abc", "figures": bad},
    ]
    one = {"id": "odd", "title": "O\u202edd", "messages": messages}
    given(page, tmp_path, {"format": "specllama.conversations", "version": 1, "conversations": [one]})
    page.until(lambda: page.all("button", "O dd"))
    page.press("O dd")
    page.until(lambda: page.answers == ["abc", "abc"])
    figures = page.driver.find_elements("css selector", ".figures")
    assert [found.text.split(" · ")[0] for found in figures] == ["7 tokens"]


def test_edits_that_are_not_sent_are_kept(page: Page) -> None:
    """Until they are cancelled, or their conversation is deleted."""
    page.ask("First", **written("One."))
    for name in ("Edit the question", "Edit the answer"):
        page.press(name)
        page.get("textbox", name).send_keys(" and more")
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    page.driver.back()
    page.until(lambda: page.answers == ["One."])
    page.driver.refresh()
    page.until(lambda: page.answers == ["One."])
    for name, text in (("Edit the question", "First"), ("Edit the answer", "One.")):
        page.press(name)
        assert page.get("textbox", name).get_attribute("value") == f"{text} and more"
    page.get("textbox", "Edit the question").send_keys(Keys.ESCAPE)
    page.press("Edit the question")
    assert page.get("textbox", "Edit the question").get_attribute("value") == "First"
    kept = "return Object.keys(localStorage).filter((key) => /^specllama.draft.\\w+\\./.test(key)).length"
    assert page.js(kept) == 1
    page.press("Delete First")
    page.until(lambda: page.js(kept) == 0)


def test_what_is_said_of_files_is_taken_back(page: Page) -> None:
    drop(page, "a.bin", "\x00\x01", "")
    page.until(lambda: "it is not a text file" in page.notice)
    drop(page, "a.txt", "some words")
    page.until(lambda: "a.txt" in page.text_of("#files") and not page.notice)
    page.press("Remove a.txt")
    drop(page, "exact.txt", "x" * 4 * 2**20, "text/plain")
    page.until(lambda: "B too large: a request holds at most 4 MiB: remove some." in page.notice)
    page.press("Remove exact.txt")
    page.until(lambda: not page.notice)
