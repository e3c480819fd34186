// The figures of an answer, of all its parts where it was continued. What drafting gained is the server's verdict.

import { button, counted, element, numeral, percent } from "./dom.js";
import { explained } from "./explain.js";

const FROM = { run: "measured in this answer", stored: "measured before", compared: "of the same answer without drafts" };

/** "faster", "slower", "alike" where the interval holds 1, or "unknown". */
export function verdictOf(speedup, low, high) {
	if (!Number.isFinite(speedup)) return "unknown";
	if (low > 1) return "faster";
	return high < 1 ? "slower" : "alike";
}

const [NARROW, CLEAR] = [0.1, 0.25]; // half widths, as logs, of an interval that tells that, and how much, drafts gain

const number = (value) => (Number.isFinite(value) ? value : null);

/**
 * The figures of an answer, complete or not: {n, rounds, drafted, accepted, forced, seconds, rate, speedup, low, high,
 * verdict, limited, why, plain, source, reason, first, prompt, ended}. n: tokens. seconds: of decoding; rate: tokens per
 * second. speedup: over plain decoding; limited: more was measured than can be; why: it is null, or known no better;
 * plain: its tokens per second, source: where they are from. counted, stepped: tokens, and timed ones, of parts whose
 * rounds are known. reason: why nothing was drafted. first: seconds to the first token. prompt: {n, cached, rate}: tokens evaluated, not evaluated, per second.
 */
export function figuresOf(answer) {
	if (answer.summed) return answer.summed;
	const own = partOf(answer);
	const { before } = answer;
	if (!before?.n) return own;
	const seconds = own.seconds + (before.seconds ?? 0);
	const parts = [before, own];
	const timedOf = (one) => one.timed ?? Math.max(0, one.n - 1);
	const timed = timedOf(before) + timedOf(own);
	return {
		...own, ...gainOf(parts), seconds, timed,
		n: own.n + before.n,
		rounds: own.rounds + (before.rounds > 0 ? before.rounds : 0),
		counted: sumOf(parts, (one) => one.counted ?? (one.rounds > 0 ? one.n : 0)),
		stepped: sumOf(parts, (one) => one.stepped ?? (one.rounds > 0 ? timedOf(one) : 0)),
		drafted: own.drafted + (before.drafted ?? 0),
		accepted: own.accepted + (before.accepted ?? 0),
		forced: own.forced + (before.forced ?? 0),
		rate: seconds > 0 && timed > 0 ? timed / seconds : own.rate,
		first: before.first ?? own.first,
	};
}

const sumOf = (parts, value) => parts.reduce((sum, one) => sum + value(one), 0);

/** Those since the answer began or was continued. */
function partOf(answer) {
	const { figures, timings, known } = answer;
	const seconds = timings ? timings.predicted_ms / 1000 : Math.max(0, (answer.lastAt - answer.firstAt) / 1000);
	const low = figures?.speedup_range?.[0] ?? 0;
	const high = figures?.speedup_range?.[1] ?? Infinity;
	return {
		n: answer.n,
		rounds: figures?.rounds ?? answer.n_rounds - known.rounds,
		drafted: figures?.n_drafted ?? answer.drafted - known.drafted,
		accepted: figures?.n_accept ?? answer.accepted - known.accepted,
		forced: figures?.forced_tokens ?? 0,
		seconds,
		timed: Math.max(0, answer.n - 1), // without the first one, of the prompt's decode
		rate: timings?.predicted_per_second || answer.rate,
		speedup: number(figures?.speedup), low, high,
		verdict: figures?.verdict ?? "unknown",
		limited: figures?.speedup_limited ?? false,
		why: figures?.speedup_reason ?? "",
		plain: number(figures?.plain_tps),
		source: figures?.plain_source ?? "none",
		reason: figures?.reason ?? "",
		first: number(figures?.ttft_seconds) ?? (answer.firstAt ? (answer.firstAt - answer.began) / 1000 : null),
		prompt: timings ? { n: timings.prompt_n, cached: timings.cache_n, rate: timings.prompt_per_second } : null,
		ended: Boolean(figures),
	};
}

