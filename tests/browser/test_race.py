"""The race: pairs of runs until it is certain which is faster, and verdicts that the figures bear out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from specllama.core.gain import Gain, PlainRate, gain
from specllama.core.stats import RunStats
from tests.support.browser import ENDLESS, Page, browser, needs_chromium
from tests.support.serving import Server

pytestmark = needs_chromium()


def race(page: Page) -> str:
    page.press("Race")
    page.get("combobox", "Length").send_keys("64")
    page.add(ignore_eos=True)
    page.press("Start the race")
    page.until(lambda: page.text_of(".verdict"), "a verdict")
    return page.text_of(".verdict")


def test_the_race_confirms_the_text(page: Page) -> None:
    page.get("textbox", "Message").send_keys("What does shutil.copytree do?")
    said = race(page)
    assert "All texts are identical, 64 tokens." in said
    assert re.match(r"(Speculation won|Plain decoding won|No winner): ", said)
    pairs = int(re.match(r"(\d+) pairs of runs, alternating", page.text_of(".race > .hint"))[1])  # type: ignore[index]
    assert 3 <= pairs <= 9
    rates = re.search(
        r"plain (.+) \((\S+) tokens/s\), speculative (.+) \((\S+) tokens/s\): (\S+) ×",
        page.text_of(".race > .hint"),
    )
    assert rates is not None
    before, after = (float(rates[i].replace(",", "")) for i in (2, 4))
    assert abs(after / before / float(rates[5]) - 1) < 0.02
    plain, drafted = (page.get("region", f"{name} text").text for name in ("Plain", "Speculative"))
    assert plain == drafted != ""
    clocks = page.js("return [...document.querySelectorAll('.clock')].map(e => e.textContent)")
    assert all(clock.startswith("finished after ") for clock in clocks)
    for clock, seconds in zip(clocks, (rates[1], rates[3]), strict=True):
        shown, said_ = (
            float(t.split()[0]) * (0.001 if t.endswith("ms") else 1) for t in (clock[15:], seconds)
        )
        assert abs(shown - said_) < 0.01 * said_ + 0.0006  # the clock shows whole milliseconds
    page.press("Replay")
    page.until(lambda: page.get("button", "Replay").get_attribute("aria-disabled") == "false")
    page.press("Close")
    assert not page.all("dialog")


def test_the_race_without_motion(page: Page) -> None:
    page.emulate(prefers_reduced_motion="reduce")
    assert "identical" in race(page)


def test_stopped_in_the_first_run(page: Page) -> None:
    page.press("Race")
    page.add(ignore_eos=True, pause=50)
    page.press("Start the race")
    page.until(lambda: "Pair 1" in page.text_of(".race"), "the first run")
    page.press("Stop and judge")
    page.until(lambda: "Stopped before both had run once" in page.text_of(".race"))
    page.press("Close")


@pytest.fixture(scope="module")
def undrafted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("undrafted")
    with Server(folder, "--drafters", "none") as one, browser(one.url, folder) as page:
        yield page.ready()


def test_the_race_refuses_without_drafters(undrafted: Page) -> None:
    undrafted.press("Race")
    undrafted.press("Start the race")
    undrafted.until(
        lambda: (
            "Nothing is drafted here: drafting is switched off by --drafters none. "
            in undrafted.text_of(".race")
        )
    )
    assert "tokens/s" not in undrafted.text_of(".race")


def test_the_card_refuses_without_drafters(undrafted: Page) -> None:
    undrafted.ready().press("What does it gain here?")
    undrafted.until(lambda: "Nothing is drafted here: " in undrafted.text_of("#dialog-body"))


_JUDGED = """
const [pairs, done] = arguments;
import('/page/race.js').then(({judge}) => done(pairs.map((list) => {
  const {verdict, found, details} = judge(list);
  return [verdict, found.verdict, details];
})));
"""


def run(
    rate: float, text: str = "abc", n: int = 101, rounds: int = 50, drafted: int = 60, **more: Any
) -> dict[str, Any]:
    return {
        "seconds": (n - 1) / rate, "rate": rate, "n": n, "rounds": rounds,
        "drafted": drafted, "reason": "", "near_ties": 0, "text": text, "parts": [], "times": [], **more,
    }  # fmt: skip


def pairs_of(*rates: tuple[float, float], **more: Any) -> list[dict[str, Any]]:
    return [
        {"plain": run(plain, drafted=0, rounds=100), "speculative": run(fast, **more)}
        for plain, fast in rates
    ]


def test_the_verdict_is_honest(page: Page) -> None:
    """Of made-up times: who won, and why nobody did."""
    sure = [(10, 16), (10, 16.2), (10, 15.8)]
    cases = {
        "faster": pairs_of(*sure),
        "slower": pairs_of(*[(fast, plain) for plain, fast in sure]),
        "noise": pairs_of((10, 11.6), (10, 9), (10, 10.2)),
        "few": pairs_of(*sure[:2]),
        "undrafted": pairs_of(*sure, drafted=0, reason="no draft pays", rounds=100),
        "none accepted": pairs_of(*[(10, 11), (10, 11.1), (10, 11.2)], rounds=100),
        "too fast": pairs_of(*sure, rounds=85),
        "differing": pairs_of(*sure, text="abd", near_ties=1),
        "limited": pairs_of((10, 12), (10, 12.1), (10, 12.2), rounds=85),
        "busy": pairs_of(*sure, busy=True),
    }
    found = page.driver.execute_async_script(_JUDGED, list(cases.values()))
    said, verdicts, details = (dict(zip(cases, parts, strict=True)) for parts in zip(*found, strict=True))
    same = "All texts are identical, 101 tokens."
    assert said["faster"].startswith("Speculation won: 1.60 × (1.5")
    assert said["faster"].endswith(f", over 3 pairs of runs. {same}")
    assert details["faster"].endswith("plain 10 s (10 tokens/s), speculative 6.25 s (16 tokens/s): 1.60 ×.")
    assert details["undrafted"] == "3 pairs of runs, alternating."
    assert said["slower"].startswith("Plain decoding won: speculation had 0.63 × (0.59 – 0.67) its speed")
    assert re.match(
        r"No winner: 1\.\d\d × \(0\.\d\d – 1\.\d\d\) is too close to call, over 3 pairs of runs\. ",
        said["noise"],
    )
    assert said["few"].startswith("No winner: an interval needs 3 pairs of runs, and there are 2.")
    assert said["undrafted"] == f"No winner: nothing was drafted: no draft pays. {same}"
    assert said["none accepted"].startswith("No winner: at most 1.00 × ")
    limited = "limited to the tokens of a round, over 3 pairs of runs."
    figure = r"at most 1\.18 × \(\d\.\d\d – 1\.18\)"
    assert re.match(rf"No winner: {figure} is too close to call, {limited}", said["too fast"])
    assert re.match(rf"Speculation won: {figure}, {limited}", said["limited"])
    assert details["limited"].endswith(": 1.21 ×, more than the tokens of a round allow.")
    assert "Something else kept the machine busy" in said["busy"]
    assert "busy" not in said["faster"]
    assert said["differing"].endswith(
        "The texts differ from character 3 on, where two tokens were almost equally likely."
    )
    assert [verdicts[name] for name in ("faster", "slower", "noise", "none accepted")] == [
        "faster",
        "slower",
        "alike",
        "alike",
    ]


_COMPARED = """
const [cases, done] = arguments;
const both = [import('/page/gain.js'), import('/page/figures.js')];
Promise.all(both).then(([{compared}, {verdictOf}]) => done(cases.map(([speedup, tokens]) => {
  const found = compared(Array(4).fill([10, 10 * speedup]), {tokens, drafted: 5});
  return [found.speedup, found.verdict, verdictOf(found.speedup, found.low, found.high), found.limited];
})));
"""


def test_the_rule_is_that_of_the_server(page: Page) -> None:
    """Steady times: the page's verdict is that of core/gain.py, at each speed-up and tokens a round."""
    cases = [
        list(c)
        for c in product(
            (0.5, 0.97, 0.99, 1.0, 1.01, 1.05, 1.3, 1.62, 1.7, 2.0, 3.0), (1.0, 1.25, 1.5, 2.0, 4.0)
        )
    ]
    found = page.driver.execute_async_script(_COMPARED, cases)
    for (speedup, tokens), (shown, verdict, again, limited) in zip(cases, found, strict=True):
        stats = RunStats(n_predict=101, rounds=round(100 / tokens), decode_seconds=10 / speedup, n_drafted=9)
        here = gain(stats, PlainRate(10, "run", 50))
        assert verdict == again == here.verdict, (speedup, tokens)
        assert here.speedup is not None
        assert abs(shown - here.speedup) < 0.01  # rounds are whole
        assert limited == here.limited or abs(speedup / tokens - 1) < 0.01


