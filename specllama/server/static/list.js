// The list of conversations: choosing, searching, renaming, deleting, export and import.

import { arrange, byId, button, element, keepFocus, onEscape } from "./dom.js";
import * as store from "./store.js";

const transfer = () => import("./transfer.js");
const PAUSE = 200; // milliseconds after a key before texts are searched

/** actions: {open(id): without one a new one, remove({id, title}), rename(id, title), say(text)}. */
export class ConversationList {
	#actions;
	#open = "";
	#writing = new Set();
	#items = new Map(); // {item, what: it shows} by id
	#turn = 0;
	#found = null; // ids that the search has found; null without one
	#searching = null;
	#timer = 0;

	constructor(actions) {
		this.#actions = actions;
		byId("new").addEventListener("click", () => actions.open());
		byId("export").addEventListener("click", async () => {
			const { download, exportedAll } = await transfer();
			download("specllama-conversations.json", await exportedAll());
		});
		byId("import").addEventListener("click", () => byId("import-file").click());
		byId("import-file").addEventListener("change", () => this.#import());
		byId("search").addEventListener("input", () => {
			clearTimeout(this.#timer);
			this.#timer = setTimeout(() => this.#search(), PAUSE);
		});
		onEscape(byId("search"), () => {
			if (!byId("search").value) return false;
			byId("search").value = "";
			return this.#search();
		});
	}

	/** open: id of the conversation that is shown; writing: ids of those whose answers are written. */
	async show(open, writing = this.#writing) {
		this.#open = open;
		this.#writing = writing;
		const turn = (this.#turn += 1);
		const all = await store.titles().catch(() => []);
		if (turn !== this.#turn || byId("conversations").querySelector("input")) return;
		const shown = all.filter(({ id }) => !this.#found || this.#found.has(id));
		const list = byId("conversations");
		keepFocus(list, () => arrange(list, shown.map((one) => this.#kept(one))), (item) => item?.querySelector("button") ?? byId("new"));
		byId("none-found").hidden = !this.#found || shown.length > 0;
	}

	/** The item of a conversation: the one there is, unless it shows something else. */
	#kept(one) {
		const what = JSON.stringify([one.title, one.id === this.#open, this.#writing.has(one.id)]);
		const there = this.#items.get(one.id);
		if (there?.what === what) return there.item;
		const item = this.#item(one);
		this.#items.set(one.id, { item, what });
		return item;
	}

	#item(one) {
		const name = one.title || "Untitled";
		const choose = button("", () => this.#actions.open(one.id), { class: "choose", title: name, dir: "auto" });
		choose.append(element("span", { class: "name" }, name));
		if (one.id === this.#open) choose.setAttribute("aria-current", "true");
		if (this.#writing.has(one.id)) choose.append(element("span", { class: "writes" }, " (writing)"));
		const more = button("⋯", () => this.#menu(one, item, more), {
			class: "icon", "aria-label": `More for ${name}`, "aria-expanded": "false",
		});
		const gone = button("✕", () => this.#actions.remove(one), { class: "icon", "aria-label": `Delete ${name}` });
		const item = element("li", {}, choose, more, gone);
		onEscape(item, () => {
			if (!item.querySelector(".actions")) return false;
			more.focus();
			return this.#menu(one, item, more);
		});
		return item;
	}

	#menu(one, item, more) {
		const open = item.querySelector(".actions");
		more.setAttribute("aria-expanded", String(!open));
		if (open) return open.remove();
		const save = async (ending, type, written) => {
			const [data, files] = [await store.conversation(one.id), await transfer()];
			if (data) files.download(files.fileName(data, ending), await written(files, data), type);
		};
		item.append(
			element(
				"div",
				{ class: "actions" },
				button("Rename", () => this.#rename(one, item)),
				button("Export", () => save("json", "application/json", ({ exported }, data) => exported(data)), {
					"aria-label": `Export ${one.title || "Untitled"}`,
				}),
				button("As Markdown", () => save("md", "text/markdown", ({ asMarkdown }, data) => asMarkdown(data))),
			),
		);
		item.querySelector(".actions button").focus();
		return undefined;
	}

	#rename(one, item) {
		const field = element("input", { type: "text", "aria-label": "Name of the conversation", maxlength: 200 });
		field.value = one.title;
		let ended = false;
		const end = async (kept) => {
			if (ended) return;
			ended = true;
			const title = field.value.trim();
			field.remove();
			this.#items.delete(one.id);
			if (kept && title && title !== one.title) await this.#actions.rename(one.id, title);
			await this.show(this.#open);
			if (document.activeElement === document.body) this.#items.get(one.id)?.item.querySelector("button").focus();
		};
		field.addEventListener("keydown", (event) => {
			if (event.key === "Enter") end(true);
		});
		onEscape(field, () => void end(false));
		field.addEventListener("blur", () => end(true));
		item.replaceChildren(field);
		field.select();
	}

	async #search() {
		this.#searching?.abort();
		const search = new AbortController();
		this.#searching = search;
		const words = byId("search").value.trim();
		const found = words ? await store.search(words, search.signal).catch(() => new Set()) : null;
		if (search.signal.aborted) return;
		this.#found = found;
		this.show(this.#open);
	}

	async #import() {
		const input = byId("import-file");
		const [file] = input.files;
		input.value = "";
		if (!file) return;
		try {
			const { imported } = await transfer();
			this.#actions.say(await imported(await file.text()));
		} catch (error) {
			this.#actions.say(error.message);
		}
		this.show(this.#open);
	}
}
