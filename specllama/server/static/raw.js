// The source of an answer.

import { addLines } from "./code.js";
import { element } from "./dom.js";
import { iconButton } from "./icons.js";

/** A button that switches between the Markdown of an answer and what is rendered of it. */
export function rawButton(body, text, trace) {
	let rendered = null;
	const toggle = iconButton("source", "Source", () => {
		const raw = !rendered;
		if (raw) {
			rendered = [...body.childNodes];
			const source = element("div", { class: "source-text", dir: "auto" });
			addLines(source, trace.spans(text, 0));
			body.replaceChildren(source);
		} else {
			body.replaceChildren(...rendered);
			rendered = null;
		}
		toggle.setAttribute("aria-pressed", String(raw));
	}, { "aria-pressed": "false", title: "The text as the model wrote it, before it is rendered" });
	return toggle;
}
