// How much of the context the conversation takes: by its last answer, or counted by the server after changes, and with
// what is typed and attached.

import { byId, whole } from "./dom.js";
import { count } from "./generate.js";
import { noticed, say, takeBack } from "./notice.js";
import { starts, textOf } from "./turns.js";

const FULL_SHARE = 0.9; // of the context from which on the gauge warns
const LONG = 2000; // characters from which on what is typed is counted
const LONGEST = 16; // characters a token: longer texts are not counted
const PAUSE = 500; // milliseconds after a change
const FULL = "The context is almost full: an answer ends when it is.";
const LONGER = "With what is typed and attached the conversation is longer than the context: it will be refused as it is.";

/** Whether two drafts have a short text and the same images. */
const ofSameImages = (one, other) =>
	[one, other].every(({ content, files }) => content.length <= LONG && files.every(({ text }) => text === undefined)) &&
	one.files.length === other.files.length && other.files.every((file) => one.files.includes(file));

export class Context {
	#models;
	#chat;
	#draft = null; // the question that is not sent yet, where it is counted
	#changed = null; // the conversation whose tokens are those of before a change
	#with = null; // {data, draft, tokens, helps}: with the draft, once they are known. helps: whether leaving out turns does
	#timer = 0;
	#said = ["", 0]; // the last warning, and of how many tokens

	/** chat: {data(), writing(), makeRoom(draft), show(), save(data)}, of the conversation at hand. */
	constructor(models, chat) {
		this.#models = models;
		this.#chat = chat;
		byId("context").high = FULL_SHARE;
	}

	set draft({ content, files }) {
		const was = this.#draft;
		if (was && this.#with?.draft === was && ofSameImages(was, { content, files })) {
			was.content = content; // sending images again with each key would be slow
			return;
		}
		this.#draft = files.length || content.length > LONG ? { role: "user", content, files: [...files] } : null;
		this.update();
	}

	/** What is sent of a conversation is not what it was. */
	changed(data) {
		this.#changed = data;
		this.update();
	}

	/** Show the gauge, and count where that is needed. */
	update() {
		clearTimeout(this.#timer);
		if (!this.#draft) this.#with = null;
		if (this.#draft || this.#changed === this.#chat.data()) {
			this.#timer = setTimeout(() => this.#count().catch(() => {}), PAUSE);
		}
		this.show();
	}

	async #count() {
		const [data, draft, size] = [this.#chat.data(), this.#draft, this.#models.contextLength];
		const timer = this.#timer;
		if (this.#chat.writing() || !size) return;
		const path = data.messages.filter(({ out }) => !out);
		const messages = draft ? [...path, draft] : path;
		const far = draft && textOf(draft).length > LONGEST * size;
		const tokens = far ? Infinity : messages.length ? await count(messages, data.system, this.#models.name) : 0;
		if (timer !== this.#timer || data !== this.#chat.data() || this.#chat.writing()) return;
		if (draft) {
			const { tooMany } = await import("./leaveout.js");
			const helps = tokens >= size && !far && (await tooMany(data, this.#models, draft)).length > 0;
			if (timer !== this.#timer || data !== this.#chat.data() || this.#chat.writing()) return;
			const before = this.#with?.helps;
			this.#with = { data, draft, tokens, helps };
			if (helps !== before) this.#again();
		} else {
			this.#changed = null;
			const last = path.at(-1);
			if (last && data.has(last)) {
				const full = last.full && tokens > FULL_SHARE * size;
				const another = full !== last.full;
				Object.assign(last, { tokens, full });
				data.touch(last);
				if (another) this.#chat.show();
				this.#chat.save(data);
			}
		}
		this.show();
	}

	show() {
		const size = this.#models.contextLength;
		const writing = this.#chat.writing();
		const data = this.#chat.data();
		const { messages } = data;
		const own = writing?.answer.tokens ?? messages.findLast(({ tokens, out }) => tokens && !out)?.tokens ?? 0;
		const draft = !writing && this.#with?.data === data ? this.#with.tokens : 0;
		const used = draft || own;
		byId("context").value = size ? Math.min(1, used / size) : 0;
		const shown = used === Infinity ? `More than ${whole(size)}` : whole(used);
		byId("context-text").textContent = size ? `${shown} of ${whole(size)} tokens${draft ? " with this message" : ""}` : "";
		byId("send").ariaDisabled = this.refused ? "true" : null;
		if (writing || !size) return;
		this.#warn(draft >= size ? LONGER : used > FULL_SHARE * size ? FULL : "", own);
	}

	/** Whether the server would refuse what is typed and attached, as it is: it is too long. */
	get refused() {
		const { data, draft, tokens } = this.#with ?? {};
		const size = this.#models.contextLength;
		return Boolean(draft && draft === this.#draft && data === this.#chat.data() && size && tokens >= size);
	}

	/** Say so. */
	sayRefused() {
		say(LONGER, this.#room);
	}

	get #room() {
		const { draft, tokens, helps } = this.#with ?? {};
		const works = draft && tokens >= this.#models.contextLength ? helps : starts(this.#chat.data().messages).length > 0;
		return works ? { "Leave out the oldest turns": () => this.#chat.makeRoom(this.#draft) } : {};
	}

	/** Warn, once of the same tokens, unless something else is said. */
	#warn(text, sent) {
		const [before, about] = this.#said;
		if (text === before && (!text || sent === about)) return;
		if (text !== before) takeBack(before);
		if (text && ![text, ""].includes(noticed())) return;
		this.#said = [text, sent];
		if (text && !noticed()) say(text, this.#room);
	}

	/** The notice that is shown has the offers that work by now. */
	#again() {
		if (noticed() === LONGER) say(LONGER, this.#room);
	}
}
