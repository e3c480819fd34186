// Rounds in slow motion: the draft appears, the target's decode strikes out what is wrong, and its own token follows.

import { openDialog } from "./dialog.js";
import { button, element, pause, region, whole } from "./dom.js";
import { loadStyle } from "./styles.js";
import { inWords } from "./trace.js";

loadStyle("exhibit.css");
const GUESS = 130; // milliseconds between tokens of a draft
const VERIFY = 650; // while the target decodes, and while what is wrong is shown
const NEXT = 550;

const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/**
 * The rounds of a text, the prompt's decode too: [{parts: [[text, source], …], rejected: [[text, source], …], round}].
 * Text without a round comes with the one before it.
 */
export function framesOf(text, trace) {
	const frames = trace.rounds.map((round) => ({ parts: [], rejected: round[5] ?? [], round }));
	if (!frames.length) return [];
	let at = 0;
	for (const [end, source, index] of trace.runs) {
		if (end > at) frames[Math.max(0, index)]?.parts.push([text.slice(at, end), source]);
		at = Math.max(at, end);
	}
	if (at < text.length) frames.at(-1).parts.push([text.slice(at), ""]);
	return frames;
}

/** A drafted part in pieces that look like tokens. */
const pieces = ([text, source]) => (text.match(/\s*\S+|\s+$/g) ?? [text]).map((piece) => [piece, source]);

const span = ([text, source], name) => element("span", { class: name, "data-source": source || null }, text);

/** Plays frames into an element. changed(index, playing): called before each frame and when it stops. */
export class Player {
	#target;
	#frames;
	#changed;
	#index = 0; // of the next frame
	#turn = 0; // of the latest play, which ends earlier ones
	playing = false;

	constructor(target, frames, changed = () => {}) {
		this.#target = target;
		this.#frames = frames;
		this.#changed = changed;
	}

	showTo(index) {
		this.pause();
		this.#index = Math.max(0, Math.min(index, this.#frames.length));
		this.showParts();
	}

	/** Show a frame without motion: its draft with what was struck out, and the target's token. */
	showFrame(index) {
		this.showTo(index);
		const frame = this.#frames[this.#index];
		if (!frame) return;
		this.#index += 1;
		const { guesses, own } = split(frame);
		this.#target.append(
			...guesses.map((part) => span(part, "ghost")), ...frame.rejected.map((part) => span(part, "struck")),
			...own.map((part) => span(part, "snap")),
		);
		this.#changed(index, false);
		this.#toEnd();
	}

	pause() {
		this.#turn += 1;
		if (this.playing) this.#changed(this.#index, false);
		this.playing = false;
	}

	async play() {
		const turn = (this.#turn += 1);
		this.playing = true;
		if (this.#index >= this.#frames.length) this.#index = 0;
		this.showParts();
		while (turn === this.#turn && this.#index < this.#frames.length) {
			this.#changed(this.#index, true);
			if (!(await this.#playFrame(this.#frames[this.#index], turn))) return;
			this.#index += 1;
		}
		if (turn !== this.#turn) return;
		this.playing = false;
		this.#changed(this.#index, false);
	}

	showParts() {
		const parts = this.#frames.slice(0, this.#index).flatMap((frame) => frame.parts);
		this.#target.replaceChildren(...parts.map((part) => span(part, "")));
		this.#toEnd();
	}

	#toEnd() {
		this.#target.scrollTop = this.#target.scrollHeight;
	}

	async #playFrame(frame, turn) {
		const later = async (ms) => {
			await pause(ms);
			return turn === this.#turn;
		};
		const add = (part, name) => {
			const found = span(part, name);
			this.#target.append(found);
			this.#toEnd();
			return found;
		};
		const { guesses, own } = split(frame);
		const ghosts = [];
		for (const part of guesses.flatMap(pieces)) {
			ghosts.push(add(part, "ghost"));
			if (!(await later(GUESS))) return false;
		}
		const wrong = [];
		for (const part of frame.rejected) {
			wrong.push(add(part, "ghost"));
			if (!(await later(GUESS))) return false;
		}
		if (!(await later(VERIFY / 2))) return false;
		for (const one of ghosts) one.className = "";
		for (const one of wrong) one.className = "struck";
		if (wrong.length && !(await later(VERIFY))) return false;
		for (const one of wrong) one.remove();
		for (const part of own) add(part, "snap");
		return later(NEXT);
	}
}

/** What of a frame was drafted, and what the target added. */
function split({ parts }) {
	const first = parts.findIndex(([, source]) => source === "target" || !source);
	const at = first < 0 ? parts.length : first;
	return { guesses: parts.slice(0, at), own: parts.slice(at) };
}

/** Open the view that plays an answer. texts: {content, reasoning}. */
export function openPlayer({ content, reasoning = "" }, trace, reasoningTrace) {
	const frames = [...framesOf(reasoning, reasoningTrace), ...framesOf(content, trace)];
	const text = element("div", { class: "player-text", ...region("Rounds"), dir: "auto" });
	const said = element("p", { class: "player-said" });
	const slider = element("input", { type: "range", min: 1, max: frames.length, step: 1, value: 1, "aria-label": "Decode" });
	const changed = (index, playing) => {
		toggle.textContent = playing ? "Pause" : "Play";
		slider.value = String(Math.min(index, frames.length - 1) + 1);
		said.textContent = about(frames, Math.min(index, frames.length - 1));
		slider.setAttribute("aria-valuetext", said.textContent);
	};
	const player = new Player(text, frames, changed);
	const toggle = button("Play", () => (player.playing ? player.pause() : player.play()));
	const step = (by) => player.showFrame(Math.max(0, Math.min(frames.length - 1, Number(slider.value) - 1 + by)));
	slider.addEventListener("input", () => step(0));
	openDialog(
		"Round by round",
		[
			element(
				"p", { class: "hint" },
				"Grey: what the draft proposes. One decode of the model verifies it; what it would not have written is struck out, and its own token follows. The text is the model's own, with and without drafts.",
			),
			text,
			said,
			element("div", { class: "player-tools" }, toggle, button("Back", () => step(-1)), button("Next", () => step(1)), slider),
		],
		{ wide: true, closed: () => player.pause() },
	);
	player.showFrame(0);
	if (!still()) {
		player.showTo(0);
		player.play();
	}
}

function about(frames, index) {
	const { round, rejected } = frames[index];
	const lost = rejected.length ? `; struck out: ${rejected.map(([text]) => text).join("")}` : "";
	return `Decode ${whole(index + 1)} of ${whole(frames.length)}: ${inWords(round)}${lost}`;
}
