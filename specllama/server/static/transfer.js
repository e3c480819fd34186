// Export and import of conversations, and what older versions of the page have stored.

import { database, eachMessage, heads } from "./database.js";
import { counted, element } from "./dom.js";
import { toUrl } from "./images.js";
import { keys, read, write } from "./storage.js";
import { Conversation, checked, checkedHead, conversation, notStored, revive, save } from "./store.js";
import { newId } from "./tree.js";

const FORMAT = "specllama.conversations";
const VERSION = 2; // 1: messages in a row, without ids
const OLD = "specllama.conversation."; // entries of version 1
const OLD_TITLE = "specllama.title.";

async function record(data) {
	const { id, title, system, created, changed, leaf } = data;
	const messages = [];
	for (const { files = [], ...rest } of data.all) {
		const kept = files.map(async (one) => (one.image ? { ...one, image: await toUrl(one.image) } : one));
		messages.push({ ...rest, files: await Promise.all(kept) });
	}
	return { id, title, system, created, changed, leaf, messages };
}

const file = (conversations) => JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);

/** All conversations as the text of a file. */
export async function exportedAll() {
	const messages = new Map();
	await eachMessage((one) => {
		if (!messages.has(one.conversation)) messages.set(one.conversation, []);
		messages.get(one.conversation).push(checked(one));
	});
	const other = new Map(notStored().map((data) => [data.id, data]));
	const stored = (await heads()).filter(({ id }) => !other.has(id));
	const found = stored.map((head) => new Conversation(checkedHead(head), (messages.get(head.id) ?? []).filter(Boolean)));
	found.push(...other.values());
	return file(await Promise.all(found.sort((a, b) => b.changed - a.changed).map(record)));
}

/** One conversation, with all its versions, as the text of a file. */
export const exported = async (data) => file([await record(data)]);

/** What is shown of a conversation, as Markdown. */
export function asMarkdown(data) {
	const parts = [`# ${oneLine(data.title) || "Conversation"}`];
	if (data.system) parts.push(`**System prompt**\n\n${data.system}`);
	for (const { role, content, files = [], model } of data.messages) {
		const by = role === "user" ? "Question" : `Answer${model ? ` (${oneLine(model)})` : ""}`;
		parts.push(`## ${by}`);
		for (const { name, text } of files) parts.push(text === undefined ? `*Image: ${oneLine(name)}*` : `**${oneLine(name)}**\n\n${fenced(text)}`);
		if (content) parts.push(content);
	}
	return `${parts.join("\n\n")}\n`;
}

const oneLine = (text) => text.replace(/\s+/g, " ").trim();

/** A text in a fence that is longer than all in it. */
function fenced(text) {
	const longest = Math.max(2, ...(text.match(/`{3,}/g) ?? []).map((run) => run.length));
	const fence = "`".repeat(longest + 1);
	return `${fence}\n${text}\n${fence}`;
}

/** Have the browser save a text. */
export function download(name, text, type = "application/json") {
	const url = URL.createObjectURL(new Blob([text], { type }));
	const link = element("a", { href: url, download: name });
	document.body.append(link);
	link.click();
	link.remove();
	setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A name for the file of a conversation. */
export function fileName(data, ending) {
	const name = data.title.normalize("NFC").replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60);
	return `${name || "conversation"}.${ending}`;
}

/** Add the conversations of a file. Returns what came of it. Throws Error with a sentence, and StorageError. */
export async function imported(text) {
	let data;
	try {
		data = JSON.parse(text);
	} catch {
		throw new Error("The file is no JSON.");
	}
	if (data?.format !== FORMAT || !Array.isArray(data.conversations)) {
		throw new Error("The file has no conversations of specllama: it needs to come from Export.");
	}
	if (!(data.version <= VERSION)) throw new Error("The file comes from a newer specllama: update this one.");
	const n = { added: 0, there: 0, mended: 0, bad: 0 };
	for (const one of data.conversations) {
		const found = restored(one);
		const stored = found && (await conversation(found.id));
		if (!found) n.bad += 1;
		else if (stored && holds(stored, found)) n.there += 1;
		else {
			if (stored) found.id = newId();
			revive(found); // it may have been deleted on this page
			await save(found);
			n.added += 1;
			n.mended += found.mended;
		}
	}
	const said = [`${counted(n.added, "conversation")} imported.`];
	if (n.there) said.push(`${n.there} there already.`);
	if (n.mended) said.push(`In ${n.mended}, messages could not be read or followed themselves: what could be was mended.`);
	if (n.bad) said.push(`${n.bad} could not be read.`);
	return said.join(" ");
}

/** Whether one conversation has all that is said in another. */
function holds(stored, found) {
	const key = ({ role, content }) => `${role} ${content}`;
	const known = new Set(stored.all.map(key));
	return found.all.every((message) => known.has(key(message)));
}

/** Whether no number in figures is negative or beyond all counts. */
function possible(value, depth = 9) {
	if (typeof value === "number") return value >= 0 && value < 1e12;
	return typeof value !== "object" || (depth > 0 && Object.values(value ?? {}).every((one) => possible(one, depth - 1)));
}

/** A conversation of a file or of an older page, of any version; null where it is none. */
function restored(data) {
	if (typeof data !== "object" || data === null || !Array.isArray(data.messages)) return null;
	const tree = data.messages.some((message) => message?.id);
	const seen = new Set();
	let parent = null;
	const messages = [];
	for (const one of data.messages.map(checked).filter(Boolean)) {
		if (seen.has(one.id)) one.id = newId();
		seen.add(one.id);
		if (!possible([one.figures, one.report, one.tokens, one.prompt, one.cached])) {
			Object.assign(one, { figures: null, report: null, tokens: null, prompt: null, cached: null });
		}
		if (!tree) Object.assign(one, { parent, at: messages.length });
		parent = one.id;
		messages.push(one);
	}
	const parents = messages.map((message) => message.parent);
	const found = new Conversation(checkedHead(data), messages);
	const moved = messages.some((message, i) => message.parent !== parents[i]);
	return Object.assign(found, { mended: moved || messages.length < data.messages.length });
}

/** Take over what version 1 has stored. What cannot be read stays where it is. */
export async function migrate() {
	for (const key of keys(OLD)) {
		let found;
		try {
			found = restored(JSON.parse(read(key)));
		} catch {
			continue;
		}
		if (!found) continue;
		if (await conversation(found.id)) found.id = newId();
		await save(found, found.changed);
		if (!(await database())) continue; // it is in memory only, and would be lost
		write(key, null);
		write(OLD_TITLE + key.slice(OLD.length), null);
	}
}
