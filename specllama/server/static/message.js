// One message of a conversation as elements, and what one can do with it. Knows no server.

import { button, bytes, copyButton, element, keepFocus, region } from "./dom.js";
import { editForm } from "./edit.js";
import { figuresLine } from "./figures.js";
import { folded } from "./fold.js";
import { icon, iconButton } from "./icons.js";
import { imageView, unsentNote } from "./images.js";
import { later } from "./idle.js";
import { watchPrefill } from "./prefill.js";
import { rawButton } from "./raw.js";
import { RepetitionWatch } from "./repeats.js";
import { MarkdownStream } from "./stream.js";
import { Trace } from "./trace.js";

export { watchRounds } from "./rounds.js";

const BLINK = 500; // milliseconds

/** A question. actions: {edit(text, files), remove(), versions, note}, the last two elements. */
export function questionView(message, actions) {
	const body = element("div", { class: "body plain", dir: "auto" }, ...folded(message.content));
	const files = element("ul", { class: "files" });
	const showFiles = (shown = message.files ?? [], remove = null) => {
		files.replaceChildren(...shown.map((file) => fileView(file, remove)));
		files.hidden = !shown.length;
	};
	showFiles();
	body.hidden = !message.content;
	const edit = iconButton("edit", "Edit the question", () => begin());
	const tools = element(
		"div",
		{ class: "tools" },
		copyButton(() => message.content, "Copy the question", [icon("copy"), icon("done")]),
		edit,
		iconButton("remove", "Delete the question", () => actions.remove()),
	);
	const asked = element("div", { class: "asked" }, body, tools, actions.versions);
	const begin = () => {
		let kept = message.files ?? [];
		const drop = (file) => {
			kept = kept.filter((one) => one !== file);
			showFiles(kept, drop);
			area.focus();
		};
		showFiles(kept, drop);
		const end = () => {
			form.replaceWith(asked);
			showFiles();
			edit.focus();
		};
		const words = {
			label: "Edit the question", hint: "It is asked as a new version; this one and what followed it stay.", save: "Send",
		};
		const save = (text) => {
			end();
			actions.edit(text, kept);
		};
		const { form, area } = editForm(message, words, { save, end });
		asked.replaceWith(form);
		area.focus();
	};
	return element("article", { class: "message question", "aria-label": "Question" }, files, unsentNote(message.files ?? []), asked, actions.note);
}

/** A file of a question, folded. remove(file): null where it stays. */
function fileView(file, remove) {
	const { name, text } = file;
	if (text === undefined) return fileItem(imageView(file), file, remove);
	const shown = element("pre", region(name));
	const fold = element("details", {}, element("summary", {}, `${name} · ${bytes(new Blob([text]).size)}`), shown);
	fold.addEventListener("toggle", () => {
		shown.textContent = fold.open ? text : "";
	});
	return fileItem(fold, file, remove);
}

/** A file in a list, with a button that removes it. remove(file): null for none. */
export function fileItem(shown, file, remove) {
	return element("li", {}, shown, remove && button("✕", () => remove(file), { class: "icon", "aria-label": `Remove ${file.name}` }));
}

/** An answer, complete or being written. actions: {regenerate(), resume(), stop(), endReasoning(), amend(text), remove(),
 * details(), versions, note}. */
export class AnswerView {
	#actions;
	#body = element("div", { class: "body" });
	#thoughts = element("div", { class: "thoughts", ...region("Reasoning") });
	#summary = element("summary", {}, "Reasoning");
	#reasoning = element("details", { class: "reasoning", hidden: true }, this.#summary, this.#thoughts);
	#answerNow = element("div", { class: "answer-now", hidden: true }, button("Answer now", () => this.#endReasoning(), { "aria-label": "End the reasoning and answer now" }));
	#repeats = element("div", { class: "repeats", role: "status", hidden: true });
	#repeated = new RepetitionWatch();
	#outcome = element("p", { class: "outcome", hidden: true });
	#foot = element("footer", {});
	#stream;
	#thought = 0; // characters of the reasoning that are shown
	#blinking = 0; // the timer of the mark at the end of the text
	#begun = () => {}; // ends the view of the prompt

	constructor(actions) {
		this.#actions = actions;
		this.element = element(
			"article",
			{ class: "message answer", "aria-label": "Answer" },
			this.#reasoning,
			this.#answerNow,
			this.#body,
			this.#repeats,
			this.#outcome,
			this.#foot,
			actions.note,
		);
	}

