// Style sheets that are loaded when they are needed.

import { element } from "./dom.js";

const there = new Map();

/** Load a style sheet of the page once; the promise ends when it applies, or cannot be had. */
export function loadStyle(name) {
	if (!there.has(name)) {
		const link = element("link", { rel: "stylesheet", href: new URL(name, import.meta.url) });
		there.set(name, new Promise((resolve) => {
			link.addEventListener("load", resolve);
			link.addEventListener("error", resolve);
		}));
		document.head.append(link);
	}
	return there.get(name);
}
