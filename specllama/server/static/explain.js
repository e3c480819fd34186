// Explanations of figures, shown where one points or goes with the keyboard.

import { byId, element } from "./dom.js";

/** Have an element explain itself. names: of texts, separated by spaces. */
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
	const hide = () => {
		shown?.removeAttribute("aria-describedby");
		shown = null;
		tip.hidden = true;
	};
	const show = async (target) => {
		if (target === shown) return;
		hide();
		shown = target;
		const { TEXTS } = await import("./explanations.js");
		if (shown !== target) return;
		const texts = target.dataset.explain.split(" ").map((name) => TEXTS[name]).filter(Boolean);
		if (!texts.length) return;
		(target.closest("dialog[open]") ?? document.body).append(tip);
		tip.replaceChildren(...texts.map((text) => element("p", {}, text)));
		tip.hidden = false;
		target.setAttribute("aria-describedby", "explanation");
		place();
	};
	const place = () => {
		const box = shown.getBoundingClientRect();
		const above = box.top - tip.offsetHeight - 6;
		tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
		tip.style.top = `${above > 0 ? above : Math.min(box.bottom + 6, innerHeight - tip.offsetHeight - 8)}px`;
	};
	const of = ({ target }) => target.closest?.("[data-explain]");
	addEventListener("pointerover", (event) => {
		const found = of(event);
		if (found) show(found);
		else if (shown && shown !== document.activeElement && event.target.closest?.("#explanation") !== tip) hide();
	});
	addEventListener("focusin", (event) => (of(event) ? show(of(event)) : hide()));
	addEventListener("focusout", hide);
	const scrolled = () => {
		if (shown && shown === document.activeElement && !tip.hidden) place();
		else if (shown !== document.activeElement) hide();
	};
	addEventListener("scroll", scrolled, { passive: true, capture: true });
	addEventListener("keydown", (event) => event.key === "Escape" && hide());
	byId("dialog")?.addEventListener("close", () => {
		hide();
		document.body.append(tip);
	});
}