_IN_WORDS = """
const [cases, done] = arguments;
import('/page/figures.js').then(({gainInWords}) => done(cases.map(
  ([speedup, low, high, why, limited, verdict]) =>
    gainInWords({speedup, low, high, verdict, limited, source: 'none', why, drafted: 1}))));
"""


def test_the_words_are_those_of_run(page: Page) -> None:
    busy = "the machine was busy with something else"
    gains = [
        Gain(1.63, 1.48, 1.79), Gain(0.8, 0.7, 0.9, busy), Gain(1.0, 0.95, 1.05), Gain(1.0, 0.8, 1.25),
        Gain(1.5, 1.2, 1.5, limited=True), Gain(3.0, 1.1, 8.0, busy), Gain(0.3, 0.1, 0.9),
        Gain(1, 0.9, 1, busy, True),
        Gain(reason="the answer was too short"), Gain(),
    ]  # fmt: skip
    cases = [[g.speedup, g.low, min(g.high, 1e9), g.reason, g.limited, g.verdict] for g in gains]
    found = page.driver.execute_async_script(_IN_WORDS, cases)
    assert [text.replace("×", "x").replace("–", "-") for text in found] == [g.in_words() for g in gains]


_RACES = """
const [spreads, n, done] = arguments;
import('/page/gain.js').then(({compared, isSettled, LEAST_PAIRS, MOST_OF_RACE, MOST_OF_TASK}) => {
  let state = 1; // mulberry32
  const uniform = () => {
    state = (state + 0x6D2B79F5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  const wins = (spread, most) => {
    const pairs = [];
    for (;;) {
      pairs.push([10, 10 * Math.exp(spread * normal())]);
      if (pairs.length < LEAST_PAIRS) continue;
      const found = compared(pairs, {tokens: 3, drafted: 9, most});
      if (isSettled(found) || pairs.length === most) return ['faster', 'slower'].includes(found.verdict);
    }
  };
  const share = (spread, most) => {
    let won = 0;
    for (let i = 0; i < n; i++) won += wins(spread, most);
    return won / n;
  };
  done(spreads.flatMap((spread) => [MOST_OF_RACE, MOST_OF_TASK].map((most) => share(spread, most))));
});
"""


