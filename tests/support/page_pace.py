"""Measures how the page keeps up with an answer: a stream of made-up events at a fixed rate, and the time
from Enter to the first character on the screen; how soon it is there; and how soon a long conversation is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from statistics import median

from selenium.webdriver.common.keys import Keys

from tests.support.browser import Page

N_PARTS = 8  # of an answer, whose work is compared
N_ANSWERS, N_LONG = 200, 400  # of a long conversation, and the tokens of each
RATE = 250  # tokens per second of the made-up answer
_PROSE = "The scheduler admits a sequence when a slot is free , and evicts the oldest cache first . "
_MIXED = (
    "## A section\n\nSome **bold** text with `code` and a [link](https://example.org/a) in it.\n\n"
    "- one item\n- another *item*\n\n```python\ndef add(a, b):\n    return a + b  # the sum\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
)
TEXTS = {
    "mixed": _MIXED,
    "one paragraph": _PROSE,
    "one list": "- an item of the list with a few words\n",
    "one block of code": "x = x + 1  # a line of code\n",
    "one table": "| 1 | two | three |\n",
}
_BEGINNINGS = {"one block of code": "```python\n", "one table": "| a | b | c |\n|---|---|---|\n"}

# The page gets a stream in place of the server's answer. Every fourth token begins a round.
_STREAM = """
const [tokens, rate] = arguments;
window.pace = { tasks: [], sent: 0 };
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.pace.tasks.push(entry.duration);
}).observe({ type: "longtask" });
window.answers = () => {
  window.answers = null;
  const encoder = new TextEncoder();
  const line = (chunk) => encoder.encode(`data: ${JSON.stringify(chunk)}\\n\\n`);
  const send = (controller, chunk) => controller.enqueue(line(chunk));
  const body = new ReadableStream({
    async start(controller) {
      const began = performance.now();
      let i = 0;
      while (i < tokens.length) {
        const due = Math.min(tokens.length, Math.floor(((performance.now() - began) / 1000) * rate));
        while (i < due) {
          const part = tokens.slice(i, i + 4);
          i += part.length;
          send(controller, {
            choices: [{ index: 0, delta: { content: part.join("") }, finish_reason: null }],
            speculation: {
              tokens: [[part.slice(0, 3).join("").length, "model"], [(part[3] ?? "").length, "target"]],
              round: { drafted: 4, accepted: 3, ms: 12.5, n_predict: i },
            },
          });
        }
        window.pace.sent = i;
        await new Promise((resolve) => setTimeout(resolve, 8));
      }
      send(controller, { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] });
      send(controller, { choices: [], usage: { completion_tokens: i, total_tokens: i }, timings: {
        predicted_per_second: rate, predicted_n: i }, speculation: { n_drafted: i, n_accept: i, reason: "",
        rounds: i / 4, accept_by_position: [1], seconds: null, decodes: null, speedup: 2, plain_tps: 9 } });
      controller.enqueue(encoder.encode("data: [DONE]\\n\\n"));
      controller.close();
    },
  });
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
};
"""
# From the key to the end of the frame that has the first character, or of the next one, if a frame draws it.
_FIRST = """
window.first = { key: 0, painted: 0 };
document.getElementById("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter") window.first.key = event.timeStamp;
}, { capture: true });
const observer = new MutationObserver(() => {
  const body = [...document.querySelectorAll(".answer .body")].at(-1);
  if (!body?.textContent.trim()) return;
  observer.disconnect();
  requestAnimationFrame(() => { setTimeout(() => { window.first.painted = performance.now(); }); });
});
observer.observe(document.getElementById("log"), { childList: true, subtree: true, characterData: true });
"""

_OPEN = """
const done = arguments[0];
const buttons = [...document.querySelectorAll("#conversations button")];
const button = buttons.find((b) => b.textContent.includes("Long one"));
const began = performance.now();
button.click();
const look = () => {
  if (document.querySelectorAll(".answer").length < 200) return setTimeout(look, 1);
  return requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
};
look();
"""
_LOADED = """
const [paint] = performance.getEntriesByName("first-contentful-paint");
const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
const own = all.filter(({ name }) => !/\\/(v1|props|health)/.test(new URL(name).pathname));
return [paint?.startTime ?? 0, own.reduce((sum, { decodedBodySize }) => sum + decodedBodySize, 0)];
"""


@dataclass(frozen=True)
class Pace:
    """work_ms: of the page's thread per token, by part of the answer. growth: of the last parts over the
    second and third ones. longest_task_ms: the longest time without a frame, 0 if none was over 50 ms.
    """

    n_tokens: int
    work_ms: list[float]
    longest_task_ms: float

    @property
    def growth(self) -> float:
        return median(self.work_ms[-3:]) / median(self.work_ms[1:4])


def tokens_of(text: str, n: int) -> list[str]:
    """n pieces of about four characters of the text, repeated."""
    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    return list(islice(cycle(pieces), n))


def streamed(page: Page, text: str, n: int) -> Pace:
    """Have n tokens shown, and measure meanwhile. text: repeated as often as needed."""
    name = next((name for name, known in TEXTS.items() if known == text), "")
    tokens = tokens_of(text, n)
    tokens[0] = _BEGINNINGS.get(name, "") + tokens[0]
    page.js(_STREAM, tokens, RATE)
    field = page.get("textbox", "Message")
    field.send_keys("Go", Keys.ENTER)
    work, sent = [page.work()], [0]
    for part in range(1, N_PARTS + 1):
        page.until(lambda due=part * n // N_PARTS: page.js("return window.pace.sent >= arguments[0]", due))
        work.append(page.work())
        sent.append(page.js("return window.pace.sent"))
    page.until_done()
    parts = zip(pairwise(work), pairwise(sent), strict=True)
    spent = [(b - a) / max(1, m - k) for (a, b), (k, m) in parts]
    tasks = page.js("return window.pace.tasks")
    shown = max(page.stored, key=lambda one: one["changed"])["messages"][-1]
    assert shown["content"] == "".join(tokens)
    return Pace(shown["figures"]["n"], [round(x, 3) for x in spent], max(tasks, default=0.0))


def first_character(page: Page) -> float:
    """Milliseconds from Enter to the first character on the screen, without the engine's own time."""
    page.press("New conversation")
    page.js(_FIRST)
    page.ask("What does os.walk do?", max_tokens=8)
    times = "window.first.painted && [window.first.key, window.first.painted]"
    key, painted = page.until(lambda: page.js(f"return {times}"))
    answer = max(page.stored, key=lambda one: one["changed"])["messages"][-1]
    return float(painted - key - 1000 * answer["report"]["figures"]["ttft_seconds"])


