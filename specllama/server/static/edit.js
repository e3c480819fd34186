// A form in the place of a message's text, to change it.

import { addressed } from "./address.js";
import { button, element, onEnter, onEscape } from "./dom.js";
import { read, write } from "./storage.js";

/** A form with a message's text, or what was typed for it and not sent. hint: what sending it does; save: the button's
 * text; actions: {save(text), end()}. */
export function editForm({ id, content }, { label, hint, save }, actions) {
	const key = `specllama.draft.${addressed()}.${id}`;
	const text = read(key) ?? content;
	const end = () => {
		write(key, null);
		actions.end();
	};
	const area = element("textarea", { required: true, dir: "auto", "aria-label": label, rows: Math.min(20, Math.max(4, text.split("\n").length)) });
	area.value = text;
	const send = (event) => {
		event.preventDefault();
		if (!area.value.trim()) return;
		write(key, null);
		actions.save(area.value);
	};
	area.addEventListener("input", () => write(key, area.value));
	const form = element(
		"form",
		{ class: "edit", on: { submit: send } },
		area,
		element("p", { class: "hint" }, hint),
		element("div", { class: "actions" }, element("button", { class: "primary" }, save), button("Cancel", end)),
	);
	onEscape(area, end);
	onEnter(area, () => form.requestSubmit());
	return { form, area };
}
