// The race: one prompt and one seed, plain and speculative one after the other, then both shown at the pace at
// which they were written.

import { json } from "./api.js";
import { openDialog } from "./dialog.js";
import { announce, button, duration, element, numeral } from "./dom.js";
import { asked, generate } from "./generate.js";

const LENGTHS = [64, 128, 256, 512];
const EVEN = 0.02; // share of the time by which runs of the same speed differ

/** Open the race. context: {prompt, system, model, settings}. */
export function openRace({ prompt, system, model, settings }) {
  const controller = new AbortController();
  const area = element("textarea", { id: "race-prompt", rows: 3 });
  area.value = prompt;
  const length = element(
    "select",
    { id: "race-length" },
    ...LENGTHS.map((n) => element("option", { value: n, selected: n === 128 }, `${n} tokens`)),
  );
  const start = element("button", { class: "primary" }, "Start the race");
  const place = element("div", { class: "race" });
  const run = async (event) => {
    event.preventDefault();
    if (!area.value.trim()) return area.focus();
    start.disabled = true;
    try {
      const more = { ...settings, max_tokens: Number(length.value), seed: settings.seed ?? seed() };
      await race({ prompt: area.value, system, model, settings: more }, place, controller.signal);
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      place.replaceChildren(element("p", { class: "bad", role: "alert" }, `${error.message} ${error.todo ?? ""}`));
    }
    start.disabled = false;
    return undefined;
  };
  openDialog(
    "Race: plain against speculative",
    [
      element(
        "p",
        { class: "hint" },
        "The same prompt and seed twice, one after the other, so that they do not disturb each other; then both at " +
          "their true pace. Neither run drafts from earlier answers.",
      ),
      element(
        "form",
        { class: "race-form", on: { submit: run } },
        element("label", { for: "race-prompt" }, "Prompt"),
        area,
        element("label", { for: "race-length" }, "Length"),
        length,
        start,
      ),
      place,
    ],
    { wide: true, closed: () => controller.abort() },
  );
}

const seed = () => crypto.getRandomValues(new Uint32Array(1))[0];

async function race({ prompt, system, model, settings }, place, signal) {
  const status = element("p", { role: "status" }, "Evaluating the prompt…");
  place.replaceChildren(status);
  const messages = [{ role: "user", content: prompt }];
  const busy = (await json(`/slots?model=${encodeURIComponent(model)}`)).some((slot) => slot.is_processing);
  // The prompt is in the cache afterwards, so that both runs find the same.
  const warm = { ...settings, max_tokens: 1 };
  await generate(asked({ messages, system, model, settings: warm, speculation: { enabled: false, memory: false } }), { signal });
  const one = async (name, enabled) => {
    const body = asked({ messages, system, model, settings, speculation: { enabled, memory: false } });
    const grown = (answer) => {
      status.textContent = `${name}: ${answer.n} tokens…`;
    };
    return generate(body, { signal, grown });
  };
  const plain = await one("Plain", false);
  const drafted = await one("Speculative", true);
  const lanes = [lane("Plain", plain), lane("Speculative", drafted)];
  const verdict = element("p", { class: "verdict", role: "status" });
  const details = element("p", { class: "hint" });
  if (busy) details.textContent = "Another text was being written at the same time, so these times are not exact. ";
  const again = button("Replay", () => replay(lanes, signal));
  place.replaceChildren(
    element("div", { class: "lanes" }, ...lanes.map((found) => found.element)),
    verdict,
    details,
    element("div", { class: "actions" }, again),
  );
  again.disabled = true;
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) for (const found of lanes) found.finish();
  else await replay(lanes, signal);
  again.disabled = false;
  const said = judge(plain, drafted);
  verdict.textContent = said.verdict;
  details.append(said.details);
  announce(said.verdict);
}

/** The sentences about two answers to the same request. */
export function judge(plain, drafted) {
  const times = [plain, drafted].map((answer) => (answer.lastAt - answer.began) / 1000);
  const ratio = times[0] / times[1];
  const shown = `${duration(times[1])} against ${duration(times[0])}`;
  let verdict = `Speculation won: ${ratio.toFixed(2)} times as fast, ${shown}.`;
  if (Math.abs(ratio - 1) <= EVEN) verdict = `A draw: ${shown}.`;
  else if (ratio < 1) {
    verdict = `Plain decoding won: ${(1 / ratio).toFixed(2)} times as fast, ${duration(times[0])} against ${duration(times[1])}.`;
  }
  if (!drafted.figures?.n_drafted) {
    verdict += ` Nothing was drafted${drafted.figures?.reason ? `: ${drafted.figures.reason}` : ""}.`;
  }
  const [a, b] = [plain, drafted].map((answer) => answer.reasoning + answer.content);
  const rates = [plain, drafted].map((answer) => `${numeral(answer.timings?.predicted_per_second)} tokens/s`);
  let same = `Both texts are identical, ${drafted.n} tokens.`;
  if (a !== b) {
    let at = 0;
    while (a[at] === b[at]) at++;
    const ties = plain.figures?.near_ties || drafted.figures?.near_ties;
    same = `The texts differ from character ${at + 1} on${ties ? ", where two tokens were almost equally likely" : ""}.`;
  }
  return { verdict: `${verdict} ${same}`, details: `Plain ${rates[0]}, speculative ${rates[1]}.` };
}

/** One answer that can be shown again at its pace. */
function lane(name, answer) {
  const text = element("div", { class: "lane-text", tabindex: 0, role: "region", "aria-label": `${name} text` });
  const clock = element("span", { class: "clock" });
  const total = (answer.lastAt - answer.began) / 1000;
  const { reasoning, content } = answer;
  const whole = reasoning.length + content.length;
  let shown = 0;
  let i = 0;
  const upTo = (end) => {
    const split = reasoning.length;
    if (shown < split) text.append(...answer.reasoningTrace.spans(reasoning.slice(shown, end), shown));
    const from = Math.max(0, shown - split);
    if (end > split) text.append(...answer.trace.spans(content.slice(from, end - split), from));
    shown = Math.max(shown, end);
  };
  return {
    element: element("section", { class: "lane" }, element("h3", {}, name, clock), text),
    total,
    reset() {
      text.replaceChildren();
      [shown, i] = [0, 0];
    },
    show(seconds) {
      while (i < answer.times.length && answer.times[i][0] <= seconds) i++;
      upTo(i ? answer.times[i - 1][1] : 0);
      clock.textContent = seconds >= total ? `finished after ${duration(total)}` : `${seconds.toFixed(1)} s`;
      text.scrollTop = text.scrollHeight;
    },
    finish() {
      upTo(whole);
      clock.textContent = `finished after ${duration(total)}`;
    },
  };
}

function replay(lanes, signal) {
  for (const found of lanes) found.reset();
  const began = performance.now();
  const end = Math.max(...lanes.map((found) => found.total));
  return new Promise((resolve) => {
    const step = () => {
      const seconds = (performance.now() - began) / 1000;
      for (const found of lanes) found.show(seconds);
      if (seconds < end && !signal.aborted) return requestAnimationFrame(step);
      for (const found of lanes) found.finish();
      return resolve();
    };
    requestAnimationFrame(step);
  });
}
