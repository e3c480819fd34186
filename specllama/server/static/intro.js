// The empty page: speculative decoding in slow motion.

import { button, byId, element, pause } from "./dom.js";
import { Player } from "./player.js";

const frame = (guesses, rejected, own) => ({
	parts: [...guesses.map((text) => [text, "model"]), [own, "target"]],
	rejected: rejected.map((text) => [text, "model"]),
});
const FRAMES = [
	frame(["A", " hash"], [" map"], " table"),
	frame([" stores", " each"], [" key"], " value"),
	frame([" under", " a", " key", ","], [], " so"),
	frame([" that", " it"], [" can", " be"], " is"),
	frame([" found", " at", " once"], [], "."),
];
const PAUSE = 2500; // milliseconds before it begins again
const TURNS = 3;
export const SENTENCE =
	"A quick draft proposes the next tokens, the model verifies them all in one decode and writes its own token where one is " +
	"wrong: the text stays the model's own, token for token, and comes sooner.";

/** Show it while the conversation is empty and nothing is typed. gain(): opens the card. */
export function setUpIntro(gain) {
	const log = byId("log");
	const text = element("div", { class: "player-text", "aria-hidden": "true" });
	const view = element(
		"section", { id: "intro", "aria-label": "How speculative decoding works" },
		text, element("p", {}, SENTENCE), button("What does it gain here?", gain),
	);
	log.after(view);
	let turn = 0;
	const player = new Player(text, FRAMES);
	const stop = () => {
		turn += 1;
		player.pause();
		player.showTo(FRAMES.length);
	};
	const start = async () => {
		const own = (turn += 1);
		if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
			player.showFrame(1); // one with something struck out
			return;
		}
		for (let i = 0; i < TURNS && own === turn; i++) {
			player.showTo(0);
			await player.play();
			await pause(PAUSE);
		}
	};
	const apply = () => (log.childElementCount || byId("question").value ? stop() : start());
	new MutationObserver(apply).observe(log, { childList: true });
	byId("question").addEventListener("input", stop);
	document.addEventListener("visibilitychange", () => document.hidden && stop());
	apply();
}