def long_conversation(page: Page) -> None:
    """Import a conversation of 200 answers of 400 tokens, with their sources."""
    text = (TEXTS["mixed"] * 20)[: 4 * N_LONG]
    runs = [[4 * i + 4, "model" if i % 4 else "target", i // 4] for i in range(N_LONG)]
    trace = {"runs": runs, "rounds": [[4, 3, 12.5, 4 * i + 4] for i in range(N_LONG // 4)]}
    messages = []
    for i in range(N_ANSWERS):
        messages.append({"role": "user", "content": f"Question {i}"})
        messages.append({"role": "assistant", "content": text, "trace": trace, "figures": {"n": N_LONG}})
    one = {"id": "long", "title": "Long one", "system": "", "changed": 1, "messages": messages}
    text = json.dumps({"format": "specllama.conversations", "version": 1, "conversations": [one]})
    page.driver.execute_async_script(
        "const [text, done] = arguments;"
        "import('/page/transfer.js').then(m => m.imported(text)).then(() => done())",
        text,
    )


def opened(page: Page) -> float:
    """Milliseconds from the click on the long conversation until all of its answers are on the page."""
    return float(page.driver.execute_async_script(_OPEN))


def first_paint(page: Page) -> tuple[float, int]:
    """(milliseconds to the first paint with content, bytes of the files that were loaded by then and when the
    page was idle), of a page that is loaded without a cache.
    """
    page.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    page.ready()
    page.until(lambda: page.js(_LOADED)[0] > 0)
    page.driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": False})
    milliseconds, n_bytes = page.js(_LOADED)
    return float(milliseconds), int(n_bytes)