	/** Begin to show a generate.Answer, or a stored message. */
	begin(answer) {
		this.#stream = new MarkdownStream(this.#body, answer.trace);
		this.#body.classList.add("writing");
		this.#begun = watchPrefill(answer, this.#body);
		// An animation in CSS would paint the whole conversation in each frame.
		if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
			this.#blinking = setInterval(() => this.#body.classList.toggle("blink"), BLINK);
		}
		this.element.setAttribute("aria-busy", "true");
	}

	push(text) {
		this.#stream.push(text);
	}

	show(answer) {
		this.#begun();
		this.#showReasoning(answer);
		this.#answerNow.hidden = !answer.id || !answer.reasoning || answer.content !== "";
		this.#stream.show();
		this.#showRepetition(this.#repeated.look(answer.content || answer.reasoning));
	}

	async #endReasoning() {
		const [asked] = this.#answerNow.children;
		asked.disabled = true;
		try {
			await this.#actions.endReasoning();
		} catch {
			asked.disabled = false; // the answer itself says what is wrong with the server
		}
	}

	#showRepetition(found) {
		if (this.#repeats.hidden === !found) return;
		this.#repeats.hidden = !found;
		if (!found) return;
		const part = found.part.trim().replace(/\s+/g, " ").slice(0, 60);
		const stop = button("Stop", () => this.#actions.stop(), { "aria-label": "Stop the answer that repeats itself" });
		this.#repeats.replaceChildren(element("p", {}, `The answer repeats itself: "${part}".`), stop);
	}

	#showReasoning(answer) {
		if (answer.reasoning.length === this.#thought) return;
		this.#reasoning.hidden = false;
		const added = answer.reasoning.slice(this.#thought);
		this.#thoughts.append(...answer.reasoningTrace.spans(added, this.#thought));
		this.#thought = answer.reasoning.length;
		this.#summary.textContent = answer.content ? "Reasoning" : "Reasoning…";
	}

	remove() {
		clearInterval(this.#blinking);
		this.#begun();
		this.element.remove();
	}

	/**
	 * Show a stored message. One that was not written here is rendered when it comes near the screen, or there is time;
	 * until then its text is shown as it is.
	 */
	end(message) {
		if (this.#stream) return this.#end(message);
		this.#body.textContent = message.content;
		return later(this.element, () => {
			try {
				this.#end(message);
			} catch {
				// figures of a file that are none
				this.#end({ role: "assistant", content: message.content, outcome: "Its figures cannot be read." });
			}
		});
	}

	#end(message) {
		const answer = { ...message, trace: new Trace(message.trace), reasoningTrace: new Trace(message.reasoningTrace) };
		if (!this.#stream) {
			this.begin(answer);
			this.push(message.content);
		}
		if (message.reasoning) {
			this.#showReasoning(answer);
			this.#summary.textContent = "Reasoning";
		}
		this.#begun();
		this.#stream.finish();
		keepFocus(this.element, () => {
			this.#repeats.hidden = this.#answerNow.hidden = true;
		});
		clearInterval(this.#blinking);
		this.#body.classList.remove("writing", "blink");
		this.element.removeAttribute("aria-busy");
		this.#outcome.hidden = !message.outcome;
		this.#outcome.textContent = message.outcome ?? "";
		this.#outcome.classList.toggle("bad", Boolean(message.failed));
		this.#foot.replaceChildren(...this.#footer(message, answer));
	}

	#footer(message, answer) {
		const { regenerate, resume, remove, details, versions } = this.#actions;
		const tools = [
			copyButton(() => message.content, "Copy the answer", [icon("copy"), icon("done")]),
			iconButton("again", "Regenerate the answer", () => regenerate(), { class: "when-idle" }),
			message.content && rawButton(this.#body, message.content.replaceAll("\r", " "), answer.trace),
			iconButton("edit", "Edit the answer", () => this.#edit(message), { class: "when-idle" }),
			iconButton("remove", "Delete the answer", () => remove()),
		];
		const found = [figuresLine(message.figures, () => details()), versions];
		if (message.partial && (message.content || message.reasoning)) {
			found.push(button("Continue", () => resume(), { class: "of-last when-idle" })); // by the style sheet
		}
		return [...found, element("div", { class: "tools" }, ...tools.filter(Boolean))].filter(Boolean);
	}

	#edit(message) {
		const end = () => {
			form.replaceWith(this.#body);
			this.#foot.hidden = false;
			this.#foot.querySelector("[aria-label='Edit the answer']")?.focus();
		};
		const words = {
			label: "Edit the answer", hint: "Your text becomes a version of the answer, which Continue goes on with.", save: "Save",
		};
		const save = (text) => {
			end();
			this.#actions.amend(text);
		};
		const { form, area } = editForm(message, words, { save, end });
		this.#body.replaceWith(form);
		this.#foot.hidden = true;
		area.focus();
	}
}
