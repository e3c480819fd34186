// An answer that is being written, shown or not, and what is stored of it meanwhile. Knows no elements.

import { Answer, asked, endReasoning, generate } from "./generate.js";
import { encoded } from "./images.js";
import { continued, messageOf } from "./kept.js";
import { save } from "./store.js";
import { turns } from "./turns.js";

const EVERY = 2000; // milliseconds between two times at which it is stored
const STALE = 10_000; // milliseconds without being stored
export const CLOSED = "The page was closed before the end.";

export class Writing {
	answer = new Answer();
	message = null; // in the conversation, once there is text
	view = null; // an AnswerView while it is shown
	pace = null;
	ended = false;
	#stop = new AbortController();
	#saved = 0; // when
	#pushed = 0; // characters that `text` was called with
	#was = 0; // characters that were there before

	/**
	 * conversation: its own. question: the message that is answered, null for none. before: the answer that goes on.
	 * request: {model, settings, size}, the last one the tokens of the context.
	 */
	constructor(conversation, question, before, { model, settings, size }) {
		Object.assign(this, { conversation, question, before, model, settings, size });
		if (before) {
			continued(this.answer, before);
			this.message = before;
			this.#pushed = before.content.length;
			this.#was = before.content.length + this.answer.reasoning.length; // `before` itself grows
		}
	}

	get #sent() {
		const path = [];
		for (let one = this.question; one; one = this.conversation.get(one.parent)) path.push(one);
		return turns(path.reverse(), this.before);
	}

	/**
	 * Have it written. text(part): called with each event's part of the text. Returns what ended it too early, null for
	 * nothing. The conversation then has what there is of it.
	 */
	async run(text) {
		const { answer, model, settings, conversation } = this;
		const messages = await encoded(this.#sent);
		const body = { ...asked({ messages, system: conversation.system, model, settings }), reasoning_control: true };
		const grown = () => {
			this.#keep();
			text(answer.content.slice(this.#pushed));
			this.#pushed = answer.content.length;
		};
		const written = generate(body, { signal: this.#stop.signal, answer, grown });
		const failure = await written.then(() => null, (error) => error);
		this.ended = true;
		this.#store(failure);
		return failure;
	}

	stop() {
		this.#stop.abort();
	}

	endReasoning() {
		return endReasoning(this.answer);
	}

	get #grew() {
		const { content, reasoning } = this.answer;
		return content.length + reasoning.length > this.#was || (this.message !== null && this.message !== this.before);
	}

	#keep() {
		const time = Date.now();
		if (time - this.#saved < EVERY || !this.#grew) return;
		this.#saved = time;
		this.#set({ ...this.#unfinished, writing: time });
		save(this.conversation).catch(() => {}); // its end is stored too, and says it
	}

	get #unfinished() {
		return { ...messageOf(this.answer, { name: "AbortError" }, this.settings), outcome: CLOSED };
	}

	/** What would be lost with the page: the question and what there is of the answer. */
	get last() {
		const grown = this.#grew ? { ...this.#unfinished, model: this.model } : {};
		return [this.question, this.message || this.#grew ? { ...this.message, ...grown, writing: undefined } : null];
	}

	#set(fields) {
		const found = { ...fields, model: this.model };
		if (this.message) Object.assign(this.message, found);
		else {
			const { conversation, question } = this;
			const shown = conversation.leaf === (question?.id ?? null);
			this.message = conversation.add(found, question?.id ?? null, shown);
		}
		this.conversation.touch(this.message);
	}

	#store(failure) {
		const { answer, message, settings, size } = this;
		const gone = message !== null && !this.conversation.has(message);
		if (gone || (failure && !this.#grew)) return; // deleted; or what was there stays as it was
		this.#set({ ...messageOf(answer, failure, settings, size), writing: undefined });
	}
}

/** What to say of a stored answer that was being written then; "" for one that was not. */
export function interrupted({ writing }) {
	if (!writing) return "";
	return Date.now() - writing < STALE ? "It is being written in another tab." : CLOSED;
}
