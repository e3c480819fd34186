// "What does it gain here?": five canned tasks with and without drafts.

import { openDialog } from "./dialog.js";
import { announce, button, counted, element, inSentences, keepFocus } from "./dom.js";
import { cardOf } from "./exhibit.js";
import { LEAST_PAIRS, LIMITED, MOST_OF_TASK, isSettled } from "./gain.js";
import {
	BUSY_MACHINE, aboutServer, alternating, busySlots, comparedPairs, latest, sameText, share, wasBusy, whyNot,
} from "./race.js";

const SECONDS = 180; // after which nothing further begins
const [SHORTEST, FIRST, LONGEST] = [24, 48, 128]; // tokens of a run
const UNCLEAR = "cannot tell";
const NARROW = 0.1; // half width of an interval, as a log
const CODE =
	"def count_words(path):\n    total = 0\n    with open(path) as file:\n        for line in file:\n            total += len(line.split())\n    return total\n";
const TEXT =
	"The library opens at nine on weekdays and at ten on Saturdays. Books are lent for four weeks, films for one. Whoever " +
	"returns them late pays twenty cents a day, but never more than five euros for a book.";
const PERSON = {
	type: "object",
	properties: { name: { type: "string" }, age: { type: "integer" }, city: { type: "string" }, job: { type: "string" } },
	required: ["name", "age", "city", "job"],
};
const TASKS = [
	{ name: "edits", prompt: `Rename total to words in this code, and change nothing else:\n\n\`\`\`python\n${CODE}\`\`\`` },
	{
		name: "JSON", prompt: "Give as JSON: Ada Lovelace, 36 years old, a mathematician in London.",
		more: { response_format: { type: "json_schema", json_schema: { name: "person", schema: PERSON } } },
	},
	{ name: "quotes", prompt: `Repeat this text word for word:\n\n${TEXT}` },
	{ name: "stories", prompt: "Write a short story about a lighthouse keeper who finds a map." },
	{ name: "code", prompt: "Write a Python class for a queue with a fixed size, with docstrings." },
];

/** Open the view and begin. context: {model, props}. */
export function openCard({ model, props }) {
	const controller = new AbortController();
	const place = element("div", {});
	const hint =
		"Five canned tasks, each with and without drafts in turn, with one seed and the server's sampling, until it is certain " +
		`what drafts gain or ${SECONDS / 60} minutes are over. Nothing is drafted from earlier answers.`;
	openDialog("What does it gain here?", [element("p", { class: "hint" }, hint), place], {
		wide: true, closed: () => controller.abort(),
	});
	return begin({ model, props }, place, controller.signal);
}

async function begin(context, place, signal) {
	try {
		await measure(context, place, signal);
	} catch (error) {
		if (error.name === "AbortError") return;
		refuse(place, inSentences(error), () => begin(context, place, signal));
	}
}

const put = (place, ...nodes) => keepFocus(place, () => place.replaceChildren(...nodes), () => place.querySelector("button"));

function refuse(place, text, again) {
	put(place, element("p", { role: "alert" }, text), element("div", { class: "actions" }, button("Try again", again)));
}

async function measure({ model, props }, place, signal) {
	const again = () => begin({ model, props }, place, signal);
	const why = await whyNot(props, model);
	if (why) {
		refuse(place, why, again);
		return;
	}
	const own = new AbortController();
	const status = element("p", { role: "status" }, "Evaluating the first prompt…");
	const bar = element("progress", { max: 1, value: 0, "aria-label": "Time" });
	const shown = element("div", {});
	const stop = button("Stop", () => own.abort());
	put(place, status, bar, element("div", { class: "actions" }, stop), shown);
	const settings = { max_tokens: FIRST, seed: 1 };
	const stopped = AbortSignal.any([signal, own.signal]);
	const began = performance.now();
	const elapsed = () => (performance.now() - began) / 1000;
	const tasks = TASKS.map(({ name, prompt, more = {} }) => {
		const said = (way, answer, i) => {
			status.textContent = `${name}, pair ${i + 1}, ${way === "plain" ? "without" : "with"} drafts: ${counted(answer.n, "token")}…`;
			bar.value = Math.min(1, elapsed() / SECONDS);
		};
		// One object for all: the lengths follow the machine's speed.
		const request = { messages: [{ role: "user", content: prompt }], system: "", model, settings: asSettings(settings, more) };
		return { name, pairs: [], runs: alternating(request, { signal: stopped, said }), done: false };
	});
	let note = "";
	const draw = () => shown.replaceChildren(cardOf(cardData(tasks, model, props, note)));
	try {
		for (let task; elapsed() < SECONDS && (task = next(tasks)); ) {
			if (await busySlots(model)) {
				note = "Ended early: another text was being written.";
				break;
			}
			task.pairs.push((await task.runs.next()).value);
			task.done = isDone(task.pairs);
			if (settings.max_tokens === FIRST) settings.max_tokens = lengthFor(task.pairs[0].plain.rate);
			draw();
		}
	} catch (error) {
		if (!own.signal.aborted || signal.aborted) throw error;
		note = "Stopped before all was measured.";
	}
	if (signal.aborted) return;
	if (!tasks.some(({ pairs }) => pairs.length)) {
		refuse(place, note || "Stopped before anything was measured.", again);
		return;
	}
	latest.card = cardData(tasks, model, props, note);
	draw();
	put(place, shown, element("div", { class: "actions" },
		button("Save as a file", () => share(), { title: "An HTML file with this card" }), button("Measure again", again)));
	announce(latest.card.sentence);
}

