// A form in the place of a message's text, to change it.

import { button, element } from "./dom.js";

/** A form with a text. label: what it is called; hint: what sending it does; save: the button's text; actions:
 * {save(text), end()}. */
export function editForm(text, { label, hint, save }, actions) {
	const area = element("textarea", { dir: "auto", "aria-label": label, rows: Math.min(20, Math.max(4, text.split("\n").length)) });
	area.value = text;
	const send = (event) => {
		event.preventDefault();
		if (area.value.trim()) actions.save(area.value);
	};
	const form = element(
		"form",
		{ class: "edit", on: { submit: send } },
		area,
		element("p", { class: "hint" }, hint),
		element("div", { class: "actions" }, element("button", { class: "primary" }, save), button("Cancel", actions.end)),
	);
	area.addEventListener("keydown", (event) => {
		if (event.key === "Escape") {
			event.stopPropagation();
			actions.end();
		}
		if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
	});
	return { form, area };
}
