// The fields of the settings that are no sampling: reasoning and time, presets, the system prompt of new conversations,
// and the theme.

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

/** Reasoning, as far as the model's template knows it, and time: {row, name, read(), set(value), clear()} of each. */
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
	const time = element("input", { id: "set-t_max_predict_ms", type: "number", min: 0.1, max: LONGEST, step: "any", placeholder: "no limit" });
	found.push({
		name: "t_max_predict_ms",
		row: field(time, "Longest time", "seconds, with the reasoning"),
		read: () => (Number(time.value) > 0 ? Math.round(1000 * Number(time.value)) : undefined),
		set: (value) => {
			time.value = value ? String(value / 1000) : "";
		},
		clear: () => {
			time.value = "";
		},
	});
	for (const { name, set } of found) set(stored[name]);
	return found;
}

/** Named settings. fields: {name, read(), set(value), clear()} of each. */
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
		if (!title) return name.focus();
		const values = Object.fromEntries(fields.map((one) => [one.name, one.read()]).filter(([, value]) => value !== undefined));
		savePresets({ ...presets(), [title]: values });
		name.value = "";
		return show(title);
	});
	const remove = button("Delete preset", () => {
		const rest = presets();
		delete rest[menu.value];
		savePresets(rest);
		show();
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
		element("p", { class: "hint" }, `At most ${PRESETS}. A preset fills the fields; Save uses them.`),
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
