// The rounds of an answer: a slider through them, the figures of the one under the pointer, and the view that plays
// them in slow motion, which is loaded when it is asked for.

import { button, counted, element } from "./dom.js";
import { inWords } from "./trace.js";

/** Words about the round with this index; only decodes with their own tokens are counted. */
function named(trace, index) {
	let n = 0;
	for (let i = 0; i <= index; i++) n += trace.rounds[i][4] ?? 1;
	const text = inWords(trace.rounds[index]);
	return (trace.rounds[index][4] ?? 1) === 0 ? text : `Round ${n.toLocaleString("en")} of ${trace.n_rounds.toLocaleString("en")}: ${text}`;
}

/** What shows the rounds of an answer. root: its element; texts: {content, reasoning}; trace: of the content. */
export function roundsView(root, texts, trace, reasoningTrace) {
	const own = trace.rounds.flatMap((round, i) => ((round[4] ?? 1) ? [i] : []));
	if (!own.length) {
		const lost = texts.figures?.drafted > 0 && !reasoningTrace.n_rounds && !texts.edited;
		return lost ? [element("p", { class: "hint" }, "Its rounds were not stored, so its colours are gone.")] : [];
	}
	const play = button("Play", async () => {
		const { openPlayer } = await import("./player.js");
		openPlayer(texts, trace, reasoningTrace);
	}, { "aria-label": "Play the rounds in slow motion", title: "Round by round, in slow motion" });
	return [element("div", { class: "stepper" }, ...stepper(root, trace, own), play)];
}

function stepper(root, trace, own) {
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
	});
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
	const hide = () => {
		if (shown) mark(shown, -1);
		shown = null;
		tip.hidden = true;
	};
	const show = (event) => {
		const part = event.target.closest?.("[data-round]");
		if (!part) return hide();
		const root = part.closest(".message");
		const rounds = roundsOf(root, Boolean(part.closest(".thoughts")));
		const round = rounds?.[Number(part.dataset.round)];
		if (!round) return hide();
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
		const box = part.getClientRects()[0];
		const left = Math.min(event.clientX, innerWidth - tip.offsetWidth - 8);
		const above = (box?.top ?? event.clientY) - tip.offsetHeight - 6;
		tip.style.left = `${Math.max(8, left)}px`;
		tip.style.top = `${above > 0 ? above : (box?.bottom ?? event.clientY) + 6}px`;
		return undefined;
	};
	log.addEventListener("pointerover", show);
	log.addEventListener("pointerleave", hide);
	log.addEventListener("scroll", hide, { passive: true });
	addEventListener("keydown", (event) => event.key === "Escape" && hide());
}
