// Which messages of a conversation are sent, and as what.

import { contentOf } from "./images.js";

/** A name as one short line. */
const nameOf = (name) => name.replace(/[\p{C}\s]+/gu, " ").trim().slice(0, 120) || "file";

/** The text of a question, its files first: later questions about them find them evaluated. */
export function textOf({ content, files = [] }) {
	const texts = files.filter(({ text }) => text !== undefined);
	const parts = texts.map(({ name, text }) => `--- File: ${nameOf(name)} ---\n${text}`);
	return [...parts, content].filter(Boolean).join("\n\n");
}

const isEmpty = ({ role, content }) => role === "assistant" && !content;

/**
 * The messages as the server gets them, without those left out, and questions without an answer before another question:
 * templates that demand turns would refuse them. going: an answer that goes on, at the end.
 */
export function turns(messages, going = null) {
	const shown = messages.filter((message) => !message.out && !isEmpty(message) && message !== going);
	const found = [];
	for (const [i, message] of shown.entries()) {
		if (isUnanswered(message, shown[i + 1])) continue;
		const text = textOf(message);
		const content = contentOf(text, message.files);
		if (!content) continue; // of images alone, for a model that reads none
		const last = found.at(-1);
		if (message.role === "assistant" && last?.role === "assistant") last.content += `\n\n${text}`;
		else found.push({ role: message.role, content });
	}
	if (going) append(found, going);
	return found;
}

function append(found, { content, reasoning }) {
	const last = found.at(-1);
	if (last?.role === "assistant") {
		last.content += `\n\n${content}`;
		return;
	}
	found.push({ role: "assistant", content, ...(reasoning ? { reasoning_content: reasoning } : {}) });
}

/** Where requests may begin instead: indices among the messages that are sent. */
export function starts(messages) {
	return messages.filter(({ out }) => !out).flatMap(({ role }, i) => (role === "user" && i > 0 ? [i] : []));
}

/** Whether a question is not sent because another one follows it. next: the message after it. */
export const isUnanswered = (message, next) => message.role === "user" && next?.role === "user";
