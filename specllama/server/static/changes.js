// Changes to the conversation at hand: versions, deletions, what is left out of requests.

import { byId } from "./dom.js";
import { say } from "./notice.js";

/**
 * chat: {data(), ended(), show(), changed(data), save(data), write(question)}. ended(): stops the answer, and tells
 * whether there was one. changed(data): what is sent of it is another.
 */
export class Changes {
	#chat;
	#models;

	constructor(models, chat) {
		this.#models = models;
		this.#chat = chat;
	}

	async #change(act, data = this.#chat.data()) {
		const done = act(data);
		if (data === this.#chat.data()) this.#chat.show();
		this.#chat.changed(data);
		await this.#chat.save(data);
		return done;
	}

	choose(message) {
		return this.#change((data) => data.choose(message));
	}

	/** Ask another question in the place of one. */
	async edit(message, text) {
		await this.#chat.ended();
		const added = this.#chat.data().add({ role: "user", content: text, files: message.files }, message.parent);
		await this.#chat.write(added);
	}

	/** Give an answer another text, as a version. */
	amend({ model, tokens, parent }, text) {
		const answer = { role: "assistant", content: text, reasoning: "", model, tokens, edited: true, partial: true };
		return this.#change((data) => data.add(answer, parent));
	}

	/** Delete a message; that can be undone. */
	async remove(message) {
		const stopped = await this.#chat.ended();
		const data = this.#chat.data();
		if (!data.has(message)) return; // it is deleted
		const what = message.role === "user" ? "The question is deleted" : "The answer is deleted";
		await this.#change(() => {
			const restore = data.remove(message);
			const undo = () => {
				say("");
				return this.#change(restore, data);
			};
			say(`${what}${stopped ? "; what was being written is stopped" : ""}.`, { Undo: undo });
			byId("notice").querySelector("button").focus();
		});
	}

	/** Leave the oldest turns out of requests, then do what there was no room for. draft: the question that is not sent yet. */
	async makeRoom(again, draft = null) {
		const data = this.#chat.data();
		const { leaveOut } = await import("./leaveout.js");
		const left = await leaveOut(data, this.#models, draft).catch((error) => error);
		if (left instanceof Error || !left) {
			say(left ? left.message : "There is nothing that can be left out: the last question alone is too long.");
			return;
		}
		await this.#change(() => say(""), data);
		await again();
	}

	include() {
		return this.#change((data) => {
			for (const message of data.messages.filter(({ out }) => out)) {
				message.out = false;
				data.touch(message);
			}
		});
	}
}
