// What is typed and attached and not sent yet, by conversation. New conversations have a draft for each tab; that of a
// closed tab is taken over by the next one.

import { draftFiles, keepDraftFiles } from "./database.js";
import { keys, read, write } from "./storage.js";
import { newId } from "./tree.js";

const PREFIX = "specllama.draft.";
const NEW = "new."; // before the tab's own id
const TAB = "specllama.tab";
const PAUSE = 300; // milliseconds after a key

/** The id of this tab, reloaded too. A lock says that it is open. */
function tabId() {
	const id = read(TAB, "session") ?? newId();
	write(TAB, id, "session");
	navigator.locks?.request(`${TAB}.${id}`, () => new Promise(() => {}));
	return id;
}

/** The id of a closed tab's draft, "" without one. */
async function leftDraft() {
	const all = keys(PREFIX + NEW).map((key) => key.slice(PREFIX.length));
	const { held = [] } = (await navigator.locks?.query()) ?? {};
	const open = new Set(held.map(({ name }) => name));
	return all.find((id) => !open.has(`${TAB}.${id.slice(NEW.length)}`)) ?? "";
}

export class Drafts {
	files = []; // [{name, text}] or [{name, image}]
	#id = null;
	#area;
	#changed;
	#shown = false; // whether the draft of #id is where one types
	#timer = 0;
	#new = NEW + tabId();

	/** area: where one types. changed(): called with another draft or other files. */
	constructor(area, changed) {
		this.#area = area;
		this.#changed = changed;
		area.addEventListener("input", () => {
			clearTimeout(this.#timer);
			this.#timer = setTimeout(() => this.keep(), PAUSE);
		});
		addEventListener("pagehide", () => this.keep());
	}

	async show(id) {
		const next = id || this.#new;
		if (next === this.#id) return;
		const first = this.#id === null;
		this.keep();
		this.#id = next;
		this.#shown = false;
		if (first) await this.#takeOver();
		if (this.#id !== next) return;
		const typed = first ? this.#area.value : ""; // before the page was ready
		this.#area.value = typed || (read(PREFIX + next) ?? "");
		this.#shown = true;
		this.files = [];
		this.#changed();
		const files = await draftFiles(next).catch(() => []);
		if (this.#id !== next || !files.length) return;
		this.files = [...files, ...this.files];
		this.#changed();
	}

	/** Take over a closed tab's draft, if this one has none. */
	async #takeOver() {
		const left = read(PREFIX + this.#new) === null && (await leftDraft().catch(() => ""));
		if (!left) return;
		write(PREFIX + this.#new, read(PREFIX + left));
		write(PREFIX + left, null);
		const files = await draftFiles(left).catch(() => []);
		if (files.length) await keepDraftFiles(this.#new, files).then(() => keepDraftFiles(left, [])).catch(() => {});
	}

	keep() {
		clearTimeout(this.#timer);
		if (this.#shown) write(PREFIX + this.#id, this.#area.value || null);
	}

	attach(file) {
		this.files.push(file);
		this.#filesChanged();
	}

	detach(file) {
		this.files = this.files.filter((one) => one !== file);
		this.#filesChanged();
	}

	#filesChanged() {
		this.#changed();
		keepDraftFiles(this.#id ?? this.#new, this.files).catch(() => {}); // they are there until the page is closed
	}

	/** Take the draft, to send it: {text, files}. */
	take() {
		const found = { text: this.#area.value, files: this.files };
		this.#area.value = "";
		this.files = [];
		this.keep();
		this.#filesChanged();
		return found;
	}

	/** The draft has begun a conversation. */
	became(id) {
		this.keep();
		const text = this.#area.value;
		write(PREFIX + (this.#id ?? this.#new), null);
		this.#id = id || this.#new;
		if (text) this.keep();
	}

	/** Forget the draft of a conversation, and those of its messages: see edit.js. files: its own. Returns how to undo that. */
	forget(id, files) {
		const texts = [PREFIX + id, ...keys(`${PREFIX}${id}.`)].map((key) => [key, read(key)]);
		for (const [key] of texts) write(key, null);
		keepDraftFiles(id, []).catch(() => {});
		return async () => {
			for (const [key, text] of texts) write(key, text);
			await keepDraftFiles(id, files).catch(() => {});
		};
	}
}