/** The gain of parts together. */
function gainOf(parts) {
	const drafted = parts.filter((one) => one.drafted || one.forced);
	const unknown = drafted.find((one) => !Number.isFinite(one.speedup));
	if (!drafted.length || unknown) return { speedup: null, low: 0, high: Infinity, verdict: "unknown", limited: false, why: unknown?.why ?? "" };
	const seconds = sumOf(parts, (one) => one.seconds);
	const over = (what) => sumOf(parts, (one) => one.seconds * (one[what] && Number.isFinite(one.speedup) ? one[what] : 1)) / seconds;
	const [speedup, low, high] = ["speedup", "low", "high"].map(over);
	const limited = drafted.some((one) => one.limited);
	return { speedup, low, high, verdict: verdictOf(speedup, low, high), limited, why: drafted.find((one) => one.why)?.why ?? "" };
}

/** What drafting gained, as Gain.in_words of specllama/core/gain.py says it; "" where nothing is known. */
export function gainInWords({ speedup, low, high, verdict, limited, source, why, drafted, forced }) {
	if (!(drafted || forced)) return "";
	if (!Number.isFinite(speedup)) return why ? `gain unknown: ${why}` : "";
	const from = FROM[source] ? `, plain ${FROM[source]}` : "";
	const because = why ? `; ${why}` : "";
	if (isClear({ low, high, verdict })) {
		const head = verdict === "alike" ? "about as fast" : verdict;
		return `${head}: ${limited ? "at most " : ""}${speedup.toFixed(2)}× plain (${low.toFixed(2)} – ${high.toFixed(2)})${because}${from}`;
	}
	const head = verdict === "alike" ? "unclear" : `${verdict}, by how much is unclear`;
	return `${head}: between ${low.toFixed(2)}× and ${high.toFixed(2)}× plain${because}${from}`;
}

/** Whether an interval tells how much faster or slower, or that there is hardly a difference. */
const isClear = ({ low, high, verdict }) => low > 0 && Math.log(high / low) / 2 <= (verdict === "alike" ? NARROW : CLEAR);

/** The figures as [text, name of its explanation]. */
export function inParts(figures) {
	if (!figures || !Number.isFinite(figures.n)) return [];
	const found = [[counted(figures.n, "token"), "tokens"]];
	if (figures.rate) found.push([`${numeral(figures.rate)} tokens/s`, "rate"]);
	const gain = gainInWords(figures);
	if (gain) found.push([gain, "gain"]);
	if (figures.drafted) found.push([`${percent(figures.accepted / figures.drafted)} of ${counted(figures.drafted, "draft token")} accepted`, "accepted"]);
	else found.push([figures.reason || "no drafts", "none"]);
	if (Number.isFinite(figures.first)) found.push([`first token after ${inSeconds(figures.first)}`, "first"]);
	return found;
}

const inSeconds = (seconds) => (seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${numeral(seconds)} s`);

/** The same as text. */
export const summary = (figures) => inParts(figures).map(([text]) => text).join(" · ");

function gainInShort({ speedup, low, high, verdict, limited, drafted, forced }) {
	if (!(drafted || forced) || !Number.isFinite(speedup)) return "";
	if (!isClear({ low, high, verdict })) return "gain unclear";
	return verdict === "alike" ? "about as fast as plain" : `${limited ? "at most " : ""}${speedup.toFixed(2)}× plain`;
}

/** The line below an answer: its length and speed, and what drafting gained; null without figures. details(): shows the rest. */
export function figuresLine(figures, details) {
	const [length, ...others] = inParts(figures);
	if (!length) return null;
	const gain = gainInShort(figures);
	const parts = [length, ...others.filter(([, name]) => name === "rate"), ...(gain ? [[gain, "gain"]] : [])];
	const shown = parts.map(([text, name], i) => explained(element("span", {}, i < parts.length - 1 ? `${text} · ` : text), name));
	const line = button("", details, { class: "figures", "aria-controls": "panel" });
	line.append(...shown);
	// One stop for the keyboard, with all explanations.
	return explained(line, parts.map(([, name]) => name).join(" "));
}
