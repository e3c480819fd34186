// The view of speculation: what the answer at hand gained, and where its tokens came from.

import { button, byId, bytes, counted, duration, element, keepFocus, numeral, percent, whole } from "./dom.js";
import { explained, term } from "./explain.js";
import { figuresOf } from "./figures.js";
import { roundsView } from "./rounds.js";
import { setTinted, tinted } from "./settings.js";

const WORDS = {
	target: "the model itself",
	model: "the draft model",
	head: "the model's own draft head",
	prediction: "copied from the predicted text",
	copy: "copied from the conversation",
	memory: "copied from earlier answers",
	corpus: "copied from the files of --memory-from",
	grammar: "forced by the grammar",
};
const AGREEMENT = 1.15; // of a speed-up and the tokens a round
const EVERY = 250; // milliseconds between two drawings while an answer is written

export class Panel {
	#drawn = 0;
	#state = element("p", { class: "state" });
	#tiles = element("dl", { class: "tiles" });
	#reason = element("p", { class: "hint" });
	#sources = element("ul", { class: "sources" });
	#charts = element("div", {});
	#latest = null; // what the charts show
	#answer = element("p", { class: "hint", hidden: true });
	#rounds = element("div", {});
	#watching = new AbortController(); // ends what the rounds that are shown listen to
	#about = null; // the message that they are of

	/** gain(): opens the card. */
	constructor(gain) {
		const box = element("input", { type: "checkbox", role: "switch" });
		box.checked = tinted();
		const apply = () => document.body.classList.toggle("tint", box.checked);
		box.addEventListener("change", () => {
			setTinted(box.checked);
			apply();
		});
		apply();
		byId("panel").replaceChildren(
			element("h2", {}, "Figures"),
			this.#state,
			this.#answer,
			this.#tiles,
			this.#reason,
			this.#rounds,
			button("What does it gain here?", gain, { class: "gain" }),
			element("label", { class: "switch" }, box, " Show where tokens came from"),
			this.#sources,
			this.#charts,
		);
	}

	/** Say why speculation is on or off. speculate: whether requests ask for it. problem: why the model cannot be used. */
	describe(props, speculate, problem = "") {
		this.#state.textContent = props ? inWords(props, speculate) : problem || "The model is loading.";
		this.#state.classList.toggle("off", !props || !speculate || Boolean(props.speculation.reason));
	}

