"""What somebody wrote, and what was written for them, is kept: whatever fails, is stopped, or comes late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import ENDLESS, Page, browser, needs_chromium, written
from tests.support.serving import Server

pytestmark = needs_chromium()
# The next requests for an answer are refused, or never answered until they are aborted.
BUSY = """
window.answers = () => new Response(
  JSON.stringify({ error: { message: "too many requests", type: "rate_limit_error" } }),
  { status: 429, headers: { "content-type": "application/json" } },
);
"""
SILENT = """
window.answers = ({ signal }) => new Promise((resolve, reject) => {
  signal.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError")));
});
"""


def contents(page: Page) -> list[str]:
    """The texts of all stored messages, shown or not, in the order in which they were made."""
    found = [message for one in page.stored for message in one["all"].values()]
    return [message["content"] for message in sorted(found, key=lambda message: message["at"])]


def test_an_answer_stays_when_another_one_is_refused(page: Page) -> None:
    page.ask("Say something", **written("A good answer."))
    page.js(BUSY)
    page.press("Regenerate")
    page.until(lambda: "Too many requests" in page.notice)
    assert page.answers == ["A good answer."]
    assert contents(page) == ["Say something", "A good answer."]
    page.js("window.answers = null")
    page.add(**written("Another one."))
    page.press("Try again")
    page.until(lambda: page.answers == ["Another one."])
    page.until_done()
    page.press("Previous version")
    page.until(lambda: page.answers == ["A good answer."])
    page.ready()
    page.press("Say something")
    page.until(lambda: page.answers == ["A good answer."])
    page.press("Next version")
    page.until(lambda: page.answers == ["Another one."])


def test_an_answer_stays_when_another_one_is_stopped_before_it_begins(page: Page) -> None:
    page.ask("Say something", **written("A good answer."))
    page.js(SILENT)
    page.press("Regenerate")
    page.until(lambda: page.all("button", "Stop"))
    page.press("Stop")
    page.until(lambda: "Stopped before the first token." in page.notice)
    assert page.answers == ["A good answer."]
    assert contents(page) == ["Say something", "A good answer."]


def test_an_answer_stays_when_it_cannot_be_continued(page: Page) -> None:
    page.write("What does os.walk do?", **ENDLESS)
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    page.press("Stop")
    page.until_done()
    (text,) = page.answers
    page.js(BUSY)
    page.press("Continue")
    page.until(lambda: "Too many requests" in page.notice)
    assert page.answers == [text]
    assert page.all("button", "Continue")


def test_a_question_that_is_changed_while_it_is_answered(page: Page) -> None:
    """What there is of the answer stays with its own question, and is not sent with the new one."""
    page.write("Old question", **ENDLESS)
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    page.press("Edit the question")
    page.note_requests()
    page.add(**written("New answer."))
    field = page.get("textbox", "Edit the question")
    field.clear()
    field.send_keys("New question", Keys.ENTER)
    page.until(lambda: page.answers == ["New answer."])
    page.until_done()
    (sent,) = page.js("return window.sent")
    assert sent["messages"] == [{"role": "user", "content": "New question"}]
    assert page.questions == ["New question"]
    (stored,) = page.stored
    assert [m["content"] for m in stored["messages"]] == ["New question", "New answer."]
    old = next(m for m in stored["all"].values() if m.get("outcome") == "Stopped.")
    assert stored["all"][old["parent"]]["content"] == "Old question"


def test_a_conversation_that_is_deleted_while_it_is_written_stays_away(page: Page) -> None:
    page.write("Delete this", **ENDLESS)
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    page.press("Delete Delete this")
    page.until(lambda: not page.all("button", "Delete this"))
    page.js("return new Promise((resolve) => setTimeout(resolve, 3000))")
    assert page.stored == []
    assert not page.all("button", "Delete this")
    page.ready()
    assert not page.all("button", "Delete this")


def test_an_answer_that_is_deleted_comes_back_by_undo(page: Page) -> None:
    page.ask("One", **written("A."))
    page.ask("Two", **written("B."))
    page.until(lambda: page.all("button", "Delete the question"))[0].click()
    page.until(lambda: page.questions == ["Two"])
    page.press("Undo")
    page.until(lambda: page.questions == ["One", "Two"])
    assert page.answers == ["A.", "B."]
    page.ready()
    page.press("One")
    page.until(lambda: page.answers == ["A.", "B."])


def test_deleting_twice_is_deleting_once(page: Page) -> None:
    page.ask("One", **written("A."))
    page.ask("Two", **written("B."))
    page.until(lambda: page.all("button", "Delete the question"))
    page.js("const [one] = document.querySelectorAll('[aria-label=\"Delete the question\"]');"
            "one.click(); one.click();")  # fmt: skip
    page.until(lambda: page.questions == ["Two"])
    page.js("const undo = [...document.querySelectorAll('#notice button')]"
            ".find((one) => one.textContent === 'Undo'); undo.click(); undo.click();")  # fmt: skip
    page.until(lambda: page.questions == ["One", "Two"])
    assert page.answers == ["A.", "B."]
    assert len(page.stored[0]["all"]) == 4


def test_a_question_without_an_answer_is_not_sent_with_the_next_one(page: Page) -> None:
    page.js(BUSY)
    page.write("Nobody answers this")
    page.until(lambda: "Too many requests" in page.notice)
    page.js("window.answers = null")
    page.note_requests()
    assert page.ask("This one", **written("Yes.")) == "Yes."
    page.ask("And this", **written("Too."))
    roles = [[message["role"] for message in body["messages"]] for body in page.js("return window.sent")]
    assert roles == [["user"], ["user", "assistant", "user"]]
    assert page.questions == ["Nobody answers this", "This one", "And this"]
    assert "no answer, so it is not sent" in page.text_of(".question .note")


def test_the_oldest_turns_are_left_out_when_somebody_says_so(page: Page) -> None:
    for n in range(3):
        page.js("document.getElementById('question').value = arguments[0]", f"{n} {'word ' * 440}")
        page.get("textbox", "Message").send_keys(Keys.ENTER)
        page.until(lambda: page.all("button", "Stop") or page.answers or page.notice)
        page.until_done()
        page.add(**written("Yes."))
    page.until(lambda: page.all("button", "Leave out the oldest turns"))
    questions, notice = page.questions, page.notice
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    assert page.notice == ""
    page.press("0 word")
    page.until(lambda: page.notice == notice)
    page.press("Leave out the oldest turns")
    page.until(lambda: "left out of requests" in page.text_of(".note.above"))
    page.until_done()
    assert page.questions == questions
    assert page.js("return document.querySelectorAll('.message.out').length") > 0
    page.press("Include them")
    page.until(lambda: page.js("return document.querySelectorAll('.message.out').length") == 0)
    page.complaints  # noqa: B018 - the browser's line about the status


def long_turn(page: Page, n: int, words: int) -> None:
    """A question of so many words, answered with one."""
    page.ask(f"{n} {'word ' * words}\nend", **written("Yes."))


def test_the_notice_of_the_full_context_goes_when_there_is_room(page: Page) -> None:
    """By leaving out, by deleting, and until what takes the room is there again; dismissed, it stays away."""
    full = "The context is almost full: an answer ends when it is."
    for n in range(3):
        long_turn(page, n, 310)
    page.until(lambda: page.notice == full)
    used = page.used
    page.press("Dismiss")
    for _ in range(2):
        page.js("document.getElementById('speculate').click()")  # all is shown again
    assert page.notice == ""
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    assert page.notice == ""
    page.press("0 word")
    page.until(lambda: page.notice == full)
    page.press("Leave out the oldest turns")
    page.until(lambda: page.used < 0.9 * used and page.notice == "")
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    page.press("0 word")
    page.until(lambda: len(page.answers) == 3)
    page.js("return new Promise((resolve) => setTimeout(resolve, 900))")
    assert page.used < 0.9 * used
    assert page.notice == ""
    page.press("Include them")
    page.until(lambda: page.notice == full)
    assert abs(page.used - used) < 10
    page.until(lambda: page.all("button", "Delete the question"))[0].click()
    page.until(lambda: page.used < 0.9 * used)
    assert page.notice == "The question is deleted."
    page.press("Undo")
    page.until(lambda: page.notice == full)
    page.until(lambda: page.all("button", "Dismiss"))
    page.press("Dismiss")
    page.press("Edit the question")
    page.press("Cancel")
    assert page.notice == ""


def test_an_answer_that_ended_in_a_full_context_says_so_until_there_is_room(page: Page) -> None:
    """Of made-up answers that end where the context is full."""
    page.js(
        "window.answers = () => new Response(["
        "  { choices: [{ index: 0, delta: { content: 'Yes' } }] },"
        "  { choices: [{ index: 0, delta: {}, finish_reason: 'length' }] },"
        "  { choices: [], usage: { completion_tokens: 1, prompt_tokens: 2047, total_tokens: 2048 } },"
        "].map((event) => `data: ${JSON.stringify(event)}\\n\\n`).join('') + 'data: [DONE]\\n\\n',"
        "{ headers: { 'content-type': 'text/event-stream' } })"
    )
    for n in range(2):
        page.write(f"{n}")
        page.until(lambda due=n + 1: len(page.answers) == due)
        page.until_done()
    page.until(lambda: "which ended the answer" in page.notice)
    assert not page.all("button", "Continue")
    page.until(lambda: page.all("button", "Delete the question"))[0].click()
    page.until(lambda: page.notice == "The question is deleted." and page.used < 100)
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    page.press("0")
    page.until(lambda: len(page.answers) == 2)
    assert page.notice == ""


def test_a_question_that_is_deleted_while_it_is_answered(page: Page) -> None:
    """Its answer is stopped; Undo brings the question back, with what there is of the answer."""
    page.ask("First", **written("One."))
    page.write("Long", **ENDLESS)
    page.until(lambda: len(page.answers) == 2 and len(page.answers[-1]) > 20)
    page.until(lambda: page.all("button", "Delete the question"))[-1].click()
    page.until(lambda: page.questions == ["First"])
    assert page.notice == "The question is deleted; what was being written is stopped."
    begun = page.answers[-1]
    assert not page.all("button", "Stop")
    page.press("Undo")
    page.until(lambda: page.questions == ["First", "Long"])
    assert page.answers == ["One.", begun]
    assert page.all("button", "Continue")
    page.ready()
    page.press("First")
    page.until(lambda: page.questions == ["First", "Long"])
    assert page.answers[-1].startswith(begun[:20])
    page.js(SILENT)
    page.write("Nothing yet")
    page.until(lambda: page.all("button", "Stop"))
    page.until(lambda: page.all("button", "Delete the question"))[-1].click()
    page.until(lambda: "what was being written is stopped" in page.notice)
    page.press("Undo")
    page.until(lambda: page.questions == ["First", "Long", "Nothing yet"])
    assert page.all("button", "Ask again")


@pytest.fixture
def blocked(chat_server: Server) -> Iterator[Page]:
    """A page in a browser that lets it store nothing."""
    with browser(chat_server.url) as page:
        source = (
            "for (const name of ['localStorage', 'sessionStorage', 'indexedDB'])"
            "Object.defineProperty(window, name, { get() { throw new DOMException('', 'SecurityError'); } });"
        )
        page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
        yield page


def test_a_browser_that_stores_nothing(blocked: Page) -> None:
    page = blocked.ready()
    assert page.ask("First", **written("One.")) == "One."
    assert "does not let the page store anything" in page.notice
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    assert page.ask("Second", **written("Two.")) == "Two."
    page.press("First")
    page.until(lambda: page.answers == ["One."])
    page.press("Settings")
    page.get("spinbutton", "Longest answer").send_keys("7")
    page.press("Save")
    page.press("Settings")
    assert page.get("spinbutton", "Longest answer").get_attribute("value") == "7"
    assert page.complaints == []


def test_a_full_storage_loses_nothing_that_is_shown(page: Page) -> None:
    page.ask("First", **written("One."))
    page.js(
        "window.put = IDBObjectStore.prototype.put;"
        "IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); };"
    )
    assert page.ask("Second", **written("Two.")) == "Two."
    page.until(lambda: "storage is full" in page.notice)
    assert page.all("button", "Export this conversation")
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    assert page.ask("Elsewhere", **written("There.")) == "There."
    page.press("First")
    page.until(lambda: page.answers == ["One.", "Two."])
    page.press("Elsewhere")
    page.until(lambda: page.answers == ["There."])
    page.press("First")
    page.until(lambda: page.answers == ["One.", "Two."])
    page.js("IDBObjectStore.prototype.put = window.put")
    page.ask("Third", **written("Three."))
    page.press("Elsewhere")
    page.until(lambda: page.answers == ["There."])
    page.ask("Again", **written("Here."))
    page.ready()
    page.press("First")
    page.until(lambda: page.answers == ["One.", "Two.", "Three."])


def test_odd_entries_and_those_of_the_first_version(page: Page) -> None:
    """What an older page has stored is taken over; what nobody can read stays, and disturbs nothing."""
    page.open("/page/icon.svg")
    page.js(
        "const old = (id, content) => localStorage.setItem(`specllama.conversation.${id}`, content);"
        "old('one', JSON.stringify({ id: 'one', title: 'Old talk', system: 'Be brief.',"
        "  created: 1, changed: 2,"
        "  revision: 4, messages: [{ role: 'user', content: 'Hello' }, { role: 'assistant', content: 'Hi.',"
        "  trace: { runs: [[3, 'copy', 0]], rounds: [[1, 1, 2.5, 2]] }, figures: { n: 2 } }, 7,"
        "  { role: 'user', content: 'And?' }, { role: 'assistant', content: 'So.' }] }));"
        "localStorage.setItem('specllama.title.one', JSON.stringify(['Old talk', 2]));"
        "localStorage.setItem('specllama.title.two', '{');"
        "localStorage.setItem('specllama.settings', '[[');"
        "old('two', '{'); old('three', 'null'); old('four', '{\"messages\": 3}');"
    )
    page.ready()
    page.press("Old talk")
    page.until(lambda: page.answers == ["Hi.", "So."])
    assert page.questions == ["Hello", "And?"]
    assert page.js("return localStorage.getItem('specllama.conversation.one')") is None
    assert page.js("return localStorage.getItem('specllama.conversation.two')") == "{"
    assert page.ask("More", **written("Yes.")) == "Yes."
    assert page.stored[0]["system"] == "Be brief."
    page.ready()
    page.press("Old talk")
    page.until(lambda: page.answers == ["Hi.", "So.", "Yes."])


def test_a_storage_of_a_newer_version(page: Page) -> None:
    page.open("/page/icon.svg")
    page.driver.execute_async_script(
        "const done = arguments[0]; const r = indexedDB.open('specllama', 99);"
        "r.onsuccess = () => { r.result.close(); done(); };"
    )
    page.ready()
    assert page.ask("First", **written("One.")) == "One."
    assert "a newer specllama" in page.notice


def test_a_key_of_other_letters(tmp_path: Path) -> None:
    """A key with letters beyond Latin-1 is one as any other; a wrong one costs one request, not hundreds."""
    with (
        Server(tmp_path, "-np", "1", env={"SPECLLAMA_API_KEY": "schlüssel-ключ"}) as server,
        browser(server.url) as page,
    ):
        page.open()
        page.get("textbox", "API key").send_keys("ключ", Keys.ENTER)
        page.until(lambda: "That key is wrong" in page.text_of("#key-wrong"))
        n = page.js(
            "return performance.getEntriesByType('resource').filter(e => !e.name.includes('/page/')).length"
        )
        assert n < 8
        page.get("textbox", "API key").send_keys("schlüssel-ключ", Keys.ENTER)
        page.until(lambda: "of" in page.text_of("#context-text"))
        assert page.ask("Anything", **written("Yes.")) == "Yes."


def test_a_model_that_cannot_be_loaded_leaves_no_figures(page: Page) -> None:
    page.js(
        "const f = window.fetch; window.fetch = (path, options) => {"
        "  if (!String(path).includes('/props')) return f(path, options);"
        "  return Promise.resolve(new Response(JSON.stringify({ error: { message: 'the file is broken' } }),"
        "    { status: 500 })); };"
    )
    page.choose_model(page.model)
    page.until(lambda: "cannot be used. The file is broken" in page.text_of("#panel .state"))
    assert page.text_of("#context-text") == ""
    assert page.text_of("#panel svg") == ""


def test_a_conversation_that_is_deleted_comes_back_by_undo(page: Page) -> None:
    """The one that is shown, with what was typed in it and what there is of its answer; and another one."""
    page.ask("Other", **written("A."))
    page.press("New conversation")
    page.until(lambda: page.answers == [])
    page.write("This one", **ENDLESS)
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    begun = page.answers[-1][:20]
    page.get("textbox", "Message").send_keys("typed")
    page.press("Delete This one")
    page.until(lambda: page.notice == '"This one" is deleted.' and page.answers == [])
    assert page.get("textbox", "Message").get_attribute("value") == ""
    page.until(lambda: [one["title"] for one in page.stored] == ["Other"])
    page.press("Undo")
    page.until(lambda: page.answers and page.answers[0].startswith(begun))
    assert page.get("textbox", "Message").get_attribute("value") == "typed"
    assert page.all("button", "Continue")
    page.press("Delete Other")
    page.until(lambda: page.notice == '"Other" is deleted.' and not page.all("button", "Other"))
    page.press("Undo")
    page.until(lambda: page.all("button", "Other"))
    page.ready()
    assert [b.text for b in page.all("button", "This one") + page.all("button", "Other")] == [
        "This one",
        "Other",
    ]


def test_what_is_asked_in_a_conversation_that_another_tab_has_deleted_is_kept(page: Page) -> None:
    """A question, and what goes on with an answer."""
    page.ask("Shared", **written("One."))
    first = page.new_tab()
    second = page.driver.current_window_handle
    try:
        for n in range(2):
            page.driver.switch_to.window(second)
            page.until(lambda: page.all("button", "Delete Shared"))
            page.press("Delete Shared")
            page.until(lambda: page.stored == [])
            page.driver.switch_to.window(first)
            page.until(lambda: "has been deleted in another tab" in page.notice)
            page.add(**written("Two."))
            if n:
                page.press("Regenerate the answer")
                page.until(lambda: "kept, since you went on" in page.notice)
                page.until_done()
            else:
                page.ask("More", **written("Two."))
            page.until(lambda: page.stored and not page.all("button", "Stop"))
            page.ready()
            page.press("Shared")
            page.until(lambda: page.answers == ["One.", "Two."])
            assert page.questions == ["Shared", "More"]
    finally:
        page.driver.switch_to.window(second)
        page.driver.close()
        page.driver.switch_to.window(first)
