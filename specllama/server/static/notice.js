// What the page says next to the conversation: notices, and how much of the context is taken.

import { byId, button } from "./dom.js";

const FULL_SHARE = 0.9; // of the context from which on the gauge warns

/** Show a notice; "" for none. actions: functions by the text of their button. */
export function say(text, actions = {}) {
	const notice = byId("notice");
	notice.hidden = !text;
	notice.querySelector("p").textContent = text;
	const found = Object.entries(actions).map(([name, action]) => button(name, action));
	if (text) found.push(button("✕", () => say(""), { class: "icon", "aria-label": "Dismiss" }));
	notice.querySelector(".actions").replaceChildren(...found);
}

/**
 * Show how many tokens of the context are used. size: of the context, 0 while it is unknown. actions: that make room,
 * as for `say`; null: nothing is said.
 */
export function showContext(used, size, actions = {}) {
	byId("context").value = size ? Math.min(1, used / size) : 0;
	byId("context").high = FULL_SHARE;
	byId("context-text").textContent = size ? `${used.toLocaleString("en")} of ${size.toLocaleString("en")} tokens` : "";
	byId("context").title = "When the context is full, answers end; nothing is dropped from it silently.";
	if (actions && size && used > FULL_SHARE * size && !byId("notice").textContent) {
		say("The context is almost full: an answer ends when it is.", actions);
	}
}
