// The conversation at hand. Answers of others go on meanwhile.

import { Changes } from "./changes.js";
import { Context } from "./context.js";
import { announce, byId, keepFocus } from "./dom.js";
import { Ending } from "./ending.js";
import { Answer } from "./generate.js";
import { toggle } from "./layout.js";
import { Log } from "./log.js";
import { say } from "./notice.js";
import { Pace } from "./pace.js";
import { keep, sayDeleted } from "./saving.js";
import { currentSettings, newSystem } from "./settings.js";
import * as store from "./store.js";
import { Trace } from "./trace.js";
import { keepUnfinished, stored } from "./unfinished.js";
import { Writing } from "./writing.js";

export class Chat {
	session = { near_ties: 0, answers: 0 };
	#models;
	#panel;
	#list;
	#moved; // called with the id when another conversation is shown, or a new one gets its id
	#data;
	#log;
	#writings = new Map(); // by the id of their conversation
	#changes;
	#ending;
	#context;
	#chosen = null; // the answer whose figures are shown, null: the last one
	#opening = 0;
	#left = false; // whether the page is being closed

	constructor(models, panel, moved) {
		this.#models = models;
		this.#panel = panel;
		this.#moved = moved;
		this.#data = new store.Conversation({ system: newSystem() });
		this.#changes = new Changes(models, {
			data: () => this.#data,
			ended: () => this.#ended(),
			show: () => this.#show(),
			changed: (data) => this.#changed(data),
			save: (data) => this.#save(data),
			write: (question) => this.#write(question),
		});
		this.#log = new Log({
			edit: (message, text) => this.#changes.edit(message, text),
			amend: (message, text) => this.#changes.amend(message, text),
			regenerate: (message) => this.regenerate(message),
			resume: (message) => this.resume(message),
			ask: (message) => this.#write(message),
			choose: (message) => this.#changes.choose(message),
			remove: (message) => this.#changes.remove(message),
			details: (message) => this.#details(message),
			include: () => this.#changes.include(),
			stop: () => this.stop(),
			endReasoning: () => this.#writing?.endReasoning(),
		});
		this.#ending = new Ending(models, {
			ask: (question, before) => this.#write(question, before),
			resume: () => this.resume(),
			makeRoom: (again) => this.#changes.makeRoom(again),
		});
		this.#context = new Context(models, {
			data: () => this.#data,
			writing: () => this.#writing,
			makeRoom: (draft) => this.#changes.makeRoom(() => {}, draft),
			show: () => this.#show(),
			save: (data) => this.#save(data),
		});
		store.onChange((id) => this.#changedElsewhere(id));
		addEventListener("pagehide", () => {
			this.#left = true; // the lost connection is not the answer's end
			keepUnfinished([...this.#writings.values()]);
		});
		addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
	}

	set list(list) {
		this.#list = list;
	}

	get data() {
		return this.#data;
	}

	get #writing() {
		return this.#writings.get(this.#data.id) ?? null;
	}

	get busy() {
		return this.#writing !== null;
	}

	get writing() {
		return new Set(this.#writings.keys());
	}

	/** Show a conversation; without an id, a new one. gone: the one before is deleted. */
	async open(id = "", gone = false) {
		const turn = (this.#opening += 1);
		this.#ending.stop();
		const there = id && (this.#writings.get(id)?.conversation ?? (await store.conversation(id)));
		if (turn !== this.#opening) return;
		if (this.#writing) {
			this.#writing.view?.remove();
			this.#writing.view = null;
		}
		this.#data = there || new store.Conversation({ system: newSystem() });
		this.#log.clear();
		say(id && !there ? "There is no such conversation in this browser." : "");
		this.#show();
		this.#log.toEnd(true);
		if (!this.busy) this.#ending.opened(this.#data);
		this.#moved(there ? id : "", false, gone || (id && !there));
		byId("question").focus();
	}

	#show() {
		document.title = this.#data.title ? `${this.#data.title} – specllama` : "specllama";
		this.#log.show(this.#data, this.#writing);
		this.#list.show(this.#data.id, this.writing);
		this.#buttons();
		this.#showLast();
	}

	#showLast() {
		keepFocus(byId("panel"), () => this.#showFigures());
		this.#context.update();
	}

	#showFigures() {
		const answers = this.#data.messages.filter(({ role }) => role === "assistant");
		const message = answers.includes(this.#chosen) ? this.#chosen : answers.at(-1);
		const { props } = this.#models;
		const place = [answers.indexOf(message) + 1, answers.length];
		if (!message?.trace || this.busy) {
			this.#panel.clear(props);
			if (message && !this.busy) this.#panel.about(message, {}, null, place);
			return;
		}
		const answer = Object.assign(new Answer(), { n: message.figures?.n ?? 0, ...message.report });
		answer.trace = new Trace(message.trace);
		answer.reasoningTrace = new Trace(message.reasoningTrace);
		try {
			this.#panel.show(answer, props, false);
			this.#panel.about(message, answer, this.#log.elementOf(message), place);
		} catch {
			this.#panel.clear(props); // figures of a file that are none
		}
	}

	/** Show the figures of an answer in the panel. */
	#details(message) {
		this.#chosen = message;
		this.#showLast();
		toggle("panel", true);
	}

	describe() {
		this.#panel.describe(this.#models.props, currentSettings().speculate, this.#models.problem);
		if (!this.busy) this.#showLast();
	}

	/** Ask a question. files: [{name, text}]. */
	async ask(text, files = []) {
		if (this.busy || !(text.trim() || files.length)) return;
		const fresh = !this.#data.stored;
		const message = this.#data.add({ role: "user", content: text, files });
		if (!this.#data.title) this.#data.set({ title: (text.trim().split("\n")[0] || files[0].name).slice(0, 80) });
		if (fresh) this.#moved(this.#data.id, true);
		await this.#write(message);
	}

	/** The text of the last answer that is complete, "" without one. */
	get lastAnswer() {
		return this.#data.messages.findLast((one) => one.role === "assistant" && one !== this.#writing?.message)?.content ?? "";
	}

	/** Write an answer again, by default the last one, as a version. */
	async regenerate(message = this.#data.last) {
		if (this.busy || message?.role !== "assistant") return;
		const question = this.#data.get(message.parent);
		if (question) await this.#write(question);
		else say("There is no question before this answer.");
	}

	/** Continue an answer, by default the last one, or answer a question that waits. */
	async resume(message = this.#data.last) {
		if (this.busy || !message) return;
		if (message.role === "user") await this.#write(message);
		else await this.#write(this.#data.get(message.parent) ?? null, message);
	}

	/** Continue an answer of a closed page: see unfinished.recovered. */
	async goOn({ data, question, message }) {
		const here = data.id === this.#data.id ? this.#data : data;
		if (here !== data) {
			await store.refresh(here);
			if (here === this.#data) this.#show();
		}
		if (this.#writings.has(here.id)) return;
		const before = message && here.get(message.id);
		await this.#run(here, here.get(question?.id) ?? null, before);
	}

	/** End the answer, and waiting for the engine. */
	stop() {
		this.#writing?.stop();
		this.#ending.stop();
	}

	/** Stop, and wait for what there is of the answer. Returns whether there was one. */
	async #ended() {
		const writing = this.#writing;
		this.stop();
		await writing?.done;
		return writing !== null;
	}

	/** What is sent of a conversation has changed. */
	#changed(data) {
		this.#ending.begun(data);
		this.#context.changed(data);
	}

	/** Whether what is not sent yet would be refused; then that is said. */
	get refuses() {
		if (this.#context.refused) this.#context.sayRefused();
		return this.#context.refused;
	}

	/** question: {content, files}, not sent yet. */
	draft(question) {
		this.#context.draft = question;
	}

	/** Delete a conversation. Returns how to undo that, null where it is not there. */
	async remove(id) {
		const writing = this.#writings.get(id);
		const shown = id === this.#data.id;
		const data = writing?.conversation ?? (shown ? this.#data : await store.conversation(id));
		writing?.stop();
		await store.remove(id);
		if (shown) await this.open("", true);
		this.#list.show(this.#data.id, this.writing);
		return data && (async () => {
			await writing?.done;
			store.revive(data);
			await store.save(data, data.changed);
			this.#list.show(this.#data.id, this.writing);
			if (shown) await this.open(id);
		});
	}

	async rename(id, title) {
		const open = id === this.#data.id ? this.#data : this.#writings.get(id)?.conversation;
		const data = open ?? (await store.conversation(id));
		data?.set({ title });
		if (data) await this.#save(data);
		if (data === this.#data) this.#show();
	}

	/** Store the system prompt. changed: whether it is another one. */
	keep(changed) {
		const { stored, system } = this.#data;
		if (changed) this.#changed(this.#data);
		this.#data.set({ system });
		if (!stored && system !== newSystem()) this.#moved(this.#data.id, true);
		if (stored || this.#data.messages.length || system !== newSystem()) this.#save(this.#data);
		this.describe();
	}

	/** Answer a question, or continue an answer: `before`. */
	#write(question, before = null) {
		if (this.busy) return Promise.resolve();
		return this.#run(this.#data, question, before);
	}

	async #run(data, question, before) {
		const { name: model, contextLength: size } = this.#models;
		const writing = new Writing(data, question, before, { model, size, settings: currentSettings() });
		this.#writings.set(data.id, writing);
		this.#chosen = null;
		this.#ending.begun(data);
		writing.was = data.leaf;
		writing.pace = new Pace(() => this.#draw(writing));
		const run = writing.run((part) => {
			writing.view?.push(part);
			if (writing.answer.content || writing.answer.reasoning) writing.pace.ask();
			else if (data === this.#data) this.#context.show();
		});
		if (data === this.#data) {
			this.#ending.stop();
			say("");
			if (!before) data.show(question?.id ?? null);
			this.#show();
			this.#log.toEnd();
			announce("Writing the answer.");
		}
		this.#keepAsked(data); // the request is under way
		writing.done = run.then((failure) => this.#end(writing, failure));
		await writing.done;
	}

	/** Store what an answer is written for. What another tab has deleted is there again: somebody goes on with it. */
	async #keepAsked(data) {
		if (await store.isDeleted(data)) {
			store.revive(data);
			if (data === this.#data) say("Another tab had deleted this conversation. It is kept, since you went on with it.");
		}
		await this.#save(data);
	}

	async #end(writing, failure) {
		const { conversation: data, answer, message } = writing;
		writing.pace.end();
		if (this.#left) return;
		const lost = failure?.code === "unreachable"; // perhaps because the page is being closed
		if (lost) keepUnfinished([writing]);
		if (this.#writings.get(data.id) === writing) this.#writings.delete(data.id);
		if (!failure) {
			this.session.answers += 1;
			this.session.near_ties += answer.figures?.near_ties ?? 0;
		}
		const shown = data === this.#data;
		if (shown) {
			const follows = this.#log.nearEnd;
			if (!message && data.leaf === (writing.question?.id ?? null)) data.show(writing.was);
			this.#log.ended(writing);
			this.#show();
			if (follows) this.#log.toEnd();
		}
		await this.#save(data);
		if (lost) stored(writing);
		if (failure?.full) this.#ending.refused(writing, failure);
		if (!shown || data !== this.#data) return;
		if (failure) await this.#ending.failed(writing, failure);
		else this.#ending.complete(writing);
	}

	async #save(data) {
		await keep(data, data === this.#data);
		this.#list.show(this.#data.id, this.writing);
	}

	async #changedElsewhere(id) {
		const data = this.#writings.get(id)?.conversation ?? (id === this.#data.id ? this.#data : null);
		if (data?.stored) {
			const keep = this.#writings.get(id)?.message ?? null;
			const there = await store.refresh(data, keep);
			if (data === this.#data) {
				if (there) {
					const follows = this.#log.nearEnd;
					this.#show();
					if (follows) this.#log.toEnd();
				} else sayDeleted(data);
			}
		}
		this.#list.show(this.#data.id, this.writing);
	}

	#draw(writing) {
		if (this.#writings.get(writing.conversation.id) !== writing || !writing.view) return;
		const follows = this.#log.nearEnd;
		writing.view.show(writing.answer);
		this.#panel.show(writing.answer, this.#models.props, true);
		this.#context.show();
		if (follows) this.#log.toEnd();
	}

	#buttons() {
		const focused = document.activeElement;
		byId("send").hidden = this.busy;
		byId("stop").hidden = !this.busy;
		byId("log").setAttribute("aria-busy", String(this.busy));
		if (focused === byId("send") || focused === byId("stop")) byId("question").focus();
	}
}
