"""Answers of a made-up model, which the page gets in place of the server's."""

from __future__ import annotations

from typing import Any

from tests.support.browser import Page

# In pieces of some characters, which are of a round each: three quarters of it from the draft model.
_ANSWER = """
const [text, options] = arguments;
window.answers = (request) => {
  const encoder = new TextEncoder();
  const line = (chunk) => encoder.encode(`data: ${JSON.stringify(chunk)}\\n\\n`);
  const send = (controller, chunk) => controller.enqueue(line(chunk));
  const characters = [...text];
  const size = options.size;
  let stopped = false;
  const body = new ReadableStream({
    async start(controller) {
      request.signal?.addEventListener("abort", () => {
        stopped = true;
        controller.error(new DOMException("stopped", "AbortError"));
      });
      let n = 0;
      for (let i = 0; i < characters.length || options.endless; i += size) {
        if (stopped) return;
        const part = characters.slice(i % characters.length, (i % characters.length) + size);
        const drafted = Math.floor(0.75 * part.length);
        n += 4;
        send(controller, {
          choices: [{ index: 0, delta: { [options.field]: part.join("") }, finish_reason: null }],
          speculation: { tokens: [[drafted, "model"], [part.length - drafted, "target"]],
                         round: { drafted: 4, accepted: 3, ms: 12.5, n_predict: n } },
        });
        if (options.pause) await new Promise((resolve) => setTimeout(resolve, options.pause));
      }
      send(controller, { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] });
      send(controller, { choices: [], usage: { completion_tokens: n, total_tokens: n }, timings: {
        predicted_per_second: 100, predicted_n: n }, speculation: {
          n_drafted: n, n_accept: 0.75 * n, reason: "", rounds: n / 4, accept_by_position: [1, 1, 1, 0],
          seconds: null, decodes: null, speedup: 2, plain_tps: 50 } });
      controller.enqueue(encoder.encode("data: [DONE]\\n\\n"));
      controller.close();
    },
    cancel() { stopped = true; },
  });
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
};
"""


def answer_with(page: Page, text: str, **options: Any) -> None:
    """Have the next questions answered with this text. options: size: characters of a round; pause:
    milliseconds between two; endless: the text again and again; field: of the delta, "content" or
    "reasoning_content".
    """
    page.js(_ANSWER, text, {"size": 12, "pause": 0, "endless": False, "field": "content", **options})


def made_up(page: Page, text: str, question: str = "Anything", **options: Any) -> str:
    """Ask, and have it answered with this text; returns what is shown of it."""
    answer_with(page, text, **options)
    return page.ask(question)
