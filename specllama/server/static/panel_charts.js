// The charts of the view of speculation.

import { bars, lines } from "./charts.js";
import { counted, element, numeral, percent, whole } from "./dom.js";
import { term } from "./explain.js";

const WIDTH = 380;

/** The charts of an answer, null without one. props: of the model. */
export const charts = (answer, props) => [...(answer ? [...accepted(answer), ...times(answer)] : []), ...curve(props, answer)];

function accepted(answer) {
	let rates = answer.before ? null : answer.figures?.accept_by_position;
	if (!rates) {
		const n = Math.max(...answer.traces.map(({ reached }) => reached.length));
		const sum = (what, j) => answer.traces.reduce((all, trace) => all + (trace[what][j] ?? 0), 0);
		rates = Array.from({ length: n }, (_, j) => sum("kept", j) / sum("reached", j));
	}
	if (!rates.length) return [];
	const series = [["accepted", rates.map((rate, j) => [j + 1, rate])]];
	const title = `Share of draft tokens accepted, by position: ${rates.map(percent).join(", ")}`;
	return [element("h3", {}, term("Accepted by position in the draft", "position")), lines({ series, title, x_name: "position", percent: true, width: WIDTH })];
}

function times(answer) {
	const seconds = answer.figures?.seconds;
	const all = seconds ? Object.values(seconds).reduce((sum, value) => sum + value, 0) : 0;
	if (!all) return [];
	const shares = Object.entries(seconds).map(([name, value]) => [name, value / all]);
	const title = `Where the time went: ${shares.map(([name, value]) => `${name} ${percent(value)}`).join(", ")}`;
	return [element("h3", {}, term("Where the time went", "time")), bars({ rows: [["", shares]], title, width: WIDTH })];
}

/** Without the decodes that other programs made longer than they can be, next to the others (profile.py). */
const possible = (times) => times.filter(([n, t]) => times.every(([m, s]) => t <= 2 * s * Math.max(1, n / m)));

function curve(props, answer) {
	const known = new Map(props?.speculation.decode_seconds ?? []);
	const used = Object.entries(answer?.figures?.decodes ?? {}).map(([rows, [count]]) => [Number(rows), count]);
	for (const [rows, [count, seconds]] of Object.entries(answer?.figures?.decodes ?? {})) {
		if (!known.has(Number(rows)) && count) known.set(Number(rows), seconds / count);
	}
	const points = possible([...known])
		.sort((a, b) => a[0] - b[0])
		.map(([rows, seconds]) => [rows, 1000 * seconds]);
	if (points.length < 2) return [];
	const marks = used.map(([rows, count]) => [rows, `${counted(rows, "row")}: ${counted(count, "decode")} of this answer`]);
	const title = `Milliseconds of a decode by its rows: ${points.map(([n, ms]) => `${n}: ${numeral(ms)}`).join(", ")}`;
	const note = used.length
		? `Dashed: the widths of this answer, ${used.map(([rows, count]) => `${rows} (${whole(count)}×)`).join(", ")}.`
		: "";
	return [
		element("h3", {}, term("Time of a decode by its rows, t(n)", "curve")),
		lines({ series: [["ms", points]], title, x_name: "rows", y_name: "ms", marks, width: WIDTH }),
		element("p", { class: "hint" }, `Drafts pay where more rows cost little more than one. ${note}`),
	];
}