def test_no_more_than_one_race_in_twenty_has_a_winner_by_chance(page: Page) -> None:
    """Made-up races and tasks of a card without any difference, by the spread of the log ratios."""
    won = page.driver.execute_async_script(_RACES, [0.02, 0.05, 0.1, 0.2], 10_000)
    assert max(won) <= 0.055, won  # 5 %, and two standard errors of 10,000 races
    assert max(won) > 0.03, won


_SHARED = """
const [given, done] = arguments;
const [race, card] = JSON.parse(given.replaceAll("HALF", "\\ud800"));
const textOf = (name) => fetch(`/page/${name}`).then((response) => response.text());
Promise.all([import('/page/race.js'), textOf('exhibit.js'), textOf('exhibit.css')]).then(
  ([{sharedFile}, code, style]) => done(encodeURIComponent(sharedFile(code, style, {race, card}))));
"""
HOSTILE = (
    "</script><img src=x onerror=\"document.title='bad'\"><!-- ]]> \u2028 {{ ${1+1} </main>"
    "<b>bold</b>\u0000HALF"
)


def shared(page: Page, tmp_path: Path, race: Any, card: Any) -> str:
    text = unquote(page.driver.execute_async_script(_SHARED, json.dumps([race, card])))
    file = tmp_path / "shared.html"
    file.write_text(text, "utf-8")
    assert page.complaints == []
    page.driver.get(file.as_uri())
    return text


