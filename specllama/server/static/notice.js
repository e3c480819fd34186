// What the page says next to the conversation.

import { byId, button, keepFocus } from "./dom.js";

/** What is said now, "" for nothing. */
export const noticed = () => byId("notice").querySelector("p").textContent;

/** Show a notice; "" for none. actions: functions by the text of their button. */
export function say(text, actions = {}) {
	const notice = byId("notice");
	const buttons = Object.entries(actions).map(([name, action]) => button(name, action));
	if (text) buttons.push(button("✕", () => say(""), { class: "icon", "aria-label": "Dismiss" }));
	const change = () => {
		notice.hidden = !text;
		notice.querySelector("p").textContent = text;
		notice.querySelector(".actions").replaceChildren(...buttons);
	};
	keepFocus(notice, change, () => buttons[0]);
}

/** Take back what was said, unless something else is said by now. */
export function takeBack(text) {
	if (text && noticed() === text) say("");
}
