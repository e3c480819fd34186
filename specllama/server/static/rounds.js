// The rounds of an answer: a slider through them, and the figures of the one under the pointer.

import { button, counted, element, placeTip, whole } from "./dom.js";
import { inWords } from "./trace.js";

/** Words about the round with this index; only decodes with their own tokens are counted. */
function named(trace, index) {
	let n = 0;
	for (let i = 0; i <= index; i++) n += trace.rounds[i][4] ?? 1;
	const text = inWords(trace.rounds[index]);
	return (trace.rounds[index][4] ?? 1) === 0 ? text : `Round ${whole(n)} of ${whole(trace.n_rounds)}: ${text}`;
}

/**
 * What shows the rounds of an answer. root: its element; texts: {content, reasoning}; trace: of the content. signal: ends
 * watching which round is pointed at.
 */
export function roundsView(root, texts, trace, reasoningTrace, signal) {
	const own = trace.rounds.flatMap((round, i) => ((round[4] ?? 1) ? [i] : []));
	if (!own.length) {
		const lost = texts.figures?.drafted > 0 && !reasoningTrace.n_rounds && !texts.edited;
		return lost ? [element("p", { class: "hint" }, "Its rounds were not stored, so its colours are gone.")] : [];
	}
	const play = button("Play", async () => {
		const { openPlayer } = await import("./player.js");
		openPlayer(texts, trace, reasoningTrace);
	}, { "aria-label": "Play the rounds in slow motion", title: "Round by round, in slow motion" });
	return [element("div", { class: "stepper" }, ...stepper(root, trace, own, signal), play)];
}

function stepper(root, trace, own, signal) {
	const said = element("output", { class: "round" });
	const slider = element("input", {
		type: "range", min: 1, max: own.length, step: 1, value: 1, "aria-label": "Round",
	});
	const show = () => {
		const i = own[Number(slider.value) - 1];
		said.textContent = named(trace, i);
		slider.setAttribute("aria-valuetext", said.textContent);
		mark(root, i);
	};
	slider.addEventListener("input", show);
	slider.addEventListener("focus", show);
	slider.addEventListener("blur", () => mark(root, -1));
	root.addEventListener("roundchosen", ({ detail }) => {
		if (!trace.rounds[detail]) return;
		if (own.includes(detail)) slider.value = String(own.indexOf(detail) + 1);
		said.textContent = named(trace, detail);
	}, { signal });
	slider.setAttribute("aria-valuetext", named(trace, own[0]));
	said.textContent = counted(trace.n_rounds, "round");
	return [slider, said];
}

/** Mark the text of a round, -1 for none. */
function mark(root, round) {
	for (const part of root.querySelectorAll(".marked")) part.classList.remove("marked");
	if (round < 0) return;
	for (const part of root.querySelectorAll(`.body [data-round="${round}"]`)) part.classList.add("marked");
}

/** Show the figures of the round under the pointer, next to it. log: the conversation's element. */
export function watchRounds(log, tip, roundsOf) {
	let shown = null;
	let round = null;
	let dismissed = null; // the round whose figures somebody has dismissed
	const hide = () => {
		if (shown) mark(shown, -1);
		shown = round = null;
		tip.hidden = true;
	};
	const show = (event) => {
		const part = event.target.closest?.("[data-round]");
		if (!part) return hide();
		const root = part.closest(".message");
		const rounds = roundsOf(root, Boolean(part.closest(".thoughts")));
		round = rounds?.[Number(part.dataset.round)];
		if (!round || round === dismissed) return hide();
		if (shown && shown !== root) mark(shown, -1);
		shown = root;
		if (!part.closest(".thoughts")) {
			mark(root, Number(part.dataset.round));
			root.dispatchEvent(new CustomEvent("roundchosen", { detail: Number(part.dataset.round) }));
		}
		const source = part.dataset.source ?? "";
		const rejected = (round[5] ?? []).map(([text]) => text).join("");
		const lost = rejected ? `; rejected: ${rejected.slice(0, 40)}${rejected.length > 40 ? "…" : ""}` : "";
		tip.textContent = `${source && `${source} · `}${inWords(round)}${lost}`;
		tip.hidden = false;
		const { clientX: left, clientY: y } = event;
		const { top, bottom } = part.getClientRects()[0] ?? { top: y, bottom: y };
		return placeTip(tip, { left, top, bottom });
	};
	log.addEventListener("pointerover", show);
	// What a finger has shown stays until it touches something else.
	log.addEventListener("pointerleave", ({ pointerType }) => pointerType === "touch" || hide());
	document.addEventListener("pointerdown", ({ target }) => log.contains(target) || hide());
	log.addEventListener("scroll", hide, { passive: true });
	addEventListener("keydown", ({ key }) => {
		if (key !== "Escape") return;
		dismissed = round;
		hide();
	});
}
