// Formulas as MathML, loaded with the first one. What the library cannot read is shown as its source.

import "./vendor/purify.min.js";
import temml from "./vendor/temml.min.js";
import { later } from "./idle.js";

const purify = globalThis.DOMPurify;
const ALLOWED = {
	USE_PROFILES: { mathMl: true },
	ADD_TAGS: ["menclose"],
	ADD_ATTR: ["class", "style", "form", "scriptlevel", "stretchy", "symmetric", "movablelimits", "fence", "separator", "lspace", "rspace"],
	FORBID_TAGS: ["a", "img", "maction", "semantics", "annotation", "annotation-xml", "mglyph"],
	FORBID_ATTR: ["href", "id", "xlink:href", "src"],
	ALLOW_DATA_ATTR: false,
	IN_PLACE: true,
};
const LIMITS = { throwOnError: true, maxExpand: 500, maxSize: [20, 300], trust: false, strict: false };
const UNSTYLED = ".tml-cancelto, .longdiv-top, .phasor-bottom, .circle-pad, .actuarial"; // lines that need images or more
const BUDGET = 6; // milliseconds of a drawing; the other formulas are made when there is time
const MOST = 500; // formulas that are kept for the next time they are shown

const known = new Map(); // MathML elements by display and source; null where there is none

/** Show the formulas of an element. */
export function showFormulas(root) {
	const end = performance.now() + BUDGET;
	for (const box of root.querySelectorAll(".math:not(.shown)")) {
		if (performance.now() < end) show(box);
		else queueMicrotask(() => later(box, () => show(box))); // when it is in the document
	}
}

function show(box) {
	box.classList.add("shown");
	const parts = box.querySelector(".tex");
	const display = box.matches(".display");
	const found = mathml(parts.textContent, display);
	if (!found) return;
	mark(box, parts);
	parts.hidden = true;
	box.append(found);
	if (display) requestAnimationFrame(() => box.scrollWidth > box.clientWidth && scrolls(box));
}

function scrolls(box) {
	box.tabIndex = 0;
	box.setAttribute("role", "region");
	box.setAttribute("aria-label", "formula");
}

/** A formula looks like the source of most of its text, and is of the round that ended it. */
function mark(box, parts) {
	const shares = new Map();
	for (const { dataset, textContent } of parts.children) {
		shares.set(dataset.source, (shares.get(dataset.source) ?? 0) + textContent.length);
		if (dataset.round) box.dataset.round = dataset.round;
	}
	const [most] = [...shares].sort((a, b) => b[1] - a[1])[0] ?? [];
	if (most) box.dataset.source = most;
}

/** The MathML of a formula with its delimiters; null where it cannot be read. */
function mathml(source, display) {
	const key = `${display} ${source}`;
	if (!known.has(key)) {
		if (known.size >= MOST) known.delete(known.keys().next().value);
		known.set(key, made(source, display));
	}
	return known.get(key)?.cloneNode(true) ?? null;
}

const isLong = (size) => parseFloat(size) > (size.endsWith("em") ? 2 : 30);

function made(source, display) {
	const tex = source.trim().replace(/[.,;:]$/, "").trim().replace(/^\$\$?|^\\[[(]|\$\$?$|\\[\])]$/g, "");
	const after = /[.,;:]$/.exec(source.trim())?.[0] ?? "";
	const place = document.createElement("span");
	try {
		temml.render(after ? `${tex}\\text{${after}}` : tex, place, { ...LIMITS, displayMode: display });
		const [math] = place.children;
		if (math?.localName !== "math" || math.querySelector(UNSTYLED)) return null;
		for (const rule of math.querySelectorAll("[mathbackground]")) {
			if (["width", "height"].every((side) => isLong(rule.getAttribute(side) ?? ""))) return null;
		}
		purify.sanitize(math, ALLOWED);
		return math;
	} catch {
		return null; // not LaTeX, or not what the library knows of it
	}
}
