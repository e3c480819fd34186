// Light or dark, as the system has it or as it is set in this browser.

import * as store from "./store.js";

const THEMES = ["light", "dark"];

/** "light", "dark", or "" for the system's. */
export function theme() {
	const found = store.settings().theme;
	return THEMES.includes(found) ? found : "";
}

export function setTheme(value) {
	store.saveSettings({ ...store.settings(), theme: value });
	applyTheme();
}

/** Show the page in the theme that is set. */
export function applyTheme() {
	const { dataset } = document.documentElement;
	if (theme()) dataset.theme = theme();
	else delete dataset.theme;
}
