// Tables scroll, and long ones are in parts with columns of the same width, so that the browser need not lay all out again.

import { element, region } from "./dom.js";

const ROWS = 150; // of a part
const COLUMN = 7; // rem, the least width of a column of a table in parts

const rowsOf = (body) => body.rows.length;

function fixed(table) {
	table.classList.add("fixed");
	table.style.minWidth = `${COLUMN * (table.rows[0]?.cells.length ?? 1)}rem`;
}

/** Begin another part after the one that a body is in; returns its body. */
function nextPart(body) {
	const table = body.closest("table");
	const next = element("table", { class: "fixed", dir: table.dir || null }, element("tbody"));
	if (!table.matches(".fixed")) fixed(table);
	next.style.minWidth = table.style.minWidth;
	(table.closest(".part") ?? table).after(element("div", { class: "part" }, next));
	return next.tBodies[0];
}

/** Add rows to a table, from its last body on; returns the body that has the last of them. */
export function appendRows(body, rows) {
	let last = body;
	for (const row of rows) {
		if (rowsOf(last) >= ROWS) last = nextPart(last);
		last.append(row);
	}
	return last;
}

/** Put a table into a box in which it scrolls, in parts if it is long. */
export function boxed(table) {
	const box = element("div", { class: "scroll", ...region("table") });
	table.replaceWith(box);
	box.append(table);
	const [body] = table.tBodies;
	if (body && rowsOf(body) > ROWS) appendRows(body, [...body.rows].slice(ROWS));
}
