"""Rounds in slow motion, figures that explain themselves and agree, and what comes before the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.support.browser import AXE, Page, browser, needs_chromium
from tests.support.serving import Server

pytestmark = needs_chromium()
LONG = {"ignore_eos": True, "max_tokens": 60, "seed": 3, "temperature": 0}


def test_the_empty_page_shows_what_speculation_is(page: Page) -> None:
    page.until(lambda: "the text stays the model's own" in page.text_of("#intro"), "the sentence")
    page.until(lambda: page.js("return document.querySelectorAll('#intro .struck').length"), "a wrong token")
    page.until(
        lambda: page.js("return document.querySelectorAll('#intro .snap').length"), "the target's token"
    )
    page.get("textbox", "Message").send_keys("W")
    shown = page.js("return document.querySelector('#intro .player-text').textContent")
    assert shown == "A hash table stores each value under a key, so that it is found at once."
    page.get("textbox", "Message").send_keys(Keys.BACKSPACE)
    page.ask("Hello", max_tokens=4)
    assert page.text_of("#intro") == ""
    page.press("New conversation")
    page.until(lambda: "What does it gain here?" in page.text_of("#intro"))


def test_the_empty_page_without_motion(page: Page) -> None:
    page.emulate(prefers_reduced_motion="reduce")
    page.ready()
    page.until(lambda: page.text_of("#intro"))
    still = [page.js("return document.querySelector('#intro .player-text').innerHTML") for _ in range(3)]
    assert len(set(still)) == 1
    assert "struck" in still[0]


def test_an_answer_is_played_round_by_round(page: Page) -> None:
    answer = page.ask("Explain os.walk.", **LONG)
    (stored,) = page.stored
    rounds = stored["messages"][1]["trace"]["rounds"]
    lost = [len(one[5]) if len(one) > 5 else 0 for one in rounds]
    assert any(lost)
    assert all(n <= one[0] - one[1] for n, one in zip(lost, rounds, strict=True))
    page.press("Play the rounds")
    page.until(
        lambda: page.js("return document.querySelectorAll('dialog .player-text .ghost').length"), "a draft"
    )
    page.until(
        lambda: page.js("return document.querySelectorAll('dialog .player-text .struck').length"),
        "a wrong token",
    )
    page.press("Pause")
    slider = page.get("slider", "Decode")
    wrong = next(i for i, n in enumerate(lost) if n)
    page.js(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", slider, wrong + 1
    )
    struck = "".join(
        page.js(
            "return [...document.querySelectorAll('dialog .player-text .struck')].map(e => e.textContent)"
        )
    )
    assert struck == "".join(text for text, _ in rounds[wrong][5])
    assert f"struck out: {struck}" in page.js("return document.querySelector('.player-said').textContent")
    slider.send_keys(Keys.END)
    kept = "[...document.querySelectorAll('dialog .player-text span:not(.struck)')].map(e => e.textContent)"
    assert "".join(page.js(f"return {kept}")).split() == answer.split()
    page.press("Close")


def test_the_tip_of_a_round_has_what_was_rejected(page: Page) -> None:
    page.ask("What is the difference between a list and a tuple?", **LONG)
    rounds = page.stored[0]["messages"][1]["trace"]["rounds"]
    wrong = next(i for i, one in enumerate(rounds) if len(one) > 5)
    page.until(lambda: page.js("return document.querySelectorAll('.body [data-round]').length"))
    part = page.driver.find_element("css selector", f'.body [data-round="{wrong}"]')
    ActionChains(page.driver).move_to_element(part).perform()
    page.until(lambda: "rejected: " in page.text_of("#tip"))


def test_every_figure_explains_itself(page: Page) -> None:
    page.ask("What does shutil.copytree do?", **LONG)
    terms = page.js("return [...document.querySelectorAll('#panel .term')].map(e => e.textContent)")
    assert {"tokens/s", "over plain", "accepted", "tokens a round", "first token", "prompt"} <= set(terms)
    for name in terms:
        find = "find(e => e.textContent === arguments[0])"
        page.js(f"[...document.querySelectorAll('#panel .term')].{find}.focus()", name)
        page.until(lambda: len(page.text_of("#explanation")) > 40, name)
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert page.text_of("#explanation") == ""
    part = page.driver.find_element("css selector", ".figures span[data-explain=rate]")
    ActionChains(page.driver).move_to_element(part).perform()
    page.until(lambda: page.text_of("#explanation").startswith("Tokens per second "))
    page.js("document.querySelector('.figures').focus()")
    page.until(lambda: page.text_of("#explanation").startswith("Tokens: "))
    if AXE.exists():
        assert page.violations() == []


def test_figures_agree_with_one_another(page: Page) -> None:
    """Of an answer that was stopped and continued: all its tokens, all its rounds."""
    page.ask("What does shutil.copytree do?", **{**LONG, "max_tokens": 30})
    first = page.stored[0]["messages"][1]["figures"]
    page.add(**{**LONG, "max_tokens": 26})
    page.press("Continue")
    page.until(lambda: page.stored[0]["messages"][1]["figures"]["n"] > first["n"], "more")
    page.until_done()
    figures = page.stored[0]["messages"][1]["figures"]
    assert (first["n"], figures["n"]) == (30, 56)
    assert figures["rounds"] > first["rounds"]
    assert page.text_of(".figures").startswith("56 tokens · ")
    assert page.text_of(".stepper output") == f"{figures['rounds']} rounds"
    panel = page.text_of("#panel")
    assert f"56 tokens, {figures['rounds']} rounds" in panel
    assert f"{figures['accepted']} of {figures['drafted']}" in panel
    assert "so far" not in panel
    page.ready()
    page.until(lambda: "New conversation" in page.text_of("#list"))


PAINTED = "return [...document.querySelectorAll('.body [data-round]')].map(e => e.outerHTML).join('')"
FORGET_ROUNDS = """
const done = arguments[0];
const request = indexedDB.open("specllama");
request.onsuccess = () => {
  const all = request.result.transaction("messages", "readwrite");
  const walk = all.objectStore("messages").openCursor();
  walk.onsuccess = () => {
    if (!walk.result) return;
    walk.result.update({ ...walk.result.value, trace: undefined });
    walk.result.continue();
  };
  all.oncomplete = () => { request.result.close(); done(); };
};
"""


def test_the_rounds_are_there_after_a_reload(page: Page) -> None:
    page.ask("What is the difference between a list and a tuple?", **LONG)
    assert any(len(one) > 5 for one in page.stored[0]["messages"][1]["trace"]["rounds"])
    painted, panel = page.js(PAINTED), page.text_of("#panel .sources")
    assert 'data-round="1"' in painted
    page.driver.refresh()
    page.until(lambda: page.all("button", "Play the rounds"), "the rounds")
    assert page.js(PAINTED) == painted
    assert page.text_of("#panel .sources") == panel


def test_an_answer_goes_on_whose_rounds_are_lost(page: Page) -> None:
    """Its figures are of the part that is known, and its colours on the text that they are of."""
    text = page.ask("What does shutil.copytree do?", **LONG)
    page.open("/page/icon.svg")
    page.driver.execute_async_script(FORGET_ROUNDS)
    page.ready()
    page.press("What does shutil.copytree do?")
    page.until(lambda: "colours are gone" in page.text_of("#panel"))
    page.add(ignore_eos=True, max_tokens=1500)
    page.press("Continue")
    page.js("setTimeout(() => document.getElementById('stop').click(), 700)")
    page.until(lambda: len(page.answers[0]) > len(text) + 100)
    page.until_done()
    message = page.stored[0]["messages"][1]
    figures, trace = message["figures"], message["trace"]
    assert figures["rounds"] >= 1
    assert figures["accepted"] <= figures["drafted"]
    assert figures["stepped"] <= 5 * figures["rounds"]  # at most four draft tokens in each
    assert trace["runs"][0] == [len(text), "", -1] or trace["runs"][0][0] > 60
    n = page.js(
        "const body = document.querySelector('.answer .body');"
        "const first = body.querySelector('[data-round]');"
        "const range = document.createRange(); range.setStart(body, 0); range.setEndBefore(first);"
        "return range.toString().trim().length"
    )
    assert n > 0.9 * len(text)


def test_what_is_over_plain_says_where_plain_is_from(page: Page) -> None:
    page.ask("What does shutil.copytree do?", **{**LONG, "max_tokens": 200})
    figures = page.stored[0]["messages"][1]["figures"]
    line, panel = page.text_of(".figures"), page.text_of("#panel")
    if figures["speedup"] is None:
        assert not figures["drafted"] or figures["why"] in panel
        assert "plain" not in line
        return
    assert figures["speedup"] <= (figures["n"] - 1) / figures["rounds"] + 1e-9
    assert re.search(r"\d\.\d\d× plain|gain unclear|about as fast as plain", line)
    assert re.search(r"\d\.\d\d – \d\.\d\d, plain measured (in this answer|before)", panel)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, Server]]:
    """A server with one slot."""
    folder = tmp_path_factory.mktemp("narrow")
    with Server(folder, "-np", "1", "--draft-max", "2") as one, browser(one.url, folder) as page:
        yield page.ready(), one


def test_the_place_in_the_queue_and_the_prompt(narrow: tuple[Page, Server]) -> None:
    page, server = narrow
    server.begin(prompt="def ", stream=True, ignore_eos=True, max_tokens=400)
    server.until(lambda: server.samples()["specllama_texts_running"] == 1)
    page.write("Is it me?", max_tokens=4)
    page.until(lambda: "this request is the next" in page.text_of(".prefill"), "the place in the queue")
    server.hang_up()
    page.until_done()
    assert page.text_of(".prefill") == ""
    seen = page.js(
        "window.seen = []; const look = () => { const t = document.querySelector('.prefill')?.textContent;"
        "if (t) window.seen.push(t); }; const what = {childList: true, subtree: true, characterData: true};"
        "new MutationObserver(look).observe(document.getElementById('log'), what); return window.seen"
    )
    assert seen == []
    page.ask("def f():\n    return 1\n" * 120, max_tokens=4)
    seen = page.js("return window.seen")
    assert any(re.match(r"Reading the prompt: [\d,]+ of [\d,]+ tokens \(\d+ %\)", text) for text in seen), (
        seen
    )
    panel = page.text_of("#panel")
    assert re.search(r"first token\n[\d.]+ (ms|s)", panel)
    assert re.search(r"prompt\n[\d.,]+/s\n[\d,]+ tokens read", panel)
