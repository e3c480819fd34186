// Explanations of figures, shown where one points or goes with the keyboard.

import { byId, element, onEscape, placeTip } from "./dom.js";

/** Have an element explain itself. names: of texts, by spaces. */
export function explained(target, names) {
	target.dataset.explain = names;
	return target;
}

/** A button that explains itself: for names of figures. */
export function term(text, name) {
	return explained(element("button", { type: "button", class: "term", "aria-describedby": "explanation" }, text), name);
}

/** Show explanations, in one element that comes and goes. */
export function setUpExplanations() {
	const tip = element("div", { id: "explanation", role: "tooltip", hidden: true });
	document.body.append(tip);
	let shown = null;
	let dismissed = ""; // names, until another explanation or none is asked for
	const hide = () => {
		shown?.removeAttribute("aria-describedby");
		shown = null;
		tip.hidden = true;
	};
	const show = async (target) => {
		const names = target?.dataset.explain ?? "";
		if (names === dismissed && names) return;
		dismissed = "";
		if (target === shown) return;
		hide();
		if (!target) return;
		shown = target;
		const { TEXTS } = await import("./explanations.js");
		if (shown !== target) return;
		const texts = names.split(" ").map((name) => TEXTS[name]).filter(Boolean);
		if (!texts.length) return;
		(target.closest("dialog[open]") ?? document.body).append(tip);
		tip.replaceChildren(...texts.map((text) => element("p", {}, text)));
		tip.hidden = false;
		target.setAttribute("aria-describedby", "explanation");
		place();
	};
	const place = () => placeTip(tip, shown.getBoundingClientRect());
	const of = ({ target }) => target.closest?.("[data-explain]");
	addEventListener("pointerover", (event) => {
		if (of(event) || shown !== document.activeElement) show(of(event));
	});
	addEventListener("focusin", (event) => (of(event) ? show(of(event)) : hide()));
	addEventListener("focusout", hide);
	const scrolled = () => {
		if (shown && shown === document.activeElement && !tip.hidden) place();
		else if (shown !== document.activeElement) hide();
	};
	addEventListener("scroll", scrolled, { passive: true, capture: true });
	onEscape(window, () => {
		if (!shown) return false;
		dismissed = shown.dataset.explain;
		return hide();
	});
	byId("dialog")?.addEventListener("close", () => {
		hide();
		document.body.append(tip);
	});
}
