// Long questions are folded, but on paper.

import { addLines } from "./code.js";
import { button, bytes, element } from "./dom.js";
import { allNow } from "./idle.js";

const LONGEST = 4000; // characters, or
const LINES = 40; // that are shown whole
const BEGINNING = 1200;
const BEGINNING_LINES = 12;

/** The end of what is shown at first. */
function cut(text) {
	const lines = text.slice(0, LONGEST + 1).split("\n");
	if (text.length <= LONGEST && lines.length <= LINES) return text.length;
	const some = lines.slice(0, BEGINNING_LINES).join("\n").slice(0, BEGINNING);
	const space = some.lastIndexOf(" ");
	const end = some.length === BEGINNING && space > BEGINNING / 2 ? space : some.length;
	return /[\ud800-\udbff]/.test(text[end - 1]) ? end - 1 : end;
}

/** Nodes that show a text, folded if it is long. */
export function folded(text) {
	const end = cut(text);
	if (end === text.length) return [text];
	const shown = element("span", {}, `${text.slice(0, end)}…`);
	const size = bytes(new Blob([text]).size);
	const fold = button(`Show all of it (${size})`, () => {
		const open = fold.getAttribute("aria-expanded") !== "true";
		if (open) {
			shown.replaceChildren();
			addLines(shown, text.split(/(?<=\n)/).map((line) => document.createTextNode(line)));
		} else shown.textContent = `${text.slice(0, end)}…`;
		fold.textContent = open ? "Show less" : `Show all of it (${size})`;
		fold.setAttribute("aria-expanded", String(open));
	}, { class: "fold", "aria-expanded": "false" });
	return [shown, fold];
}

let unfolded = []; // for the print

addEventListener("beforeprint", () => {
	allNow();
	unfolded = [...document.querySelectorAll('.fold[aria-expanded="false"]')];
	for (const fold of unfolded) fold.click();
});
addEventListener("afterprint", () => {
	for (const fold of unfolded) fold.click();
	unfolded = [];
});
