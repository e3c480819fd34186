// The dialog of settings: a field for each sampling parameter of the server's list.

import { answerFields, forNewOnes, numberField, presetRow, themeField, valuesOf } from "./answering.js";
import { closeDialog, openDialog } from "./dialog.js";
import { button, element } from "./dom.js";
import { say } from "./notice.js";
import { currentSettings, newSystem, saveSampling, setNewSystem } from "./settings.js";

const SAFE = Number.MAX_SAFE_INTEGER; // larger whole numbers would be sent as others
const LABELS = {
	max_tokens: "Longest answer", temperature: "Temperature", top_k: "Top k", top_p: "Top p", min_p: "Min p", seed: "Seed",
	reasoning_budget: "Longest reasoning", reasoning_budget_message: "Last words of longest reasoning",
	stop: "Stop texts, one a line", ignore_eos: "Ignore end tokens", draft_max: "Longest draft", repeat_last_n: "Penalties look back",
};
// What a field does, shown while one points at it or is in it.
const HELP = {
	max_tokens: "The answer ends after so many tokens, -1: when the model ends it, -2: when the context is full.",
	seed: "The same seed and settings give the same answer to the same question. -1: another one each time.",
	temperature:
		"0 always takes the likeliest token. 1 draws by the model's own probabilities; more is more surprising, and in the end nonsense.",
	top_k: "Only so many of the likeliest tokens can be drawn. 0: all.",
	top_p: "Only the likeliest tokens that together have this probability can be drawn. 1: all.",
	min_p: "Tokens below this share of the likeliest one's probability cannot be drawn. 0: all can.",
	repeat_penalty: "Above 1, tokens that were written lately become less likely: against answers that repeat themselves.",
	repeat_last_n: "How many of the last tokens the penalties are for. -1: all, 0: none.",
	presence_penalty: "Above 0, tokens that were written lately become less likely, however often they were.",
	frequency_penalty: "Above 0, tokens become less likely with each time they were written lately.",
	ignore_eos: "The answer goes on until its longest length or the end of the context.",
	top_n_sigma: "Only tokens within so many standard deviations of the likeliest one's logit can be drawn. 0: all.",
	typical_p: "Only tokens about as surprising as the text usually is, together of this probability. 1: all.",
	xtc_probability: "How often the likeliest tokens are left out, for less expected texts. 0: never.",
	xtc_threshold: "Tokens of at least this probability are left out then, except the least likely of them.",
	dynatemp_range: "How far the temperature goes up and down with the uncertainty of the model. 0: it is fixed.",
	dry_multiplier: "Above 0, tokens that would continue a repetition become less likely.",
	dry_allowed_length: "Repetitions of so many tokens are allowed.",
	dry_penalty_last_n: "How many of the last tokens are searched for repetitions. -1: all, 0: none.",
	dry_sequence_breakers: "Texts at which a repetition ends, one a line; \\n is a newline.",
	mirostat: "1 or 2: Mirostat, which keeps the surprise of the text constant and uses the temperature alone. 0: off.",
	samplers: "The sampling steps in their order, one a line: penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature.",
	infill_sampling: "llama.cpp's way of sampling for gaps in code, which ends texts early.",
	stop: "The answer ends before the first of these texts; \\n is a newline.",
	reasoning_budget: "The reasoning ends after so many tokens, and the answer begins. 0: at once, -1: when the model ends it.",
	reasoning_budget_message: "Is written at the end of reasoning that is ended by its longest length.",
	draft_max: "At most so many tokens are drafted in a round. The text is the same with any length.",
};
const DRAFT = { name: "draft_max", type: "integer", minimum: 1, maximum: 64, description: "" };

const title = (name) => LABELS[name] ?? `${name[0].toUpperCase()}${name.slice(1).replaceAll("_", " ")}`;

/** A default as people write it; "" where the field says enough without one. */
function shownDefault({ name }, value) {
	if (name === "seed") return "random";
	if (name === "draft_max") return "automatic";
	if (name === "reasoning_budget" && value === -1) return "no limit";
	if (name === "max_tokens" && value === -1) return "until its end";
	return typeof value === "number" ? String(Number(value.toPrecision(6))) : "";
}

const ESCAPES = { "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r" };
/** A text as one line, and back: its newlines, tabs and backslashes are escapes. */
const asLine = (text) => text.replace(/[\\\n\t\r]/g, (one) => ESCAPES[one]);
const ofLine = (line) => line.replace(/\\[\\ntr]/g, (two) => Object.keys(ESCAPES).find((one) => ESCAPES[one] === two));

