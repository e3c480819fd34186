// What to say when an answer has ended, and waiting for an engine that is gone.

import { recovered } from "./api.js";
import { announce, counted, inSentences } from "./dom.js";
import { noticed, say } from "./notice.js";
import { starts } from "./turns.js";

/** actions: {ask(question, before), resume(), makeRoom(again)}. models: see models.js. */
export class Ending {
	#actions;
	#models;
	#full = new Map(); // requests that the context has no room for, by conversation
	#waiting = null; // AbortController while the engine is awaited

	constructor(models, actions) {
		this.#models = models;
		this.#actions = actions;
	}

	stop() {
		this.#waiting?.abort();
		this.#waiting = null;
	}

	/** Say that an answer is complete. writing: a Writing. */
	complete({ answer, message, conversation }) {
		announce(`${message?.outcome || "The answer is complete"}, ${counted(answer.n, "token")}.`.replace(".,", ":"));
		if (message?.full && conversation.last === message) this.opened(conversation);
		else this.#models.update().catch(() => {});
	}

	begun({ id }) {
		this.#full.delete(id);
	}

	refused({ conversation: { id }, question, before }, problem) {
		this.#full.set(id, { question: question?.id, before: before?.id, said: inSentences(problem) });
	}

	/** Say if the context of the conversation at hand is full. */
	opened(data) {
		const { question, before, said: text } = this.#full.get(data.id) ?? {};
		const { makeRoom, resume, ask } = this.#actions;
		if (text && data.get(question)) {
			const again = () => ask(data.get(question), data.get(before) ?? null);
			this.#offer(data, text, { "Try again": again }, { "Leave out the oldest turns": () => makeRoom(again) });
		} else if (data.last?.full) {
			const full = "The context is full, which ended the answer. Nothing is left out of it unless you say so.";
			this.#offer(data, full, {}, { "Leave out the oldest turns and continue": () => makeRoom(() => resume()) });
		}
	}

	/** Say something of a full context, and offer to make room where that works. */
	async #offer(data, text, actions, room) {
		say(text, actions);
		if (!starts(data.messages).length) return;
		const { tooMany } = await import("./leaveout.js");
		const some = await tooMany(data, this.#models).catch(() => []);
		if (some.length && noticed() === text) say(text, { ...actions, ...room });
	}

	/** Say what ended an answer too early; wait for an engine or a server that is gone. */
	async failed({ question, before, message, conversation }, problem) {
		const empty = !message || message === before;
		const ask = () => this.#actions.ask(question, before);
		announce(empty ? problem.message : message.outcome);
		if (problem.name === "AbortError") {
			if (empty && !before) say("Stopped before the first token.", { "Ask again": ask });
			return;
		}
		if (problem.full) return this.opened(conversation);
		say(inSentences(problem), empty ? { "Try again": ask } : {});
		if (problem.retry && [0, 503].includes(problem.status)) await this.#wait(empty ? ask : null);
	}

	async #wait(ask) {
		this.stop();
		const waiting = new AbortController();
		this.#waiting = waiting;
		await recovered((why) => say(`Waiting for the engine: ${why}. The text so far is kept.`), waiting.signal);
		if (!waiting.signal.aborted) await this.#models.refresh().catch(() => {});
		if (waiting.signal.aborted) return;
		this.#waiting = null;
		say("The engine is back.", ask ? { "Try again": ask } : { "Continue the answer": () => this.#actions.resume() });
	}
}
