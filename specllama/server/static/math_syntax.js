// Formulas in Markdown: what is between $…$, $$…$$, \(…\) or \[…\]. Knows no elements and no renderer of formulas.

const LONGEST = 4000; // characters of a formula
const DOLLARS = /^\$(?![\s$])((?:\\[^\n]|[^$\\\n`]){1,1000}?)(?<![\s\\])\$(?![\dA-Za-z$])/;
const MONEY = /^\d[^\\^_={}+*/<>]* [^\\^_={}+*/<>]*$/; // as in "$5 (it was 6$)"
const CLOSING = { "$$": "$$", "\\[": "\\]", "\\(": "\\)" };
const PARAGRAPH = /\n[ \t]*\n/; // ends it, and what is in it

/** Whether a text may have formulas. */
export const mayHaveMath = (text) => text.includes("$") || text.includes("\\(") || text.includes("\\[");

/** Whether a formula begins before this position of a text and ends after it. */
export function cutsFormula(text, position) {
	const begin = text.lastIndexOf("\\(", position - 1);
	if (begin >= 0 && text.lastIndexOf("\\)", position - 1) < begin) return text.indexOf("\\)", position) >= 0;
	const before = text.slice(0, position).split("$").length - 1;
	return before % 2 > 0 && /^[^\n$]*\$/.test(text.slice(position, position + LONGEST));
}

/** The first paragraph of a text, if a formula may begin there. */
function near(text) {
	const found = text.slice(0, 2 * LONGEST);
	const end = PARAGRAPH.exec(found);
	return end ? found.slice(0, end.index) : found;
}

/** The formula that a paragraph begins with: {raw, display}; null for none. */
function formula(paragraph) {
	const opening = paragraph.slice(0, 2);
	const end = CLOSING[opening] ? paragraph.indexOf(CLOSING[opening], 2) : -1;
	const tex = paragraph.slice(2, end);
	if (end < 0 || end > LONGEST || !tex.trim()) return null;
	if (opening === "\\[" && (paragraph[end + 2] === "(" || /^\s*\d+\s*$/.test(tex))) return null; // a link or reference
	return { raw: paragraph.slice(0, end + 2), display: opening !== "\\(" };
}

const inline = {
	name: "formula",
	level: "inline",
	start(text) {
		const at = text.indexOf("$");
		return at < 0 ? undefined : at;
	},
	tokenizer(text, tokens) {
		if (text[0] !== "$" && text[0] !== "\\") return undefined;
		const found = CLOSING[text.slice(0, 2)] && formula(near(text));
		if (found) return { type: "formula", text: found.raw, ...found };
		if (text[0] !== "$" || /[\w$\\]/.test(tokens.at(-1)?.raw.at(-1) ?? "")) return undefined;
		const [raw, tex] = DOLLARS.exec(text) ?? [];
		if (!raw || MONEY.test(tex)) return undefined;
		return { type: "formula", raw, text: raw, display: false };
	},
};

// Until its end has arrived, the lines of a formula must not be taken for lists or headings: complete blocks are not
// rendered again.
const block = {
	name: "formulas",
	level: "block",
	start: (text) => /(?:^|\n) {0,3}(?:\$\$|\\\[)/.exec(text)?.index,
	tokenizer(text) {
		const indent = /^ {0,3}(?=\$\$|\\\[)/.exec(text)?.[0].length;
		if (indent === undefined) return undefined;
		const source = text.slice(indent);
		const paragraph = near(source);
		const found = formula(paragraph);
		if (!found && (paragraph.length > LONGEST || paragraph.includes(CLOSING[source.slice(0, 2)], 2))) return undefined;
		const rest = /^[ \t]*([.,;:]?)[ \t]*(?:\n+|$)/.exec(source.slice(found ? found.raw.length : paragraph.length));
		if (!rest) return undefined; // text goes on in the line where the formula ends
		const shown = found ? found.raw + rest[0] : paragraph + rest[0];
		const raw = text.slice(0, indent + shown.length);
		return { type: "formulas", raw, text: raw.trim(), closed: Boolean(found) };
	},
};

export const mathExtensions = [inline, block];
