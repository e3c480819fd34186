// Shows a Markdown text while it arrives. What is complete is rendered once: blocks, items of a long list, rows of a long
// table. The rest is rendered again while it is short; a long block grows at its end, and is rendered again when it has
// grown by a quarter. In the end the elements are those of the whole text rendered at once.

import { addLines } from "./code.js";
import { blocks, furnish, render } from "./markdown.js";
import { element, keepFocus } from "./dom.js";
import { locate } from "./places.js";
import { appendRows } from "./tables.js";

const SHORT = 1500; // characters of a last block that is rendered again with each change
const GROWTH = 1.25;
const LONG = 6000; // characters of one that is not rendered again before it ends
const ROWS = 16; // of a table; the rows of a longer one are added one by one
const INNER = "div, pre, pre > code, p, ul, ol, li, blockquote, table, tbody, tr, td, h1, h2, h3, h4, h5, h6";
const FENCE = /^ {0,3}(?:```|~~~)/m;
const SYNTAX = /[\n*_`~[\]<>&\\:@!|$]|www/; // what may make a paragraph other than its text
const CHANGING = 200; // characters of a block that may still become part of the one before

export class MarkdownStream {
	#text = "";
	#settled = 0; // end of what is complete
	#rendered = 0; // length of the last block when it was rendered
	#shown = 0; // end of what is shown
	#grown = false; // whether the last block has grown since it was rendered
	#again = true; // whether the next text has it rendered again, whatever it is
	#ended = false;
	#open = ""; // type of the last block
	#newline = ""; // at the end of a last block of code, which is rendered without it
	#tail = element("div", { class: "tail" });
	#table = null; // of a long table that may go on: {head: its source, body, open: the elements of its rows}
	#list = null; // of a long list that may go on: {element, begin: in the source, loose}

