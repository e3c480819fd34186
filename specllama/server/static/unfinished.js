// What was being written when the page was closed, taken over by the next page.

import { database } from "./database.js";
import { withoutImage } from "./images.js";
import { keys, read, write } from "./storage.js";
import { Conversation, checked, checkedHead, conversation, save, withoutRounds } from "./store.js";

const PREFIX = "specllama.unfinished.";
const YOUNG = 5000; // milliseconds since a page was loaded
const PATIENCE = 1500; // milliseconds that other pages wait
const RECENT = 10 * 60 * 1000; // milliseconds in which an answer goes on by itself

/** Keep what there is of answers: Writings. */
export function keepUnfinished(writings) {
	for (const writing of writings) {
		const { id, title, system, created, stored } = writing.conversation;
		const [asked, message] = writing.last;
		const question = asked && { ...asked, files: (asked.files ?? []).map(withoutImage) }; // the database has them
		const found = { at: Date.now(), fresh: !stored, head: { id, title, system, created }, question, message };
		if (write(PREFIX + id, JSON.stringify(found))) continue;
		const bare = { ...found, message: message && withoutRounds(message) }; // there may be no room for them
		if (write(PREFIX + id, JSON.stringify(bare))) continue;
		write(PREFIX + id, JSON.stringify({ ...bare, question: question && { ...question, files: [] } }));
	}
}

/** Forget what was kept of an answer that is stored now. */
export const stored = ({ conversation: { id } }) => write(PREFIX + id, null);

/**
 * Take over what earlier pages kept. Returns {data, question, message} of each answer that should go on. Of several
 * pages, one takes over each.
 */
export async function recovered() {
	const found = [];
	if (!(await database())) return found; // they wait for a page that can store them
	for (const key of keys(PREFIX)) {
		await alone(key, async () => {
			const text = read(key);
			if (text === null) return;
			try {
				const one = await recover(JSON.parse(text));
				if (one) found.push(one);
			} catch {
				// it is none of ours, or there is no room for it
			}
			write(key, null);
		});
	}
	return found;
}

function alone(name, act) {
	return navigator.locks ? navigator.locks.request(name, act) : act();
}

/**
 * Call `there()` when a page that is being closed has kept something: at once in a page loaded in its place, later in
 * others.
 */
export function onUnfinished(there) {
	addEventListener("storage", ({ key, newValue }) => {
		if (key?.startsWith(PREFIX) && newValue !== null) setTimeout(there, performance.now() < YOUNG ? 0 : PATIENCE);
	});
}

async function recover({ at, fresh, head, question, message }) {
	const known = checkedHead(head);
	const data = (await conversation(known.id)) ?? (fresh ? new Conversation(known) : null);
	if (!data) return null; // deleted meanwhile
	const asked = question && added(data, checked(question), question.parent);
	const answer = message && added(data, checked(message), asked?.id ?? null);
	await save(data);
	return Date.now() - at < RECENT ? { data, question: asked, message: answer } : null;
}

/** A message as it is in the conversation, with what was kept of it. */
function added(data, message, parent) {
	const there = data.get(message.id);
	if (!there) return data.add({ ...message, id: undefined }, data.get(parent) ? parent : null, data.leaf === parent);
	if (there.role === "user") return there;
	if (message.content.length + message.reasoning.length >= there.content.length + there.reasoning.length) {
		const { id, parent: before, at } = there;
		Object.assign(there, message, { id, parent: before, at });
	}
	there.writing = undefined;
	data.touch(there);
	return there;
}
