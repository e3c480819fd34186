// The list and the panel: columns in a wide window, one of them in one of middle width; in a narrow one they lie over the
// conversation, one at a time.

import { byId } from "./dom.js";

const WIDE = matchMedia("(min-width: 1200px)");
const MIDDLE = matchMedia("(min-width: 800px)");
const SIDES = ["panel", "list"];

/** Whether the list lies over the conversation. */
export const isNarrow = () => !MIDDLE.matches;

/** Show or hide the list or the panel; the focus in it goes to its button. */
export function toggle(name, shown = byId(name).hidden) {
	if (!shown && byId(name).contains(document.activeElement)) byId(`show-${name}`).focus();
	byId(name).hidden = !shown;
	byId(`show-${name}`).setAttribute("aria-expanded", String(shown));
	const other = SIDES.find((side) => side !== name);
	if (shown && !WIDE.matches && !byId(other).hidden) toggle(other, false);
}

function arrange() {
	toggle("list", MIDDLE.matches);
	toggle("panel", WIDE.matches);
}

/**
 * Hide what lies over the conversation. always: also the panel in a window of middle width. Returns whether anything was
 * hidden.
 */
export function closeSide({ always = false } = {}) {
	if (WIDE.matches) return false;
	const panel = byId("panel");
	const names = MIDDLE.matches ? (always || panel.contains(document.activeElement) ? ["panel"] : []) : SIDES;
	const name = names.find((one) => !byId(one).hidden);
	if (name) toggle(name, false);
	if (name === "panel" && MIDDLE.matches) toggle("list", true);
	return Boolean(name);
}

/** Connect the buttons, and taps next to what lies over the conversation. */
export function setUpLayout() {
	for (const name of SIDES) byId(`show-${name}`).addEventListener("click", () => toggle(name));
	document.addEventListener("pointerdown", ({ target }) => {
		if (MIDDLE.matches || target.closest("aside, dialog, #show-list, #show-panel")) return;
		closeSide();
	});
	WIDE.addEventListener("change", arrange);
	MIDDLE.addEventListener("change", arrange);
	arrange();
}
