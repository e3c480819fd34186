// How fast decoding with drafts was against plain decoding, by the rules of specllama/core/gain.py.

import { verdictOf } from "./figures.js";

const LEAST_ERROR = 0.02; // as a log: runs of one prompt depend on each other
const ENOUGH = 0.03; // half width of an interval, as a log, that more pairs need not narrow
export const LEAST_PAIRS = 3;
export const [MOST_OF_RACE, MOST_OF_TASK] = [9, 5]; // pairs
// Half widths of an interval in standard errors, from LEAST_PAIRS pairs on, by the most pairs. A comparison may end after
// each of them, so these are the bounds of Pocock (Biometrika 64, 1977) for a t statistic: quantiles whose level is the
// same at each look, so that all intervals of a comparison together hold the true value in 95 % of comparisons.
// tests/unit/server/test_gain_bounds.py derives them.
const BOUNDS = { [MOST_OF_TASK]: [6.53, 4.34, 3.62], [MOST_OF_RACE]: [8.68, 5.31, 4.27, 3.77, 3.49, 3.31, 3.18] };

/**
 * The speed-up of pairs of runs, [plain, with drafts] tokens per second each: its geometric mean and an interval that
 * holds for as many looks as there may be, up to `most` pairs. tokens: of a round with drafts, the most there can be.
 * limited: more was measured; the interval is as much wider. reason: why the verdict is unknown.
 */
export function compared(pairs, { tokens, drafted, most = MOST_OF_RACE }) {
	const unknown = (reason) => ({ speedup: null, low: 0, high: Infinity, verdict: "unknown", reason, limited: false, pairs: pairs.length });
	if (!drafted) return unknown("nothing was drafted");
	const logs = pairs.map(([plain, speculative]) => Math.log(speculative / plain));
	if (!logs.length || !logs.every(Number.isFinite)) return unknown("the answer was too short");
	if (logs.length < LEAST_PAIRS) return unknown(`an interval needs ${LEAST_PAIRS} pairs of runs, and there ${logs.length === 1 ? "is" : "are"} ${logs.length}`);
	const n = logs.length;
	const mean = logs.reduce((sum, x) => sum + x, 0) / n;
	const spread = Math.sqrt(logs.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (n - 1));
	const error = Math.max(LEAST_ERROR, (BOUNDS[most][Math.min(n, most) - LEAST_PAIRS] * spread) / Math.sqrt(n));
	const limit = Math.log(tokens); // a round takes no less than a plain one
	const beyond = Math.max(0, mean - limit);
	const [speedup, low, high] = [Math.min(mean, limit), Math.min(mean, limit) - error - beyond, Math.min(mean + error, limit)].map(Math.exp);
	return { speedup, low, high, verdict: verdictOf(speedup, low, high), reason: "", limited: beyond > 0, pairs: n };
}

/** Whether more pairs would say no more. */
export function isSettled({ speedup, low, high, verdict }) {
	if (speedup === null) return false;
	return verdict !== "alike" || Math.log(high / low) / 2 <= ENOUGH;
}

/** "1.62 × (1.55 – 1.70)". */
export function inFigures({ speedup, low, high, limited }) {
	return `${limited ? "at most " : ""}${speedup.toFixed(2)} × (${low.toFixed(2)} – ${high.toFixed(2)})`;
}

export const LIMITED = "limited to the tokens of a round";
