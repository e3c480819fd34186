// The race: one prompt and one seed, plain and speculative in turn, then both shown at their pace; and the file in which
// it is shared.

import { json } from "./api.js";
import { openDialog } from "./dialog.js";
import { announce, button, counted, duration, element, inSentences, keepFocus, numeral } from "./dom.js";
import { lanesOf, replay } from "./exhibit.js";
import { LEAST_PAIRS, LIMITED, MOST_OF_RACE, compared, inFigures, isSettled } from "./gain.js";
import { asked, generate } from "./generate.js";
import { say } from "./notice.js";
import { deviceInWords, draftNames } from "./panel.js";
import { loadStyle } from "./styles.js";
import { download } from "./transfer.js";

loadStyle("exhibit.css");
const LENGTHS = [64, 128, 256, 512];
const BUSY = "The server is writing another text, which would disturb the times. Try again when it is idle.";
export const BUSY_MACHINE = "Something else kept the machine busy, so these times are uncertain";
const LONGEST = 120; // seconds after which no further pair begins
export const latest = { race: null, card: null }; // last on this page

/** Open the race. context: {prompt, system, model, settings, props}. */
export function openRace({ prompt, system, model, settings, props }) {
	const controller = new AbortController();
	const area = element("textarea", { id: "race-prompt", rows: 3, required: true, dir: "auto" });
	area.value = prompt;
	const length = element(
		"select",
		{ id: "race-length" },
		...LENGTHS.map((n) => element("option", { value: n, selected: n === 128 }, `${n} tokens`)),
	);
	const start = element("button", { class: "primary" }, "Start the race");
	const place = element("div", { class: "race" });
	const put = (...nodes) => keepFocus(place, () => place.replaceChildren(...nodes), () => place.querySelector("button") ?? start);
	const run = async (event) => {
		event.preventDefault();
		if (start.ariaDisabled === "true") return undefined;
		if (!area.value.trim()) return area.focus();
		start.ariaDisabled = "true";
		try {
			const more = { ...settings, max_tokens: Number(length.value), seed: settings.seed ?? seed() };
			const asks = { prompt: area.value, system, model, settings: more, props };
			await race(asks, put, controller.signal);
		} catch (error) {
			if (error.name === "AbortError") return undefined;
			put(element("p", { class: "bad", role: "alert" }, inSentences(error)));
		}
		start.ariaDisabled = "false";
		return undefined;
	};
	openDialog(
		"Race: plain against speculative",
		[
			element("p", { class: "hint" },
				"The same prompt and seed without and with drafts, in turn, until it is certain which is faster or " +
					`${MOST_OF_RACE} pairs of runs have not told; then both at their true pace. No run drafts from earlier answers.`),
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

/** The machine, the model and its drafters in sentences. settings: of the race. */
export function aboutServer(props, model, settings = null) {
	if (!props) return [];
	const names = [...draftNames(props), ...props.speculation.drafters.filter((word) => word !== "model")];
	const [name, quant] = [model || props.target.name, props.target.quant];
	const run = settings ? ` Length ${counted(settings.max_tokens, "token")}, seed ${settings.seed}.` : "";
	return [
		`${name.includes(quant) ? name : `${name} ${quant}`}; drafts: ${names.join(", ") || "none"}.${run}`,
		`${deviceInWords(props.machine)}. ${props.build_info}, ${new Date().toISOString().slice(0, 10)}.`,
	];
}

/** The slots of a model that are busy. */
export async function busySlots(model) {
	return (await json(`/slots?model=${encodeURIComponent(model)}`)).filter((slot) => slot.is_processing).length;
}

/** What of an answer is compared and shown again, by the server's time of decoding. */
export function runOf(answer) {
	const { figures, timings } = answer;
	const first = (answer.firstAt - answer.began) / 1000;
	const shown = (answer.lastAt - answer.firstAt) / 1000;
	const seconds = (timings?.predicted_ms ?? 0) / 1000 || shown;
	const scale = shown > 0 ? seconds / shown : 1; // events wait on their way: the server's clock counts
	return {
		seconds,
		rate: timings?.predicted_per_second || 0,
		n: answer.n,
		rounds: figures?.rounds ?? 0,
		drafted: (figures?.n_drafted ?? 0) + (figures?.forced_tokens ?? 0),
		reason: figures?.reason ?? "",
		near_ties: figures?.near_ties ?? 0,
		busy: figures?.busy ?? false,
		text: answer.reasoning + answer.content,
		parts: [...answer.reasoningTrace.parts(answer.reasoning), ...answer.trace.parts(answer.content)],
		times: answer.times.map(([seconds, n]) => [Math.max(0, seconds - first) * scale, n]),
	};
}

/**
 * Run a request in turn without and with drafts, after its prompt is evaluated. said(name, answer, i): called as pair i
 * goes on. Yields {plain, speculative}.
 */
export async function* alternating({ messages, system, model, settings }, { signal, said = () => {} }) {
	const once = (enabled, more = {}, grown = undefined) => {
		const body = asked({ messages, system, model, settings: { ...settings, ...more }, speculation: { enabled, memory: false } });
		return generate(body, { signal, grown });
	};
	await once(false, { max_tokens: 1 });
	for (let i = 0; ; i++) {
		const pair = {};
		for (const name of i % 2 ? ["speculative", "plain"] : ["plain", "speculative"]) {
			pair[name] = runOf(await once(name === "speculative", {}, (answer) => said(name, answer, i)));
		}
		yield pair;
	}
}

/** How pairs of runs compare, as in gain.js. most: pairs after which no more follow. */
export function comparedPairs(pairs, most = MOST_OF_RACE) {
	const all = pairs.map(({ speculative }) => speculative);
	const sum = (what) => all.reduce((total, run) => total + run[what], 0);
	const written = all.reduce((total, { n }) => total + n - 1, 0); // the first token is of the prompt's decode
	const tokens = Math.max(1, written / Math.max(1, sum("rounds")));
	return compared(pairs.map(({ plain, speculative }) => [plain.rate, speculative.rate]), { tokens, drafted: sum("drafted"), most });
}

/** Why a comparison with drafts would tell nothing, as sentences; "" where it can. */
export async function whyNot(props, model) {
	const off = props?.speculation.reason;
	if (props && !off) return (await busySlots(model)) ? BUSY : "";
	const why = props ? `Nothing is drafted here: ${off}.` : "The model is not loaded yet.";
	return `${why} There is nothing to compare before that changes.`.replace("..", ".");
}

/** put(...nodes): shows them. */
async function race({ prompt, system, model, settings, props }, put, signal) {
	const why = await whyNot(props, model);
	if (why) {
		put(element("p", { role: "alert" }, why));
		return;
	}
	const status = element("p", { role: "status" }, "Evaluating the prompt…");
	const own = new AbortController();
	const stopped = AbortSignal.any([signal, own.signal]);
	const stop = button("Stop and judge", () => own.abort());
	put(status, stop);
	let busy = 0;
	const request = { messages: [{ role: "user", content: prompt }], system, model, settings };
	const pairs = [];
	const said = (name, answer, i) => {
		status.textContent = `Pair ${i + 1}, ${name}: ${counted(answer.n, "token")}… ${soFar(pairs)}`;
	};
	const began = performance.now();
	try {
		for await (const pair of alternating(request, { signal: stopped, said })) {
			pairs.push(pair);
			busy ||= await busySlots(model);
			const seconds = (performance.now() - began) / 1000;
			if (!pair.speculative.drafted && pairs.length === 1) break; // more runs would tell no more
			if (isSettled(comparedPairs(pairs)) || pairs.length >= MOST_OF_RACE) break;
			if (pairs.length >= LEAST_PAIRS && seconds > LONGEST) break;
		}
	} catch (error) {
		if (!own.signal.aborted || signal.aborted) throw error;
	}
	if (!pairs.length) {
		put(element("p", { role: "status" }, "Stopped before both had run once."));
		return;
	}
	await show(pairs, { prompt, model, settings, props, busy, put, signal });
}

function soFar(pairs) {
	const found = pairs.length ? comparedPairs(pairs) : { speedup: null };
	return found.speedup === null ? "" : `So far ${inFigures(found)}.`;
}

async function show(pairs, { prompt, model, settings, props, busy, put, signal }) {
	const typical = typicalOf(pairs);
	const { verdict, details } = judge(pairs);
	if (!typical.speculative.drafted) {
		put(element("p", { class: "verdict", role: "status" }, verdict), element("p", { class: "hint" }, details));
		return;
	}
	const notes = busy ? `${details} Another text was being written at the same time, so these times are not exact.` : details;
	latest.race = {
		prompt, verdict, details: notes, model, props,
		settings: { max_tokens: settings.max_tokens, seed: settings.seed },
		plain: typical.plain, speculative: typical.speculative,
	};
	const lanes = lanesOf(typical);
	const said = element("p", { class: "verdict", role: "status" });
	const hint = element("p", { class: "hint" });
	const play = async () => {
		again.ariaDisabled = "true";
		await replay(lanes, signal);
		again.ariaDisabled = "false";
	};
	const again = button("Replay", play);
	const keep = button("Save as a file", () => share(), { title: "An HTML file that shows this race again" });
	put(
		element("div", { class: "lanes" }, ...lanes.map((found) => found.element)),
		said,
		hint,
		element("div", { class: "actions" }, again, keep),
	);
	await play();
	said.textContent = verdict;
	hint.textContent = notes;
	announce(verdict);
}

const ratio = ({ plain, speculative }) => speculative.rate / plain.rate;

/** The pair whose ratio is the median. */
function typicalOf(pairs) {
	return [...pairs].sort((a, b) => ratio(a) - ratio(b))[Math.floor(pairs.length / 2)];
}

/** The sentences about pairs of runs. */
export function judge(pairs) {
	const found = comparedPairs(pairs);
	const { plain, speculative } = typicalOf(pairs);
	const many = `${counted(pairs.length, "pair")} of runs`;
	const over = `${found.limited ? `${LIMITED}, ` : ""}over ${many}`;
	const reason = speculative.reason ? `: ${speculative.reason}` : "";
	let verdict = `No winner: ${found.reason}.`;
	if (!speculative.drafted) verdict = `No winner: nothing was drafted${reason}.`;
	else if (found.verdict === "faster") verdict = `Speculation won: ${inFigures(found)}, ${over}.`;
	else if (found.verdict === "slower") verdict = `Plain decoding won: speculation had ${inFigures(found)} its speed, ${over}.`;
	else if (found.verdict === "alike") verdict = `No winner: ${inFigures(found)} is too close to call, ${over}.`;
	const same = sameText(pairs);
	const [before, after] = [plain, speculative].map(({ seconds, rate }) => `${duration(seconds)} (${numeral(rate)} tokens/s)`);
	const one = ratio({ plain, speculative });
	const more = found.limited && one > found.speedup ? ", more than the tokens of a round allow" : "";
	const shown = `times are those of decoding, in brackets a 95 % interval. Shown: the pair in the middle, plain ${before}, speculative ${after}: ${one.toFixed(2)} ×${more}.`;
	const busy = wasBusy(pairs) ? ` ${BUSY_MACHINE}.` : "";
	return {
		found,
		verdict: `${verdict}${busy} ${same}`,
		details: `${many}, alternating${speculative.drafted ? `; ${shown}` : "."}`,
	};
}

/** Whether rounds of any of these runs stalled for much of its time. */
export const wasBusy = (pairs) => pairs.some(({ plain, speculative }) => plain.busy || speculative.busy);

/** Whether all texts are the same, in a sentence. */
export function sameText(pairs) {
	const runs = pairs.flatMap(({ plain, speculative }) => [plain, speculative]);
	const [first] = runs;
	const other = runs.find(({ text }) => text !== first.text);
	if (!other) return `All texts are identical, ${counted(first.n, "token")}.`;
	let at = 0;
	while (first.text[at] === other.text[at]) at++;
	const ties = runs.some((run) => run.near_ties);
	return `The texts differ from character ${at + 1} on${ties ? ", where two tokens were almost equally likely" : ""}.`;
}

// The file: a race and a card as one HTML file, which loads nothing and runs exhibit.js alone; what a model wrote is data in it.

const BASE = `
*, *::before, *::after { box-sizing: border-box; }
body { max-width: 72rem; margin: 0 auto; padding: 1rem; background: var(--bg); color: var(--fg); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; }
.hint { color: var(--dim); font-size: 0.85rem; }
button { min-height: 2.25rem; padding: 0.2rem 0.75rem; border: 1px solid var(--rule); border-radius: 0.5rem; background: var(--raised); color: inherit; font: inherit; }
[data-source] { background: var(--other); } [data-source="target"] { background: none; }
[data-source="model"] { background: var(--model); } [data-source="head"] { background: var(--head); } [data-source="copy"], [data-source="prediction"] { background: var(--copy); }
[data-source="memory"], [data-source="corpus"] { background: var(--memory); } [data-source="grammar"] { background: var(--grammar); }
`;
const INVALID = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** JSON that no HTML parser reads as anything but the text of its element. */
const embedded = (data) =>
	JSON.stringify(data).replace(/[<>&\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

const escaped = (text) => text.replace(/[<>&"']/g, (c) => `&#${c.charCodeAt(0)};`);

const random = () => btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(18))));

/** What a run shows, and nothing else. */
const shownRun = ({ parts, times, seconds }) => ({ parts, times, seconds });

/** The file. code: of exhibit.js; style: exhibit.css; race, card: what was measured, null for none. */
export function sharedFile(code, style, { race, card }) {
	const nonce = random();
	const shown = race && {
		prompt: race.prompt, verdict: race.verdict, details: race.details,
		plain: shownRun(race.plain), speculative: shownRun(race.speculative),
	};
	const about = race ? aboutServer(race.props, race.model, race.settings) : [];
	const title = `specllama: ${[race && "race", card && "what drafts gain"].filter(Boolean).join(" and ")}`;
	const policy = `default-src 'none'; style-src 'nonce-${nonce}'; script-src 'nonce-${nonce}'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'`;
	const script = code.replace(/^export /gm, "");
	const text = `<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<title>${escaped(title)}</title>
<style nonce="${nonce}">${BASE}${style}</style></head>
<body><h1>${escaped(title)}</h1><main></main>
<noscript><p>This file shows its figures with JavaScript.</p></noscript>
<script type="application/json" id="data">${embedded({ about, race: shown, card })}</script>
<script nonce="${nonce}">
${script}
exhibit(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));
</script></body></html>
`;
	return text.replace(INVALID, "\ufffd");
}

const textOf = async (name) => (await fetch(new URL(name, import.meta.url))).text();

/** Save what was measured on this page as a file. */
export async function share() {
	try {
		const names = ["exhibit.js", "exhibit.css", "style.css"];
		const [code, style, page] = await Promise.all(names.map(textOf));
		const [colours] = page.match(/^:root \{.*?^\}/ms);
		const name = `specllama-${new Date().toISOString().slice(0, 10)}.html`;
		download(name, sharedFile(code, colours + style, latest), "text/html");
	} catch (error) {
		say(`The file could not be made: ${error.message}`);
	}
}
