// Where what is rendered of a Markdown text is in its source.

const NEAR = 400; // characters in which the source of the next part is looked for
const MARKER = /^\s*(?:[-+*]|\d{1,9}[.)])[ \t]*/; // of an item of a list

/**
 * Give each part that is shown as text its `place`: where its source begins and ends, within `from` and `to`. Returns where
 * the next part may begin. A table that is `continued` has rows only.
 */
export function locate(tokens, text, from, to = text.length) {
	let at = from;
	for (const token of tokens) at = locateOne(token, text, at, to);
	return at;
}

function locateOne(token, text, from, to) {
	const [begin, end, exact] = find(token.raw, text, from, to);
	let at = begin;
	if (token.type === "list") {
		for (const item of token.items) {
			const [first, last, whole] = find(item.raw, text, at, end);
			const inner = locate(item.tokens, text, first + MARKER.exec(item.raw)[0].length, last);
			at = whole ? last : Math.max(at, Math.min(inner, last));
		}
	} else if (token.type === "table") locateCells(token, text, token.continued ? from : begin);
	else if (token.tokens) at = locate(token.tokens, text, begin, end);
	else if (token.text !== undefined || token.type === "checkbox") token.place = inside(token, text, begin, end, exact);
	return exact ? end : at;
}

/** Each row is a line. */
function locateCells({ header, rows, continued }, text, from) {
	let at = from;
	const lines = continued ? rows : [header, [], ...rows];
	for (const cells of lines) {
		const found = text.indexOf("\n", at);
		const end = found < 0 ? text.length : found;
		let cell = at;
		for (const { tokens } of cells) cell = locate(tokens, text, cell, end);
		at = Math.min(text.length, end + 1);
	}
}

/** Where a part's source begins and ends, and whether it is exactly that. */
function find(raw, text, from, to) {
	const size = raw.length;
	if (from + size <= to && text.startsWith(raw, from)) return [from, from + size, true];
	const near = text.slice(from, Math.min(to, from + NEAR + size));
	let at = near.indexOf(raw);
	if (at >= 0) return [from + at, from + at + size, true];
	at = near.indexOf(raw.trimStart().split("\n", 1)[0]); // the others may have lost an indent
	return [from + Math.max(0, at), to, false];
}

/** The place of a part's text, without a fence or the like. */
function inside({ raw, text: shown }, text, begin, end, exact) {
	const at = exact && shown ? raw.indexOf(shown) : -1;
	if (at >= 0) return [begin + at, begin + at + shown.length];
	const line = /^\s*(?:```|~~~)/.test(raw) ? text.indexOf("\n", begin) + 1 : 0;
	return [Math.max(begin, Math.min(line, end)), end];
}
