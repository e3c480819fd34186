// The menu of models: what is in memory, what is on this disk, and what can be downloaded, with sizes and a search.

import { byId, bytes, element } from "./dom.js";

const GROUPS = [
	["In memory", ({ value }) => value === "loaded" || value === "loading"],
	["On this disk", ({ value }) => value === "unloaded"],
	["Can be downloaded", ({ pull }) => Boolean(pull)],
];

export class Picker {
	#listed = [];
	#name = "";
	#shown = []; // the options, in order
	#at = 0; // of the one that Enter takes

	/** choose(name): called when a model is taken. */
	constructor(choose) {
		const [menu, search] = [byId("models"), byId("model-search")];
		const take = (option) => {
			if (!option) return;
			menu.hidePopover();
			choose(option.dataset.model);
		};
		search.addEventListener("input", () => this.#draw());
		search.addEventListener("keydown", (event) => {
			const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
			if (step) this.#move(this.#at + step);
			else if (event.key === "Enter") take(this.#shown[this.#at]);
			else return;
			event.preventDefault();
		});
		byId("model-list").addEventListener("click", ({ target }) => take(target.closest("[role=option]")));
	}

	/** Show the open menu. listed: of /v1/models. name: of the chosen one. */
	show(listed, name) {
		[this.#listed, this.#name] = [listed, name];
		this.#draw();
	}

	open(listed, name) {
		byId("model-search").value = "";
		this.show(listed, name);
		byId("model-search").focus();
	}

	#draw() {
		const words = byId("model-search").value.toLowerCase().split(/\s+/).filter(Boolean);
		const kept = this.#shown[this.#at]?.dataset.model ?? this.#name;
		const found = this.#listed.filter(({ id, meta }) => !meta?.is_head && words.every((word) => id.toLowerCase().includes(word)));
		const groups = GROUPS.map(([title, belongs], i) => {
			const own = found.filter(({ status }) => belongs(status));
			if (title === GROUPS[2][0]) own.sort((a, b) => Number(b.fits ?? false) - Number(a.fits ?? false));
			const label = element("div", { class: "group", id: `models-${i}` }, title);
			const options = own.map((one) => this.#option(one));
			return options.length && element("div", { role: "group", "aria-labelledby": label.id }, label, ...options);
		}).filter(Boolean);
		byId("model-list").replaceChildren(...groups);
		byId("no-models").hidden = groups.length > 0;
		this.#shown = [...byId("model-list").querySelectorAll("[role=option]")];
		this.#shown.forEach((option, i) => (option.id = `model-${i}`));
		const at = this.#shown.findIndex(({ dataset }) => dataset.model === kept);
		this.#move(words.length ? 0 : Math.max(0, at));
	}

	#option({ id, meta = {}, status, fits }) {
		const size = meta.size ? bytes(meta.size) : meta.about_size ? `about ${bytes(meta.about_size)}` : "";
		const notes = [status.value === "loading" && "is being loaded", status.download?.running && "is being downloaded", size, FITS[fits]];
		const chosen = id === this.#name;
		return element(
			"div",
			{ role: "option", "aria-selected": String(chosen), class: fits === false ? "large" : null, data: { model: id } },
			element("span", { class: "model-id" }, chosen ? `✓ ${id}` : id),
			element("span", { class: "model-about" }, notes.filter(Boolean).join(" · ")),
		);
	}

	/** Have Enter take the option with this index. */
	#move(index) {
		this.#at = Math.max(0, Math.min(index, this.#shown.length - 1));
		const option = this.#shown[this.#at];
		for (const one of this.#shown) one.classList.toggle("at", one === option);
		byId("model-search").setAttribute("aria-activedescendant", option?.id ?? "");
		option?.scrollIntoView({ block: "nearest" });
	}
}

const FITS = { true: "fits", false: "too large here" };