def test_a_shared_file_replays_hostile_text(page: Page, tmp_path: Path) -> None:
    one = run(
        100,
        HOSTILE,
        parts=[[HOSTILE, "model"], ["!", "target"]],
        times=[[0.1, 5], [0.3, len(HOSTILE) + 1]],
        seconds=0.3,
    )
    task = {"name": HOSTILE, "speedup": 0.8, "low": 0.7, "high": 0.9, "said": "0.8 ×", "note": HOSTILE}
    told = {"prompt": HOSTILE, "verdict": f"Plain decoding won. {HOSTILE}", "details": HOSTILE, "props": None}
    told |= {"plain": one, "speculative": one, "settings": {"max_tokens": 9, "seed": 1}}
    text = shared(page, tmp_path, told, {"sentence": HOSTILE, "about": [HOSTILE], "tasks": [task]})
    assert "<img" not in text
    assert "http" not in text.replace("http-equiv", "")
    page.until(lambda: page.js("return document.querySelectorAll('.clock').length") == 2)
    page.until(lambda: "finished" in page.text_of(".clock"))
    assert page.js("return document.querySelectorAll('img, b, iframe').length") == 0
    assert page.js("return document.title") == "specllama: race and what drafts gain"
    # Half a character, which the driver cannot return, is in the text.
    assert page.js("return document.querySelector('.lane-text').textContent.includes('onerror=')")
    assert page.js("return document.querySelector('.verdict').textContent.startsWith('Plain decoding won')")
    page.press("Replay")
    page.until(lambda: page.get("button", "Replay").get_attribute("aria-disabled") == "false")
    assert page.complaints == []
    page.open("/page/icon.svg")


def test_a_race_is_saved_and_replays(page: Page, tmp_path_factory: pytest.TempPathFactory) -> None:
    page.emulate(prefers_reduced_motion="reduce")
    said = race(page)
    folder = tmp_path_factory.mktemp("saved")
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)}
    )
    page.press("Save as a file")
    (file,) = page.until(lambda: list(folder.glob("specllama-*.html")))
    text = page.text_of(".lane-text")
    page.driver.get(file.as_uri())
    page.until(lambda: "finished" in page.text_of(".clock"))
    assert page.text_of(".verdict") == said
    assert page.text_of(".lane-text") == text != ""
    assert "pydoc-target Q4_0" in page.text_of("main")
    assert "CPU with 1 thread" in page.text_of("main")
    assert page.complaints == []
    page.open("/page/icon.svg")


def test_a_card_claims_what_its_intervals_bear_out(page: Page) -> None:
    noisy = pairs_of((10, 20), (10, 6), (10, 12))
    cases = [
        pairs_of((10, 31), (10, 30), (10, 32), n=101, rounds=30),
        noisy,
        pairs_of((10, 10), (10, 10.1), (10, 9.9)),
    ]
    cases += [
        pairs_of((10, 8), (10, 8.1), (10, 7.9)),
        pairs_of((10, 10), (10, 10), drafted=0, reason="no draft pays"),
        [],
    ]
    rows = page.driver.execute_async_script(
        "const [cases, done] = arguments;"
        "import('/page/card.js').then(({rowOf}) => done(cases.map((pairs) => rowOf('edits', pairs))));",
        cases,
    )
    said = [row["said"] for row in rows]
    assert said == ["3.1 ×", "cannot tell", "1.0 ×", "0.8 ×", "not drafted", "not measured"]
    assert (rows[1]["speedup"], rows[4]["note"]) == (None, "no draft pays")
    assert rows[2]["note"].startswith("too close to call: 0.9")