	/** Show an answer: a generate.Answer. props: of the model. live: it is being written. */
	show(answer, props, live) {
		const now = performance.now();
		if (live && now - this.#drawn < EVERY) return;
		this.#drawn = now;
		const shown = tiles(figuresOf(answer), answer.figures ? null : plainRate(props), live);
		keepFocus(this.#tiles, () => this.#tiles.replaceChildren(...shown));
		this.#reason.textContent = answer.figures?.reason ? `This answer had no drafts: ${answer.figures.reason}.` : "";
		this.#sources.replaceChildren(...sources(answer));
		this.#draw(answer, props);
		if (live) this.#forget();
	}

	/**
	 * Show what is known of a stored answer besides its figures. answer: with its traces. root: its element, null without
	 * traces. place: which one of how many answers it is.
	 */
	about(message, { trace, reasoningTrace }, root, [i, n]) {
		const parts = aboutAnswer(message);
		if (n > 1) parts.unshift(`answer ${i} of ${n}`);
		this.#answer.textContent = parts.join(" · ");
		this.#answer.hidden = !parts.length;
		if (message === this.#about && root) return;
		this.#forget();
		this.#about = root ? message : null;
		this.#watching = new AbortController();
		if (root) this.#rounds.replaceChildren(...roundsView(root, message, trace, reasoningTrace, this.#watching.signal));
		this.#answer.hidden = !parts.length;
	}

	#forget() {
		this.#watching.abort();
		this.#about = null;
		this.#rounds.replaceChildren();
		this.#answer.hidden = true;
	}

	/** Draw the charts. answer: null without one. before: what is above them. */
	async #draw(answer, props, before = null) {
		const own = (this.#latest = {});
		const { charts } = await import("./panel_charts.js");
		const shown = charts(answer, props);
		if (own === this.#latest) keepFocus(this.#charts, () => this.#charts.replaceChildren(...(before ? [before] : []), ...shown));
	}

	clear(props) {
		const none = element("p", { class: "hint" }, "Ask something to see which tokens were drafted, and what that gained.");
		this.#tiles.replaceChildren();
		this.#reason.textContent = "";
		this.#sources.replaceChildren();
		this.#forget();
		this.#draw(null, props, none);
	}
}

/** Which model wrote an answer, and how much of the prompt was kept. */
function aboutAnswer({ model, edited, prompt, cached }) {
	const kept = cached && prompt ? `${whole(cached)} of ${whole(prompt)} tokens of the prompt were kept` : "";
	return [model, edited ? "edited by you" : "", kept].filter(Boolean);
}

/** The head and the draft model by name; `more` follows the latter. */
export function draftNames({ speculation, model_path: target, draft_model_path: file }, more = "") {
	const { draft, head, head_in_target: inside } = speculation;
	if (!draft) return [];
	const name = `${draft.name}${draft.quant ? ` ${draft.quant}` : ""}`;
	if (head && !inside) return [name.toLowerCase().includes(head.toLowerCase()) ? `head ${name}` : `head ${name} (${head})`];
	const names = head ? [`head of the model (${head})`] : [];
	if (!head || file !== target) names.push(`draft ${name}${more}`);
	return names;
}

/** Why speculation is on or off, as a sentence. */
export function inWords(props, speculate) {
	const { reason, drafters, draft_max: max } = props.speculation;
	if (!speculate) return "Off, because you switched it off. The text is the same, token for token.";
	if (reason) return `Off: ${reason}.`.replace("..", ".");
	const named = draftNames(props);
	const parts = drafters.flatMap((word) => (word === "model" && named.length ? named : word));
	const length = max ? `at most ${counted(max, "token")} a round` : "as many tokens a round as pay on this machine";
	return `On: ${parts.join(" + ")}, ${length}.`;
}

/** What the model runs on. */
export function deviceInWords({ gpus, n_threads: threads, n_gpu_layers: layers, n_layer: all }) {
	const cpu = `CPU with ${counted(threads, "thread")}`;
	if (!gpus.length) return cpu;
	const names = gpus.map(({ name, free, total }) => `${name} (${bytes(free)} of ${bytes(total)} free)`);
	return `${names.join(", ")}: ${layers < 0 ? "all" : layers} of ${all + 1} layers; ${cpu}`;
}

/** Tokens per second of plain decoding by t(1); null without it. */
export function plainRate(props) {
	const one = props?.speculation.decode_seconds?.find(([rows]) => rows === 1);
	return one ? 1 / one[1] : null;
}

function tile(name, explanation, value, note = "") {
	const found = element("div", {}, element("dt", {}, term(name, explanation)), element("dd", {}, value, element("small", {}, note)));
	return explained(found, explanation);
}

/** f: of figuresOf. stored: of plainRate, null where the server has compared. */
function tiles(f, stored, live) {
	const { plain, rounds, drafted, accepted: kept, prompt } = f;
	const a = rounds ? Math.max(0, f.stepped ?? f.timed ?? f.n - 1) / rounds : 0;
	const found = [
		tile("tokens/s", "rate", numeral(f.rate), plain && drafted ? `plain ${numeral(plain)}` : ""),
		tile("over plain", "gain", ...gain(f, stored, live, a)),
		tile("accepted", "accepted", drafted ? percent(kept / drafted) : "–", drafted ? `${numeral(kept)} of ${counted(drafted, "draft token")}` : "no drafts"),
		tile("tokens a round", "rounds", a ? numeral(a) : "–", rounds ? `${counted(f.counted ?? f.n, "token")}, ${counted(rounds, "round")}` : ""),
	];
	if (f.first !== null && f.first !== undefined) found.push(tile("first token", "first", duration(f.first), "after the request"));
	if (prompt?.n) {
		const kept_ = prompt.cached ? `, ${whole(prompt.cached)} kept` : "";
		found.push(tile("prompt", "prompt", `${numeral(prompt.rate)}/s`, `${counted(prompt.n, "token")} read${kept_}`));
	}
	return found;
}

const SOURCES = { run: "plain measured in this answer", stored: "plain measured before", compared: "compared" };

/** The speed over plain decoding; an estimate while the answer is written. */
function gain(f, stored, live, tokens) {
	if (Number.isFinite(f.speedup)) {
		const range = Number.isFinite(f.high) ? `${f.low.toFixed(2)} – ${f.high.toFixed(2)}, ` : "";
		const close = f.verdict === "alike" ? "too close to call, " : "";
		return [`${f.limited ? "at most " : ""}${f.speedup.toFixed(2)}×`, `${close}${range}${SOURCES[f.source] ?? ""}${f.why ? `; ${f.why}` : ""}`];
	}
	if (!live) return ["–", f.why];
	const estimate = stored && f.rate && f.drafted ? f.rate / stored : null;
	if (!estimate || estimate > AGREEMENT * Math.max(1, tokens)) return ["–", ""]; // more than a round writes cannot be
	return [`${Math.min(estimate, tokens).toFixed(2)}×`, "so far, plain measured before"];
}

function sources(answer) {
	const found = new Map();
	for (const { shares } of answer.traces) {
		for (const [source, n] of shares) found.set(source, (found.get(source) ?? 0) + n);
	}
	const all = [...found.values()].reduce((sum, n) => sum + n, 0);
	return [...found].sort((a, b) => b[1] - a[1]).map(([source, n]) =>
		element(
			"li",
			{},
			element("span", { class: "sample", "data-source": source }, source),
			element("span", {}, `${percent(n / all)} of the text, ${WORDS[source] ?? "another drafter"}`),
		),
	);
}
