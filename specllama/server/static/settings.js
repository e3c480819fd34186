// The settings of answers, with the server's defaults shown where nothing is set.

import { closeDialog, openDialog } from "./dialog.js";
import { button, element } from "./dom.js";
import * as store from "./store.js";

// name: of the API's field; path: of its default in /props
const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 5, step: 0.05, hint: "0 always takes the likeliest token" },
  { name: "top_k", label: "Top k", min: 0, max: 1000, step: 1, hint: "candidates; 0 for all" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.01, hint: "candidates up to this probability together" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, hint: "as a share of the likeliest one's" },
  { name: "repeat_penalty", label: "Repeat penalty", min: 0, max: 3, step: 0.05, hint: "1 for none" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, hint: "0 for none" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, hint: "0 for none" },
  { name: "seed", label: "Seed", min: 0, max: 4294967295, step: 1, hint: "the same seed gives the same answer", default: "random" },
  { name: "max_tokens", label: "Longest answer", min: 1, max: 1000000, step: 1, hint: "tokens", default: "until its end" },
  { name: "draft_max", label: "Longest draft", min: 1, max: 64, step: 1, hint: "tokens a round", default: "automatic" },
];

/** The settings that are set, by name of the API's field. */
export function currentSettings() {
  const stored = store.settings();
  const found = {};
  for (const { name } of FIELDS) if (Number.isFinite(stored[name])) found[name] = stored[name];
  found.speculate = stored.speculate !== false;
  return found;
}

export function setSpeculate(value) {
  store.saveSettings({ ...store.settings(), speculate: value });
}

/** The system prompt of new conversations. */
export function newSystem() {
  const { system } = store.settings();
  return typeof system === "string" ? system : "";
}

/** Whether sources are shown as colours. */
export const tinted = () => store.settings().tint !== false;

export function setTinted(value) {
  store.saveSettings({ ...store.settings(), tint: value });
}

/** Ask for settings. defaults: the server's, by name. conversation: gets the system prompt; saved() stores it. */
export function openSettings(defaults, conversation, saved) {
  const stored = currentSettings();
  const system = element("textarea", { id: "system", rows: 4, placeholder: "none" });
  system.value = conversation.system;
  const inputs = FIELDS.map((field) => {
    const shown = field.default ?? defaults[field.name];
    const placeholder = typeof shown === "number" ? String(Number(shown.toPrecision(6))) : (shown ?? "");
    const { min, max, step } = field;
    const input = element("input", {
      id: `set-${field.name}`, type: "number", min, max, step, placeholder, "aria-describedby": `hint-${field.name}`,
    });
    if (stored[field.name] !== undefined) input.value = String(stored[field.name]);
    return input;
  });
  const rows = FIELDS.map((field, i) =>
    element(
      "div",
      { class: "field" },
      element("label", { for: `set-${field.name}` }, field.label),
      inputs[i],
      element("span", { class: "hint", id: `hint-${field.name}` }, `${field.hint}; default ${inputs[i].placeholder || "the model's"}`),
    ),
  );
  const submit = (event) => {
    event.preventDefault();
    const kept = { ...store.settings() };
    FIELDS.forEach(({ name }, i) => {
      if (inputs[i].value === "") delete kept[name];
      else kept[name] = Number(inputs[i].value);
    });
    store.saveSettings(kept);
    conversation.system = system.value;
    saved();
    closeDialog();
  };
  const reset = () => {
    for (const input of inputs) input.value = "";
  };
  openDialog("Settings", [
    element(
      "form",
      { class: "settings", on: { submit } },
      element("label", { for: "system" }, "System prompt of this conversation"),
      system,
      element("h3", {}, "Answers"),
      element("div", { class: "fields" }, ...rows),
      element(
        "div",
        { class: "actions" },
        element("button", { class: "primary" }, "Save"),
        button("Server's defaults", reset),
      ),
    ),
  ]);
}