/** A field: {name, row, read(), set(value), clear()}, whose value is undefined where nothing is set. */
function fieldOf(parameter, value, standard) {
	const { name, type, minimum: min, maximum: max } = parameter;
	const shared = { id: `set-${name}`, "aria-describedby": `hint-${name} help-${name}` };
	const shown = shownDefault(parameter, standard);
	let input;
	let read;
	let set;
	if (type === "boolean") {
		input = element("input", { ...shared, type: "checkbox" });
		set = (next) => {
			input.checked = next === true;
		};
		read = () => input.checked || undefined;
	} else if (parameter.many) {
		input = element("textarea", { ...shared, rows: 2, placeholder: "none" });
		set = (next) => {
			input.value = (Array.isArray(next) ? next : []).map(asLine).join("\n");
		};
		read = () => {
			const lines = input.value.split("\n").filter(Boolean).map(ofLine);
			return lines.length ? lines : undefined;
		};
	} else if (type === "text") {
		input = element("input", { ...shared, type: "text", placeholder: "none" });
		set = (next) => {
			input.value = next ?? "";
		};
		read = () => input.value || undefined;
	} else {
		const range = { min: name === "seed" ? -1 : Math.max(min, -SAFE), max: Math.min(max, SAFE), integer: type === "integer" };
		const refused = (number) => (name === "max_tokens" && number === 0 ? "The longest answer has 1 or more tokens, -1 or -2." : "");
		({ input, read, set } = numberField({ ...shared, placeholder: shown }, { ...range, refused }));
	}
	const row = element(
		"div",
		{ class: type === "boolean" ? "field check" : "field", data: { name } },
		element("label", { for: shared.id }, title(name)),
		input,
		element("span", { class: "hint", id: `hint-${name}` }, shown ? `default ${shown}` : ""),
		element("span", { id: `help-${name}`, hidden: true }, HELP[name] ?? parameter.description),
	);
	set(value);
	return { name, row, read, set, clear: () => set() };
}

function helpOf(fields) {
	const line = element("p", { class: "help", "aria-hidden": "true" });
	const show = (target) => {
		const name = target?.closest?.(".field")?.dataset.name;
		line.textContent = name ? fields.querySelector(`#help-${name}`).textContent : "";
	};
	for (const entered of ["pointerover", "focusin"]) fields.addEventListener(entered, ({ target }) => show(target));
	for (const left of ["pointerleave", "focusout"]) fields.addEventListener(left, () => show(document.activeElement));
	return line;
}

/** Ask for settings. props: null before they are known. conversation: gets the system prompt; saved(changed) stores it. */
export function openSettings(props, conversation, saved) {
	const stored = currentSettings();
	const defaults = props?.default_generation_settings.params ?? {};
	const system = element("textarea", { id: "system", rows: 4, placeholder: "none", dir: "auto" });
	system.value = conversation.system;
	const parameters = props ? [...props.sampling_parameters, { ...DRAFT, maximum: props.speculation.longest_draft ?? 64 }] : [];
	const sampling = parameters.map((parameter) => fieldOf(parameter, stored[parameter.name], defaults[parameter.name]));
	const fields = props ? [...answerFields(props, stored), ...sampling] : [];
	const always = forNewOnes(system.value !== "" && newSystem() === system.value);
	const rows = element("div", { class: "fields" }, ...fields.map(({ row }) => row));
	const entered = () => JSON.stringify([system.value, always.box.checked, valuesOf(fields)]);
	const before = entered();
	let done = false;
	const submit = (event) => {
		event.preventDefault();
		done = true;
		if (props) saveSampling(valuesOf(fields));
		if (always.box.checked) setNewSystem(system.value);
		else if (newSystem() === conversation.system) setNewSystem("");
		const changed = conversation.system !== system.value;
		conversation.system = system.value;
		saved(changed);
		closeDialog();
	};
	const reset = () => {
		for (const { clear } of fields) clear();
	};
	const open = () => openDialog("Settings", [form], { closed });
	// By Escape above all: what was typed is not lost.
	const closed = () => {
		const reopen = () => {
			say("");
			open();
		};
		if (!done && entered() !== before) say("What you have changed in the settings is not saved.", { "Go on with it": reopen });
	};
	const form = element(
		"form",
		{ class: "settings", on: { submit } },
		element("label", { for: "system" }, "System prompt of this conversation"),
		system,
		always.row,
		element("h3", {}, "Answers"),
		props && presetRow(fields),
		props ? rows : element("p", { class: "hint" }, "The other settings are shown when the model is in memory."),
		element("h3", {}, "Page"),
		themeField(),
		element(
			"div",
			{ class: "foot" },
			helpOf(rows),
			element(
				"div",
				{ class: "actions" },
				element("button", { class: "primary" }, "Save"),
				props && button("Server's defaults", reset),
			),
		),
	);
	open();
}
