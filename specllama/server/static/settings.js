// The settings of answers that are set in this browser. settings_dialog.js asks for them.

import { PARAMETERS } from "./parameters.js"; // the server makes it of its table
import * as store from "./store.js";

/** The fields of requests that can be set. */
export const NAMES = [...PARAMETERS, "draft_max"];

const isText = (value) => typeof value === "string" && value !== "";
const isValue = (value) =>
	Number.isFinite(value) || value === true || isText(value) || (Array.isArray(value) && value.length > 0 && value.every(isText));

// Besides these: reasoning, and the time of an answer in milliseconds.
const OTHERS = {
	enable_thinking: (value) => typeof value === "boolean",
	reasoning_effort: (value) => ["low", "medium", "high"].includes(value),
	t_max_predict_ms: (value) => Number.isInteger(value) && value > 0,
};
export const PRESETS = 50; // at most

/** The settings that are set, by name of the API's field. */
export function currentSettings() {
	const stored = store.settings();
	const found = {};
	for (const name of NAMES) if (isValue(stored[name]) && !(name === "max_tokens" && stored[name] === 0)) found[name] = stored[name];
	for (const [name, good] of Object.entries(OTHERS)) if (good(stored[name])) found[name] = stored[name];
	found.speculate = stored.speculate !== false;
	return found;
}

/** Store the values of the fields that are set, and none of the others. */
export function saveSampling(values) {
	const kept = { ...store.settings() };
	for (const name of [...NAMES, ...Object.keys(OTHERS)]) delete kept[name];
	store.saveSettings({ ...kept, ...values });
}

export function setSpeculate(value) {
	store.saveSettings({ ...store.settings(), speculate: value });
}

/** The system prompt of new conversations. */
export function newSystem() {
	const { system } = store.settings();
	return typeof system === "string" ? system : "";
}

export function setNewSystem(system) {
	store.saveSettings({ ...store.settings(), system: system || undefined });
}

/** Named settings: the values of fields by the name of the preset. */
export function presets() {
	const { presets: stored } = store.settings();
	const all = stored && typeof stored === "object" ? Object.entries(stored) : [];
	return Object.fromEntries(all.filter(([, values]) => values && typeof values === "object").slice(0, PRESETS));
}

export function savePresets(all) {
	store.saveSettings({ ...store.settings(), presets: Object.fromEntries(Object.entries(all).slice(-PRESETS)) });
}

/** Whether sources are shown as colours. */
export const tinted = () => store.settings().tint !== false;

export function setTinted(value) {
	store.saveSettings({ ...store.settings(), tint: value });
}
