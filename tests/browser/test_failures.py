"""What the page does when something fails: the engine is killed, the server ends, models are loaded."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama.data import EMBEDDED_TARGET
from tests.support.browser import ENDLESS, Page, browser, needs_chromium
from tests.support.hub_cache import put
from tests.support.serving import Server

pytestmark = needs_chromium()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Server, Page]]:
    """A server and a browser of one test."""
    with Server(tmp_path, "--draft-max", "4", "-np", "1") as server, browser(server.url) as page:
        yield server, page.ready()


def test_the_engine_is_killed_in_the_middle_of_an_answer(own: tuple[Server, Page]) -> None:
    server, page = own
    page.write("What does os.walk do?", **ENDLESS)
    page.until(lambda: page.answers and len(page.answers[-1]) > 40)
    os.kill(server.engine().pid, signal.SIGKILL)
    page.until(lambda: page.all("button", "Continue the answer"), "the offer to continue")
    (text,) = page.answers
    assert len(text) > 40
    assert "engine" in page.text_of(".answer .outcome")
    assert page.notice == "The engine is back."
    assert page.stored[0]["messages"][1]["content"].strip().startswith(text[:30].split("\n")[0])
    page.add(max_tokens=30, ignore_eos=True)
    page.press("Continue the answer")
    page.until(lambda: len(page.answers[-1]) > len(text))
    page.until_done()
    assert page.answers[0].startswith(text[:30])
    assert page.ask("And now?", grammar='root ::= "Yes."') == "Yes."


def test_the_server_ends_and_comes_back(own: tuple[Server, Page], tmp_path: Path) -> None:
    server, page = own
    page.write("What does os.walk do?", **ENDLESS)
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    server.process.kill()
    server.process.wait()
    page.until(lambda: "the server does not answer" in page.notice)
    (text,) = page.answers
    again = tmp_path / "again"
    again.mkdir()
    with Server(again, "--draft-max", "4", "--port", str(server.port)):
        page.until(lambda: page.all("button", "Continue the answer"))
        assert page.answers == [text]
        assert page.ask("And now?", grammar='root ::= "Yes."') == "Yes."


def test_another_model_is_chosen_in_the_menu(tmp_path: Path) -> None:
    put(tmp_path / "hub", "me/pair", "pair-Q4_0.gguf", EMBEDDED_TARGET.read_bytes())
    environ = {"SPECLLAMA_MODEL": None, "HF_HUB_CACHE": str(tmp_path / "hub")}
    flags = "-c", "512", "-np", "1", "--models-max", "1"
    with Server(tmp_path, *flags, env=environ) as server, browser(server.url) as page:
        page.ready()
        assert page.model == "pydoc-target"
        page.choose_model("me/pair")
        page.until(lambda: "me/pair" in page.js("return document.getElementById('announcer').textContent"))
        page.until(lambda: server.get("/v1/models").json["data"][0]["id"] == "me/pair:Q4_0")
        page.until(lambda: page.js("return document.getElementById('loading').hidden"))
        assert page.ask("Anything", grammar='root ::= "Yes."') == "Yes."
        assert server.samples()["specllama_texts_total"] == 1
        page.press("Status")
        page.until(lambda: "of 1 busy" in page.text_of("#dialog-body"))


_LOADING = """
const list = window.fetch;
window.loading = 0;
window.fetch = async (path, options) => {
  if (new URL(path, location).pathname !== "/v1/models") return list(path, options);
  const known = await (await list(path, options)).json();
  if (window.loading < 0) return new Response(JSON.stringify(known));
  known.data[0].status = { value: "loading", ...(window.loading ? { progress: window.loading } : {}) };
  return new Response(JSON.stringify(known));
};
"""


def test_the_progress_of_a_load_is_shown(tmp_path: Path) -> None:
    """At first without a value, then with those that the server gives, until the model is in memory."""
    with Server(tmp_path, "-np", "1") as server, browser(server.url) as page:
        script = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _LOADING})
        page.open()
        bar = "const b = document.getElementById('loading'); "
        page.until(lambda: page.js(f"{bar} return !b.hidden && b.position === -1"))
        for progress in (0.25, 0.75):
            page.js("window.loading = arguments[0]", progress)
            page.until(lambda due=progress: page.js(f"{bar} return !b.hidden && b.value === {due}"))
        page.js("window.loading = -1")
        page.until(lambda: page.js(f"{bar} return b.hidden"))
        page.until(lambda: "of" in page.text_of("#context-text"))
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_a_page_that_is_opened_before_the_model_is_loaded(tmp_path: Path) -> None:
    """The page waits, and shows the progress of the load."""
    big = tmp_path / "big.gguf"
    shutil.copy(EMBEDDED_TARGET, big)
    with Server(tmp_path, "-m", str(big), "-np", "1") as server, browser(server.url) as page:
        os.kill(server.engine().pid, signal.SIGSTOP)
        try:
            page.open()
            assert page.until(lambda: page.get("textbox", "Message")).is_displayed()
        finally:
            os.kill(server.engine().pid, signal.SIGCONT)
        page.until(lambda: "of" in page.text_of("#context-text"))


def test_what_the_server_says_becomes_a_sentence(page: Page) -> None:
    """The names of fields keep their letters, and numbers are written as on the rest of the page."""
    cases = [
        ({"message": "max_tokens must be at most 5", "param": "max_tokens"}, "max_tokens must be at most 5."),
        ({"message": "stop: at most 4 texts", "param": "stop"}, "stop: at most 4 texts."),
        (
            {"message": "messages[0].content is missing", "param": "messages"},
            "messages[0].content is missing.",
        ),
        ({"message": "-c is too large"}, "-c is too large."),
        ({"message": "specllama is too old"}, "specllama is too old."),
        ({"message": "the file is broken"}, "The file is broken."),
        ({"message": "Already one."}, "Already one."),
        (
            {"code": "context_length_exceeded", "n_prompt_tokens": 12345, "n_ctx": 8192},
            "The conversation has 12,345 tokens, and the context holds 8,192.",
        ),
    ]
    said = page.driver.execute_async_script(
        "const [errors, done] = arguments; import('/page/api.js').then(({ problemOf }) =>"
        " done(errors.map((error) => problemOf(400, error).message)))",
        [error for error, _ in cases],
    )
    assert said == [text for _, text in cases]


def test_counts_are_written_as_people_write_them(page: Page) -> None:
    figures = {"n": 1, "rate": 5, "drafted": 1, "accepted": 1}
    many = {"n": 12345, "rate": 5, "drafted": 23456, "accepted": 23456}
    said = page.driver.execute_async_script(
        "const [figures, done] = arguments; import('/page/figures.js').then(({ summary }) =>"
        " done(figures.map(summary)))",
        [figures, many],
    )
    assert said == [
        "1 token · 5 tokens/s · 100 % of 1 draft token accepted",
        "12,345 tokens · 5 tokens/s · 100 % of 23,456 draft tokens accepted",
    ]


def test_a_question_asked_while_the_server_was_gone(own: tuple[Server, Page], tmp_path: Path) -> None:
    server, page = own
    page.write("What does os.walk do?", **ENDLESS)
    page.until(lambda: page.answers and len(page.answers[-1]) > 20)
    server.process.kill()
    server.process.wait()
    page.until(lambda: "the server does not answer" in page.notice)
    page.write("And now?", grammar='root ::= "Yes."')
    page.until(lambda: page.questions[-1:] == ["And now?"] and "the server does not answer" in page.notice)
    again = tmp_path / "again"
    again.mkdir()
    with Server(again, "--draft-max", "4", "--port", str(server.port)):
        page.until(lambda: page.notice == "The engine is back.")
        assert not page.all("button", "Continue the answer")
        page.press("Try again")
        page.until(lambda: page.answers[-1:] == ["Yes."])
        page.until_done()
