// Shortcuts of the keyboard, and the sheet that lists them.

import { openDialog } from "./dialog.js";
import { element } from "./dom.js";

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);
const CONTROL = MAC ? "⌘" : "Ctrl";
// [key, with Shift, action, words]; with Control, or Command on a Mac
const SHORTCUTS = [
	["o", true, "begin", "New conversation"],
	["k", false, "search", "Search the conversations"],
	["l", true, "list", "Show or hide the conversations"],
	["c", true, "copy", "Copy the last answer"],
	["/", null, "help", "This list"],
];
const OTHERS = [
	[["Esc"], "Stop the answer; close what is open"],
	[["Enter"], "Send"],
	[["Shift", "Enter"], "Begin a line"],
];

/** actions: functions by the names above, but for help. */
export function setUpShortcuts(actions) {
	addEventListener("keydown", (event) => {
		if (!(MAC ? event.metaKey : event.ctrlKey) || event.altKey || event.isComposing) return;
		const key = event.key.toLowerCase();
		const [, , action] = SHORTCUTS.find(([one, shift]) => one === key && (shift === null || shift === event.shiftKey)) ?? [];
		if (!action || document.querySelector("dialog[open]")) return;
		event.preventDefault();
		(action === "help" ? openShortcuts : actions[action])();
	});
}

/** Show the sheet. */
export function openShortcuts() {
	const all = SHORTCUTS.map(([key, shift, , words]) => [[CONTROL, ...(shift ? ["Shift"] : []), key.toUpperCase()], words]);
	const rows = [...all, ...OTHERS].map(([names, words]) =>
		element(
			"tr",
			{},
			element("td", {}, words),
			element("td", {}, ...names.flatMap((name, i) => [i ? " + " : null, element("kbd", {}, name)])),
		),
	);
	openDialog("Keyboard shortcuts", [element("table", {}, element("tbody", {}, ...rows))]);
}
