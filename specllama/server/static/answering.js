// The settings besides sampling, and the field for numbers.

import { button, element } from "./dom.js";
import { PRESETS, presets, savePresets } from "./settings.js";
import { setTheme, theme } from "./theme.js";

const LONGEST = 86_400; // seconds

function choice(id, options, value) {
	const found = element("select", { id }, ...options.map(([one, text]) => element("option", { value: one }, text)));
	found.value = value;
	return found;
}

const field = (input, label, hint = "") =>
	element(
		"div",
		{ class: "field" },
		element("label", { for: input.id }, label),
		input,
		element("span", { class: "hint" }, hint),
	);

const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;
const THOUSANDS = /^[-+]?[1-9]\d{0,2}(,\d{3})+$/; // or thousandths: nobody knows

/**
 * A field for a number: {input, read(), set(value)}, undefined if empty, NaN if it is none. A comma is a point: browsers'
 * own number fields drop it in some languages, and 0,5 becomes 5. refused(value): why a number in the range is refused.
 */
export function numberField(props, { min, max, integer = false, refused = () => "" }) {
	const input = element("input", {
		...props, type: "text", role: "spinbutton", autocomplete: "off", inputmode: min < 0 ? null : integer ? "numeric" : "decimal",
		"aria-valuemin": min, "aria-valuemax": max,
	});
	const number = () => {
		const text = input.value.trim();
		const point = integer ? text : text.replace(",", ".");
		return NUMBER.test(point) && !THOUSANDS.test(text) ? Number(point) : NaN;
	};
	const problem = (value) => {
		if (integer ? !Number.isInteger(value) : Number.isNaN(value)) return `A ${integer ? "whole number" : "number"}, such as ${integer ? 1000 : 0.5}.`;
		return value < min || value > max ? `From ${min} to ${max}.` : refused(value);
	};
	const read = () => (input.value.trim() ? number() : undefined);
	const check = () => {
		const value = read();
		input.setCustomValidity(value === undefined ? "" : problem(value));
		input.ariaValueNow = Number.isFinite(value) ? value : null;
	};
	const set = (value) => {
		input.value = value === undefined ? "" : String(value);
		check();
	};
	input.addEventListener("input", check);
	input.addEventListener("keydown", (event) => {
		const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
		if (!step) return;
		event.preventDefault();
		set(Math.min(max, Math.max(min, (number() || 0) + step)));
	});
	return { input, read, set };
}

/** Reasoning, where the template knows it, and time: {row, name, read(), set(value), clear()} each. */
export function answerFields(props, stored) {
	const { supports_preserve_reasoning: reasons, supports_reasoning_effort: efforts } = props.chat_template_caps;
	const found = [];
	const select = (name, label, options, read) => {
		const input = choice(`set-${name}`, [["", "the model's default"], ...options], "");
		const set = (value) => {
			input.value = value === undefined ? "" : String(value);
		};
		found.push({ name, row: field(input, label), read: () => (input.value ? read(input.value) : undefined), set, clear: () => set() });
	};
	if (reasons) select("enable_thinking", "Reasoning", [["true", "on"], ["false", "off"]], (text) => text === "true");
	if (efforts) {
		select("reasoning_effort", "Effort of the reasoning", ["low", "medium", "high"].map((one) => [one, one]), (text) => text);
	}
	const { input, read, set } = numberField({ id: "set-t_max_predict_ms", placeholder: "no limit" }, { min: 0.1, max: LONGEST });
	found.push({
		name: "t_max_predict_ms",
		row: field(input, "Longest time", "seconds, with the reasoning"),
		read: () => (read() > 0 ? Math.round(1000 * read()) : undefined),
		set: (value) => set(value && value / 1000),
		clear: () => set(),
	});
	for (const { name, set } of found) set(stored[name]);
	return found;
}

/** The values of fields that are set, by their names. */
export const valuesOf = (fields) => Object.fromEntries(fields.map(({ name, read }) => [name, read()]).filter(([, value]) => value !== undefined));

/** Named settings. fields: {name, read(), set(value), clear()} each. */
export function presetRow(fields) {
	const menu = choice("preset", [], "");
	const name = element("input", { type: "text", id: "preset-name", maxlength: 60, "aria-label": "Name of the preset", placeholder: "Name" });
	const show = (chosen = "") => {
		const names = Object.keys(presets()).sort();
		const options = [["", names.length ? "choose" : "none saved"], ...names.map((one) => [one, one])];
		menu.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
		menu.value = chosen;
		remove.disabled = !chosen;
	};
	const keep = button("Save as preset", () => {
		const title = name.value.trim() || menu.value;
		const all = presets();
		if (!title || (!(title in all) && Object.keys(all).length >= PRESETS)) {
			said.textContent = title ? `There are ${PRESETS} presets: delete one before you save another.` : "Give the preset a name before you save it.";
			return name.focus();
		}
		if (!name.form.reportValidity()) return undefined;
		savePresets({ ...all, [title]: valuesOf(fields) });
		name.value = "";
		said.textContent = `"${title}" is saved.`;
		return show(title);
	});
	const said = element("p", { class: "hint", role: "status" }, `At most ${PRESETS}. A preset fills the fields; Save uses them.`);
	const remove = button("Delete preset", () => {
		const rest = presets();
		said.textContent = `"${menu.value}" is deleted.`;
		delete rest[menu.value];
		savePresets(rest);
		show();
		menu.focus();
	});
	menu.addEventListener("change", () => {
		const values = presets()[menu.value];
		remove.disabled = !values;
		if (!values) return;
		for (const { name: one, set, clear } of fields) values[one] === undefined ? clear() : set(values[one]);
	});
	show();
	return element(
		"div",
		{ class: "presets" },
		element("label", { for: "preset" }, "Preset"),
		menu,
		name,
		keep,
		remove,
		said,
	);
}

/** Whether the system prompt is that of new conversations too. */
export function forNewOnes(checked) {
	const box = element("input", { type: "checkbox", id: "system-default" });
	box.checked = checked;
	return { box, row: element("label", { class: "switch" }, box, " For new conversations too") };
}

/** Light or dark. It is applied at once. */
export function themeField() {
	const menu = choice("theme", [["", "as the system has it"], ["light", "light"], ["dark", "dark"]], theme());
	menu.addEventListener("change", () => setTheme(menu.value));
	return field(menu, "Theme");
}
