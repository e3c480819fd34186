// How fast decoding with drafts was against plain decoding, by the rules of specllama/core/gain.py.

import { verdictOf } from "./figures.js";

const AGREEMENT = Math.log(1.15); // log ratio of times that still agree
const LEAST_ERROR = 0.02; // as a log: runs of one prompt depend on each other
const ENOUGH = 0.03; // half width of an interval, as a log, that more pairs need not narrow
export const LEAST_PAIRS = 3;
// 97.5 % quantiles of Student's t distribution by degrees of freedom
const STUDENT = [Infinity, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];

/**
 * The speed-up of pairs of runs, [plain, with drafts] tokens per second each: its geometric mean and 95 % interval.
 * tokens: of a round with drafts. reason: why the verdict is unknown.
 */
export function compared(pairs, { tokens, drafted }) {
	const unknown = (reason) => ({ speedup: null, low: 0, high: Infinity, verdict: "unknown", reason, pairs: pairs.length });
	if (!drafted) return unknown("nothing was drafted");
	const logs = pairs.map(([plain, speculative]) => Math.log(speculative / plain));
	if (!logs.length || !logs.every(Number.isFinite)) return unknown("the answer was too short");
	if (logs.length < LEAST_PAIRS) return unknown(`an interval needs ${LEAST_PAIRS} pairs of runs, and there ${logs.length === 1 ? "is" : "are"} ${logs.length}`);
	const n = logs.length;
	const mean = logs.reduce((sum, x) => sum + x, 0) / n;
	const spread = Math.sqrt(logs.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (n - 1));
	const error = Math.max(LEAST_ERROR, ((STUDENT[n - 1] ?? 2) * spread) / Math.sqrt(n));
	if (mean - Math.log(tokens) > AGREEMENT) return unknown("plain decodes took longer than those with drafts");
	const capped = (log) => Math.exp(Math.min(log, Math.log(tokens)));
	const found = { speedup: capped(mean), low: Math.exp(Math.min(mean, Math.log(tokens)) - error), high: capped(mean + error) };
	return { ...found, verdict: verdictOf(found.speedup, found.low, found.high), reason: "", pairs: n };
}

/** Whether more pairs would say no more. */
export function isSettled({ speedup, low, high, verdict }) {
	if (speedup === null) return false;
	return verdict !== "alike" || Math.log(high / low) / 2 <= ENOUGH;
}

/** "1.62 × (1.55 – 1.70)". */
export function inFigures({ speedup, low, high }) {
	return `${speedup.toFixed(2)} × (${low.toFixed(2)} – ${high.toFixed(2)})`;
}