/** Settings that are read at each request, with more of them. */
const asSettings = (settings, more) => ({
	get max_tokens() {
		return settings.max_tokens;
	},
	seed: settings.seed, ...more,
});

/** Tokens of a run, so that there is time for all tasks. */
function lengthFor(rate) {
	const seconds = SECONDS / (TASKS.length * 2 * (LEAST_PAIRS + 1));
	return Math.max(SHORTEST, Math.min(LONGEST, Math.round(rate * seconds)));
}

/** The task of the next pair: each in turn until it has an interval, then the one with the fewest. */
export function next(tasks) {
	const open = tasks.filter(({ done, pairs }) => !done && pairs.length < MOST_OF_TASK);
	return open.find(({ pairs }) => pairs.length < LEAST_PAIRS) ?? open.sort((a, b) => a.pairs.length - b.pairs.length)[0];
}

function isDone(pairs) {
	const drafted = pairs.some(({ speculative }) => speculative.drafted);
	return (pairs.length >= 2 && !drafted) || (pairs.length >= LEAST_PAIRS && isSettled(comparedPairs(pairs, MOST_OF_TASK)));
}

export function cardData(tasks, model, props, note) {
	const rows = tasks.map(({ name, pairs }) => rowOf(name, pairs));
	const known = rows.filter(({ said }) => said !== "not measured");
	const measured = tasks.filter(({ pairs }) => pairs.length);
	// Only runs of a pair have the same length.
	const differs = ({ pairs }) => pairs.some((pair) => !/identical/.test(sameText([pair])));
	const differ = measured.filter(differs).map(({ name }) => name);
	const n = measured.reduce((sum, { pairs }) => sum + pairs.length, 0);
	const of = `${counted(n, "pair")} of runs of ${measured.length} of the ${tasks.length} tasks`;
	const busy = measured.some(({ pairs }) => wasBusy(pairs)) ? [`${BUSY_MACHINE}.`] : [];
	const same = differ.length ? `Texts differ in: ${differ.join(", ")}; compared: ${of}.` : `Identical text with and without drafts in ${of}.`;
	return {
		sentence: sentenceOf(known),
		tasks: rows,
		about: [same, ...busy, ...(note ? [note] : []), "Times plain decoding's speed, with 95 % intervals; the dashed line is plain decoding.", ...aboutServer(props, model)],
	};
}

function sentenceOf(rows) {
	const told = rows.filter(({ said }) => said !== UNCLEAR).map(({ name, said }) => `${name} ${said}`);
	const unclear = rows.filter(({ said }) => said === UNCLEAR).map(({ name }) => name);
	const parts = [...(told.length ? [told.join(", ")] : []), ...(unclear.length ? [`${UNCLEAR}: ${unclear.join(", ")}`] : [])];
	return `This machine: ${parts.join("; ")}.`;
}

/** A row of the card: {name, speedup, low, high, said, note}. */
export function rowOf(name, pairs) {
	const unknown = { name, speedup: null, low: null, high: null };
	if (!pairs.length) return { ...unknown, said: "not measured", note: "" };
	const { drafted, reason } = pairs.at(-1).speculative;
	if (!drafted && !pairs.some(({ speculative }) => speculative.drafted)) {
		return { ...unknown, said: "not drafted", note: reason };
	}
	const found = comparedPairs(pairs, MOST_OF_TASK);
	if (found.speedup === null) return { ...unknown, said: UNCLEAR, note: found.reason };
	const { speedup, low, high, verdict } = found;
	const limit = found.limited ? `, ${LIMITED}` : "";
	const range = `${low.toFixed(2)} – ${high.toFixed(2)}, ${counted(pairs.length, "pair")}${limit}`;
	// Where the interval holds 1, only a narrow one says that drafts gain nothing.
	if (verdict === "alike" && Math.log(high / low) / 2 > NARROW) {
		return { name, speedup: null, low, high, said: UNCLEAR, note: range };
	}
	const note = verdict === "alike" ? `too close to call: ${range}` : range;
	return { name, speedup, low, high, said: `${found.limited ? "at most " : ""}${speedup.toFixed(1)} ×`, note };
}
