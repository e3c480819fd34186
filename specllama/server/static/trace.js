// Where each part of an answer's text came from, and in which round. Positions are those of JavaScript strings.

import { element, whole } from "./dom.js";

const LOST = 40; // characters of Markdown syntax that a rendered character is looked for in

/**
 * The sources of a text as runs, and its rounds, with their sums.
 * rounds: [drafted, accepted, milliseconds, tokens written so far, rounds, rejected]: of one decode, 0 rounds being the
 * prompt's, which gives the first token, and 2 where one was decided again; rejected: [text, source] of draft tokens.
 * n_rounds: their number. shares: characters by source. reached, kept: by position j, the rounds whose draft was longer
 * than j, and those whose token j was accepted.
 */
export class Trace {
	runs = []; // [end in the text, source, index of the round or -1]
	rounds = [];
	shares = new Map();
	reached = [];
	kept = [];
	drafted = 0;
	accepted = 0;
	n_rounds = 0;

	/** length: of the text; the source of what the runs do not cover is unknown. */
	constructor({ runs = [], rounds = [] } = {}, length = 0) {
		for (const round of rounds) this.#round(round);
		for (const run of runs) this.#run(run);
		if (length > this.length) this.#run([length, "", -1]);
	}

	#round(round) {
		const [drafted, accepted, , , n = 1] = round;
		this.rounds.push(round);
		this.n_rounds += n;
		this.drafted += drafted;
		this.accepted += accepted;
		for (let j = 0; j < drafted; j++) {
			this.reached[j] = (this.reached[j] ?? 0) + 1;
			this.kept[j] = (this.kept[j] ?? 0) + (j < accepted ? 1 : 0);
		}
	}

	#run(run) {
		const [end, source] = run;
		if (source) this.shares.set(source, (this.shares.get(source) ?? 0) + end - this.length);
		this.runs.push(run);
	}

	get length() {
		return this.runs.length ? this.runs.at(-1)[0] : 0;
	}

	/** Add the next part of the text with what the server says of it, if anything. */
	add(text, speculation) {
		this.addRounds(speculation);
		const round = this.rounds.length - 1;
		let rest = text;
		for (const [characters, source] of speculation?.tokens ?? []) {
			const size = units(rest, characters);
			if (size) this.#run([this.length + size, source, round]);
			rest = rest.slice(size);
		}
		if (rest) this.#run([this.length + rest.length, "", round]);
	}

	addRounds(speculation) {
		for (const one of [...(speculation?.earlier_rounds ?? []), speculation?.round]) {
			if (!one) continue;
			const { drafted, accepted, ms, n_predict = 0, rounds = 1, rejected } = one;
			this.#round([drafted, accepted, ms, n_predict, rounds, ...(rejected ? [rejected] : [])]);
		}
	}

	/** The text in parts of one source each: [[text, source], …]. */
	parts(text) {
		const found = [];
		let at = 0;
		for (const [end, source] of this.runs) {
			if (end > at) found.push([text.slice(at, end), source]);
			at = Math.max(at, end);
		}
		if (at < text.length) found.push([text.slice(at), ""]);
		return found;
	}

	/** Index of the run that has the character at a position; the last one after the end. */
	find(position) {
		let low = 0;
		let high = this.runs.length - 1;
		while (low < high) {
			const middle = (low + high) >> 1;
			if (this.runs[middle][0] > position) high = middle;
			else low = middle + 1;
		}
		return low;
	}

	spans(text, position) {
		const found = [];
		let i = this.find(position);
		for (let at = 0; at < text.length; i++) {
			const [end, source, round] = this.runs[Math.min(i, this.runs.length - 1)] ?? [Infinity, "", -1];
			const next = i >= this.runs.length - 1 ? text.length : Math.min(text.length, end - position);
			if (next > at) found.push(span(text.slice(at, next), source, round));
			at = Math.max(at, next);
		}
		return found;
	}

	/** Mark what was rendered: each part by its place in the source text. */
	paint(root, text) {
		for (const part of root.querySelectorAll("data")) {
			const [begin, end] = part.value.split(" ").map(Number);
			part.replaceWith(...this.#parts(part.textContent, text, begin, end));
		}
	}

	/**
	 * Spans of what is shown of text[begin…end]. Where these differ, as with entities, each character is looked for in
	 * order, and what the source has besides them is skipped.
	 */
	#parts(shown, text, begin, end) {
		if (shown.length === end - begin || !this.runs.length) return this.spans(shown, begin);
		const found = [];
		let at = begin;
		let from = 0;
		let run = -1;
		for (let i = 0; i < shown.length; i++) {
			const place = position(text, shown[i], at, end);
			const here = this.find(place < 0 ? at : place);
			if (here !== run) {
				if (i > from) found.push(this.#span(shown.slice(from, i), run));
				[run, from] = [here, i];
			}
			if (place >= 0) at = place + 1;
		}
		if (shown) found.push(this.#span(shown.slice(from), run));
		return found;
	}

	#span(text, run) {
		const [, source, round] = this.runs[run];
		return span(text, source, round);
	}
}

function position(text, character, from, to) {
	const end = Math.min(to, from + LOST);
	for (let i = from; i < end; i++) if (text[i] === character) return i;
	return -1;
}

function span(text, source, round) {
	return element("span", { "data-source": source || null, "data-round": round < 0 ? null : round }, text);
}

/** Length of the first `n` characters of a text, as Python counts them, in JavaScript's units. */
function units(text, n) {
	let found = 0;
	for (let i = 0; i < n && found < text.length; i++) found += text.codePointAt(found) > 0xffff ? 2 : 1;
	return found;
}

/** A round in words. */
export function inWords([drafted, accepted, ms, , n = 1]) {
	const time = `${ms < 10 ? ms.toFixed(1) : whole(Math.round(ms))} ms`;
	if (n === 0) return `first token, from the prompt's decode, ${time} after the request`;
	if (!drafted) return `no draft, ${time}`;
	return `${drafted} drafted, ${accepted} accepted, ${time}`;
}
