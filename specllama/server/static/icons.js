// Icons of buttons, drawn with lines of the text's colour.

import { button } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
// by name: the lines, in a square of 16
const LINES = {
	copy: "M5.5 5.5h8v8h-8z M10.5 5.5v-3h-8v8h3",
	done: "M3 8.5l3.5 3.5 6.5-8",
	again: "M13 8a5 5 0 1 1-1.5-3.6M13 2v3h-3",
	source: "M5.5 4.5L2 8l3.5 3.5M10.5 4.5L14 8l-3.5 3.5",
	edit: "M3 13l.7-3L10.5 3.2l2.3 2.3L6 12.3z",
	remove: "M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.6 9h5.8l.6-9",
};

export function icon(name) {
	const found = document.createElementNS(SVG, "svg");
	found.setAttribute("viewBox", "0 0 16 16");
	found.setAttribute("class", "drawn");
	found.setAttribute("aria-hidden", "true");
	const path = document.createElementNS(SVG, "path");
	path.setAttribute("d", LINES[name]);
	found.append(path);
	return found;
}

/** A button with an icon. label: its name, which is shown where one points. */
export const iconButton = (name, label, action, props = {}) =>
	button(icon(name), action, { title: label.split(" the ")[0], "aria-label": label, ...props });