_CARD = """
const [cases, done] = arguments;
import('/page/card.js').then(({cardData, next}) => {
  const tasks = ['a', 'b', 'c'].map((name, i) => ({name, pairs: cases[i], done: false}));
  const about = cardData(tasks, 'm', null, '').about[0];
  const order = [];
  for (let task; (task = next(tasks)); task.pairs.push(0)) order.push(task.name);
  done([about, order.join('')]);
});
"""


def test_the_card_finishes_one_task_after_another(page: Page) -> None:
    """A slow machine tells of some tasks, and the text is said to be identical in what was compared."""
    about, order = page.driver.execute_async_script(_CARD, [pairs_of((10, 12)), [], []])
    assert about == "Identical text with and without drafts in 1 pair of runs of 1 of the 3 tasks."
    assert order == "aabbbccc" + "abcabc"
    longer = {name: run(10, text="abcdef") for name in ("plain", "speculative")}
    shorter = {name: run(10, text="abc") for name in ("plain", "speculative")}
    about, _ = page.driver.execute_async_script(_CARD, [[shorter, longer], [], []])
    assert about == "Identical text with and without drafts in 2 pairs of runs of 1 of the 3 tasks."
    other = {"plain": run(10, text="abc"), "speculative": run(10, text="abd")}
    about, _ = page.driver.execute_async_script(_CARD, [[shorter, other], [], []])
    assert about == "Texts differ in: a; compared: 2 pairs of runs of 1 of the 3 tasks."


def test_the_card(page: Page) -> None:
    page.press("What does it gain here?")
    page.until(lambda: page.all("button", "Save as a file"), "the card", seconds=200)
    said = page.text_of(".card-sentence")
    assert re.fullmatch(r"This machine: [^;]+(; cannot tell: .+)?\.", said)
    told = said.split("cannot tell: ")[0]
    for name in ("edits", "JSON", "quotes", "stories", "code"):
        assert name in said
        assert name not in told or re.search(rf"{name} (\d+\.\d ×|not drafted)", told)
    assert "pydoc-target Q4_0" in page.text_of(".card")
    assert "dentical text" in page.text_of(".card") or "Texts differ" in page.text_of(".card")


def test_the_card_can_be_stopped(page: Page) -> None:
    page.press("What does it gain here?")
    page.until(lambda: "edits, pair 1" in page.text_of("#dialog-body"), "the first run")
    page.press("Stop")
    page.until(lambda: "Stopped before" in page.text_of("#dialog-body"))
    assert page.all("button", "Try again") or page.all("button", "Measure again")


def test_the_card_waits_for_an_idle_server(page: Page, chat_server: Server) -> None:
    connection = chat_server.begin(prompt="def ", stream=True, ignore_eos=True, max_tokens=1500)
    chat_server.until(lambda: chat_server.samples()["specllama_texts_running"] == 1)
    page.press("What does it gain here?")
    page.until(lambda: "The server is writing another text" in page.text_of("#dialog-body"))
    assert page.all("button", "Try again")
    del connection
    chat_server.hang_up()


def test_no_race_on_a_busy_server(page: Page) -> None:
    page.write("Long", **ENDLESS)
    page.until(lambda: page.answers and page.answers[-1])
    page.press("Race")
    page.press("Start the race")
    page.until(lambda: "which would disturb the times" in page.text_of(".race"))
    assert page.get("button", "Start the race").get_attribute("aria-disabled") == "false"
    page.press("Close")
    page.press("Stop")
    page.until_done()
