// The messages that are shown: the path through a conversation, with the versions of each message.

import { arrange, byId, button, element, keepFocus } from "./dom.js";
import { Follow } from "./follow.js";
import { now } from "./idle.js";
import { AnswerView, questionView, watchRounds } from "./message.js";
import { isUnanswered } from "./turns.js";
import { interrupted } from "./writing.js";

export class Log {
	#actions;
	#box = byId("log");
	#follow = new Follow(byId("log"));
	#shown = new Map(); // {element, versions, note} by message
	#live = new Map(); // answers that are being written, by their elements

	/**
	 * actions, each with the message: edit(message, text), amend(message, text), regenerate(message), resume(message),
	 * ask(message), choose(message), remove(message), details(message); include(), stop(), endReasoning().
	 */
	constructor(actions) {
		this.#actions = actions;
		watchRounds(this.#box, byId("tip"), (root, thoughts) => {
			const message = this.#live.get(root) ?? [...this.#shown].find(([, { element: one }]) => one === root)?.[0];
			return (thoughts ? message?.reasoningTrace : message?.trace)?.rounds;
		});
	}

	clear() {
		this.#shown.clear();
		this.#live.clear();
		this.#box.replaceChildren();
	}

	/** Show a conversation. writing: its answer that is being written, null without one. */
	show(data, writing) {
		keepFocus(this.#box, () => this.#show(data, writing));
	}

	#show(data, writing) {
		const focused = [...this.#box.children].findIndex((one) => one.contains(document.activeElement));
		const path = data.messages;
		const there = new Set(path);
		for (const message of this.#shown.keys()) if (!there.has(message)) this.#shown.delete(message);
		const sent = path.filter(({ out }) => !out);
		const elements = path.map((message, i) => {
			if (writing && message === writing.message) return this.#liveView(writing).element;
			const found = this.#shown.get(message) ?? this.#make(message);
			const first = message === sent[0] && i > 0;
			this.#describe(found, data, message, first, sent[sent.indexOf(message) + 1], writing !== null);
			return found.element;
		});
		if (writing && !writing.message && (writing.question ?? undefined) === path.at(-1)) {
			elements.push(this.#liveView(writing).element);
		}
		if (writing?.view && !elements.includes(writing.view.element)) {
			this.#live.delete(writing.view.element);
			writing.view.remove();
			writing.view = null;
		}
		arrange(this.#box, elements);
		now(elements[focused]); // with its buttons
	}

	#liveView(writing) {
		if (writing.view) return writing.view;
		const { answer } = writing;
		const kept = { versions: element("span", { class: "versions" }), note: element("div", { class: "note", hidden: true }) };
		const view = new AnswerView(this.#actionsOf(() => writing.message, kept));
		writing.view = Object.assign(view, { kept });
		view.begin(answer);
		if (answer.content) view.push(answer.content);
		if (answer.content || answer.reasoning) view.show(answer);
		this.#live.set(view.element, answer);
		return view;
	}

	ended(writing) {
		const { view, message } = writing;
		if (!view) return;
		this.#live.delete(view.element);
		writing.view = null;
		if (!message || !message.id) {
			view.remove();
			return;
		}
		view.end(message);
		this.#shown.set(message, { element: view.element, ...view.kept });
	}

	#actionsOf(message, { versions, note }) {
		const { edit, amend, regenerate, resume, remove } = this.#actions;
		return {
			versions,
			note,
			edit: (text, files) => edit({ ...message(), files }, text),
			amend: (text) => amend(message(), text),
			regenerate: () => regenerate(message()),
			resume: () => resume(message()),
			remove: () => remove(message()),
			details: () => this.#actions.details(message()),
			stop: () => this.#actions.stop(),
			endReasoning: () => this.#actions.endReasoning(),
		};
	}

	#make(message) {
		const kept = { versions: element("span", { class: "versions" }), note: element("div", { class: "note", hidden: true }) };
		const actions = this.#actionsOf(() => message, kept);
		let shown;
		if (message.role === "user") shown = questionView(message, actions);
		else {
			const view = new AnswerView(actions);
			const outcome = interrupted(message) || message.outcome;
			view.end({ ...message, outcome });
			shown = view.element;
		}
		const found = { element: shown, ...kept };
		this.#shown.set(message, found);
		return found;
	}

	/** Show what depends on other messages. next: the one after it. busy: an answer is being written. */
	#describe({ element: shown, versions, note }, data, message, first, next, busy) {
		shown.classList.toggle("out", Boolean(message.out));
		shown.classList.toggle("full", Boolean(message.full));
		const said = [];
		if (first) {
			said.push("The messages above are left out of requests, so that there is room in the context. ");
			said.push(button("Include them", () => this.#actions.include()));
		} else if (!message.out && isUnanswered(message, next)) {
			said.push("This question has no answer, so it is not sent with the later ones.");
		} else if (message.role === "user" && data.isLast(message) && !busy) {
			said.push(button("Ask again", () => this.#actions.ask(message)));
		}
		note.classList.toggle("above", first);
		note.hidden = !said.length;
		note.replaceChildren(...said);
		versions.replaceChildren(...this.#versions(data, message));
	}

	#versions(data, message) {
		const all = data.versions(message);
		if (all.length < 2) return [];
		const at = all.indexOf(message);
		const step = (text, name, other) =>
			button(text, () => this.#actions.choose(other), { class: "step", "aria-label": name, "aria-disabled": other ? null : "true" });
		return [
			step("‹", "Previous version", all[at - 1]),
			element("span", { class: "count" }, `${at + 1}/${all.length}`),
			step("›", "Next version", all[at + 1]),
		];
	}

	/** The element of a message that is shown. */
	elementOf(message) {
		return this.#shown.get(message)?.element ?? null;
	}

	/** See Follow.follows. */
	get nearEnd() {
		return this.#follow.follows;
	}

	/** opened: what is shown has just been opened. */
	toEnd(opened = false) {
		this.#follow.toEnd({ opened });
	}
}