	/** container: gets the elements, and is emptied. trace: the sources of the text. */
	constructor(container, trace) {
		this.container = container;
		this.trace = trace;
		container.replaceChildren(this.#tail);
	}

	push(text) {
		this.#text += text.replaceAll("\r", " "); // which the renderer drops, so that places would move
	}

	show() {
		if (this.#shown === this.#text.length) return;
		const length = this.#text.length - this.#settled;
		const same = length > SHORT && !this.#again && !this.#table && !this.#ends();
		if (same && this.#mayGrow(length)) this.#append();
		else keepFocus(this.container, () => this.#render());
		this.#shown = this.#text.length;
	}

	finish() {
		this.#ended = true;
		keepFocus(this.container, () => this.#finish());
		colourLater(this.container);
	}

	#finish() {
		if (/^[ \t>*+\-\d.)]*\[[^\]\n]+\]:\s*\S/m.test(this.#text)) {
			[this.#settled, this.#table, this.#list] = [0, null, null]; // a link is defined after its use
			this.#tail.replaceChildren(this.#painted(blocks(this.#text)));
			this.container.replaceChildren(this.#tail);
		} else if (this.#grown || this.#again || this.#table || this.#list || this.#shown < this.#text.length) this.#render();
		if (this.#table) {
			appendRows(this.#table.body, [...this.#table.open.rows]);
			this.#table.open.remove();
		}
		const rest = this.#tail.firstElementChild;
		if (this.#list && rest?.matches("ul, ol")) {
			this.#list.element.append(...rest.childNodes);
			rest.remove();
		}
		this.#tail.replaceWith(...this.#tail.childNodes);
	}

	#ends() {
		const before = Math.max(this.#settled, this.#text.lastIndexOf("\n", this.#shown - 1));
		const added = this.#text.slice(before);
		if (this.#open === "code") return FENCE.test(added);
		if (this.#text.length - this.#settled > LONG) {
			if (this.#open === "list") return /\n[ \t]*\n\S|\n(?:[-+*]|\d+[.)])\s/.test(added);
			if (this.#open === "blockquote") return /\n[ \t]*\n/.test(added);
		}
		return this.#open !== "list" && this.#open !== "blockquote" && /\n\s*\n/.test(added);
	}

	/** Whether the last block, a long one, need not be rendered again. */
	#mayGrow(length) {
		if (this.#open === "code" || length < GROWTH * this.#rendered || this.#rendered > LONG) return true;
		return this.#open === "paragraph" && !SYNTAX.test(this.#text.slice(Math.max(0, this.#settled + this.#rendered - 3)));
	}

	#append() {
		let last = this.#tail;
		while (last.lastElementChild?.matches(INNER)) last = last.lastElementChild;
		const added = this.trace.spans(this.#text.slice(this.#shown), this.#shown);
		if (this.#open === "code") addLines(last, [document.createTextNode(this.#newline), ...added]);
		else last.append(...added);
		this.#newline = "";
		this.#grown = true;
	}

	#render() {
		if (this.#table) return this.#renderRows();
		this.#settleComplete();
		if (this.#table) return this.#renderRows();
		const tokens = blocks(this.#text.slice(this.#settled));
		if (this.#list?.loose && tokens[0]?.type === "list") loosen(tokens[0]);
		const last = tokens.findLast(isShown);
		this.#open = last?.type ?? "";
		this.#again = tokens.find(isShown) !== last && last.raw.length < CHANGING;
		this.#newline = this.#open === "code" && this.#text.endsWith("\n") ? "\n" : "";
		this.#tail.replaceChildren(this.#painted(tokens));
		this.#rendered = this.#text.length - this.#settled;
		this.#grown = false;
		return undefined;
	}

	/** End of the complete lines: others may turn out to be something else. */
	get #complete() {
		return this.#ended ? this.#text.length : this.#text.lastIndexOf("\n") + 1;
	}

	/** Settle all blocks but the last one, all items of a long list but the last one, the rows of a long table. */
	#settleComplete() {
		const text = this.#text.slice(this.#settled, this.#complete);
		const tokens = blocks(text);
		if (tokens.reduce((sum, token) => sum + token.raw.length, 0) !== text.length) return undefined;
		if (this.#becomesLoose(tokens[0])) return this.#settleComplete();
		const last = Math.max(0, tokens.findLastIndex(isShown));
		for (const token of tokens.slice(0, last)) this.#settle(token);
		const first = tokens[last];
		if (first?.type === "table") this.#openTable(first);
		if (first?.type !== "list" || first.raw.length < SHORT / 2) return undefined;
		const items = first.items.slice(0, -1);
		const raw = items.map((item) => item.raw).join("");
		if (!items.length || !first.raw.startsWith(raw)) return undefined;
		const begin = this.#list?.begin ?? this.#settled;
		this.#list = { begin, loose: first.loose, element: this.#settle({ ...first, items, raw }) };
		return undefined;
	}

	/** Whether an item of a list has empty lines, and settled ones have not: then all look like that, and it begins again. */
	#becomesLoose(token) {
		if (!this.#list || token?.type !== "list") return false;
		if (this.#list.loose) loosen(token);
		else if (token.loose) {
			this.#settled = this.#list.begin;
			this.#list.element.remove();
			this.#list = null;
			return true;
		}
		return false;
	}

	#settle(token) {
		const found = this.#painted([token]);
		let shown = found.firstElementChild;
		if (this.#list && token.type === "list") {
			this.#list.element.append(...shown.childNodes);
			shown = this.#list.element;
		} else this.#tail.before(found);
		if (shown) colourLater(shown);
		this.#list = null;
		this.#settled += token.raw.length;
		return shown;
	}

	/** Settle the rows of a table that is long, and whose source has a line for each. */
	#openTable(token) {
		const lines = token.raw.split("\n");
		const rows = token.rows.slice(0, -1);
		if (rows.length < ROWS || lines.length < rows.length + 3) return;
		const raw = `${lines.slice(0, rows.length + 2).join("\n")}\n`;
		this.#tail.replaceChildren();
		const table = this.#settle({ ...token, rows, raw }).querySelector("table");
		this.#table = { head: `${lines[0]}\n${lines[1]}\n`, body: table.tBodies[0], open: table.createTBody() };
	}

	#renderRows() {
		const { head, body, open } = this.#table;
		const [table, next] = blocks(head + this.#text.slice(this.#settled, this.#complete));
		const lines = table.raw.slice(head.length).split("\n");
		const n = table.rows.length;
		if (n) {
			this.#table.body = appendRows(body, this.#paintedRows(table));
			if (this.#table.body !== body) this.#table.body.after(open);
		}
		this.#settled = Math.min(this.#complete, this.#settled + lines.slice(0, n).join("\n").length + (n ? 1 : 0));
		if (next) {
			open.remove();
			this.#table = null;
			return this.#render();
		}
		const [more] = blocks(head + this.#text.slice(this.#settled));
		open.replaceChildren(...(more.rows.length ? this.#paintedRows(more) : []));
		this.#rendered = this.#text.length - this.#settled;
		this.#grown = this.#again = false;
		return undefined;
	}

	#paintedRows(table) {
		return this.#painted([{ ...table, continued: true }]).querySelectorAll("tbody tr");
	}

	/** The elements of some blocks, whose source begins where the settled text ends. */
	#painted(tokens) {
		locate(tokens, this.#text, this.#settled);
		const found = render(tokens);
		this.trace.paint(found, this.#text);
		return furnish(found);
	}
}

/** Have the complete blocks of code in an element coloured; what does that is loaded with the first of them. */
function colourLater(root) {
	if (!root.matches(".code") && !root.querySelector(".code")) return;
	import("./colours.js").then((module) => module.colourLater(root), () => {});
}

const isShown = ({ type }) => type !== "space" && type !== "def";

/** Give the items of a list the paragraphs that they have where any of them has empty lines, as the renderer does. */
function loosen(list) {
	list.loose = true;
	for (const item of list.items) {
		item.loose = true;
		for (const token of item.tokens) if (token.type === "text") token.type = "paragraph";
		const [box, next] = item.tokens;
		if (box?.type !== "checkbox") continue;
		if (next?.type === "paragraph") {
			next.tokens.unshift(box);
			item.tokens.shift();
		} else item.tokens[0] = { type: "paragraph", raw: box.raw, text: box.raw, tokens: [box] };
	}
}
