// Conversations and settings in this browser, checked when they are read. Several tabs may change the same
// conversation: each adds its own messages.

import * as database from "./database.js";
import { imageOf } from "./images.js";
import { readJson, write } from "./storage.js";
import { Conversation, newId } from "./tree.js";

export { StorageError, whyNotKept } from "./database.js";
export { Conversation } from "./tree.js";

const ROUNDS = 200_000; // characters that the rounds of an answer may take
const LONGEST_DRAFT = 4096; // tokens
const SETTINGS = "specllama.settings";
const channel = globalThis.BroadcastChannel ? new BroadcastChannel("specllama") : null;
const erased = new Set(); // by this tab
const unsaved = new Map(); // conversations that could not be stored, by id

addEventListener("beforeunload", (event) => {
	if (unsaved.size) event.preventDefault();
});

const text = (value) => (typeof value === "string" ? value : "");
const name = (value) => text(value).replace(/[\p{Cc}\u202a-\u202e\u2066-\u2069]+/gu, " ").slice(0, 200); // without what turns the text around it
const number = (value) => (Number.isFinite(value) ? value : 0);
const isId = (value) => typeof value === "string" && /^[a-z0-9]{1,40}$/.test(value);

/** A message with fields of the right types; null where that is impossible. */
export function checked(data) {
	if (!data || !["user", "assistant"].includes(data.role) || typeof data.content !== "string") return null;
	const { conversation: _, ...rest } = data;
	return {
		...rest,
		id: isId(data.id) ? data.id : newId(),
		parent: isId(data.parent) ? data.parent : null,
		at: number(data.at),
		reasoning: text(data.reasoning),
		outcome: text(data.outcome),
		model: name(data.model),
		tokens: number(data.tokens) || null,
		files: filesOf(data.files),
		trace: traceOf(data.trace, data.content.length),
		reasoningTrace: traceOf(data.reasoningTrace, text(data.reasoning).length),
	};
}

function filesOf(data) {
	if (!Array.isArray(data)) return [];
	const good = data.filter((file) => file && (typeof file.text === "string" || "image" in Object(file)));
	return good.map(({ name: called, text: words, image }) =>
		typeof words === "string" ? { name: name(called), text: words } : { name: name(called), image: imageOf(image) });
}

const isTime = (value) => value >= 0 && value < 1e9 && Number.isFinite(value);
const isCount = (value, most) => Number.isInteger(value) && value >= 0 && value <= most;

/** The rounds of a text of `length` characters; none where any cannot be. */
function traceOf(data, length) {
	const runs = Array.isArray(data?.runs) ? data.runs : [];
	const rounds = Array.isArray(data?.rounds) ? data.rounds : [];
	let end = 0;
	const isRun = (r) => {
		const before = end;
		if (!Array.isArray(r) || !isCount(r[0], length) || r[0] < before || typeof r[1] !== "string" || !Number.isInteger(r[2])) return false;
		end = r[0];
		return r[2] >= -1 && r[2] < Math.max(1, rounds.length);
	};
	const isRejected = (one) => Array.isArray(one) && one.every((part) => typeof part === "string");
	const isRound = (r) =>
		Array.isArray(r) && isCount(r[0], LONGEST_DRAFT) && isCount(r[1], LONGEST_DRAFT) && isTime(r[2]) &&
		(r[3] === undefined || isTime(r[3])) && (r[4] === undefined || isCount(r[4], LONGEST_DRAFT)) &&
		(r[5] === undefined || (Array.isArray(r[5]) && r[5].every(isRejected)));
	return runs.every(isRun) && rounds.every(isRound) ? { runs, rounds } : { runs: [], rounds: [] };
}

/** The fields of a conversation besides its messages. */
export function checkedHead(data) {
	return {
		id: isId(data?.id) ? data.id : newId(),
		title: name(data?.title),
		system: text(data?.system),
		created: number(data?.created),
		changed: number(data?.changed),
		leaf: isId(data?.leaf) ? data.leaf : null,
	};
}

/** {id, title, changed} of all conversations, the one changed last first. */
export async function titles() {
	const stored = (await database.heads()).map(checkedHead).filter(({ id }) => !unsaved.has(id));
	const found = [...stored, ...unsaved.values()];
	return found.sort((a, b) => b.changed - a.changed);
}

async function read(id) {
	const found = isId(id) ? await database.load(id) : null;
	return found && [{ ...checkedHead(found[0]), id }, found[1].map(checked).filter(Boolean)];
}

export const notStored = () => [...unsaved.values()];

/** A conversation; null without it. */
export async function conversation(id) {
	if (unsaved.has(id)) return unsaved.get(id);
	const found = await read(id);
	return found && Object.assign(new Conversation(...found), { stored: true });
}

/** Take over what another tab has changed. keep: see Conversation.merge. Returns whether it is still there. */
export async function refresh(data, keep) {
	const found = await read(data.id);
	if (found) data.merge(...found, keep);
	return Boolean(found);
}

/** A message without its rounds, which it can lose first. */
export const withoutRounds = ({ trace: _, reasoningTrace: __, ...rest }) => rest;

/** Changes with at most `most` characters of rounds an answer. */
function bounded(changes, most) {
	const size = ({ trace, reasoningTrace }) => JSON.stringify([trace, reasoningTrace]).length;
	return { ...changes, put: changes.put.map((one) => (size(one) > most ? withoutRounds(one) : one)) };
}

/**
 * Store what has changed, rounds only where there is room. Returns false where the conversation has been deleted meanwhile.
 * Throws StorageError.
 */
export async function save(data, changed = Date.now()) {
	if (erased.has(data.id)) return false;
	const changes = data.takeChanges();
	if (!changes.fresh && !changes.put.length && !changes.drop.length && !Object.keys(changes.patch).length) return true;
	changes.patch.changed = data.changed = changed;
	let there;
	try {
		there = await database.change(data.id, bounded(changes, ROUNDS)).catch(() => database.change(data.id, bounded(changes, 0)));
	} catch (error) {
		data.giveBack(changes);
		unsaved.set(data.id, data);
		throw error;
	}
	unsaved.delete(data.id);
	if (there) {
		data.stored = true;
		channel?.postMessage(data.id);
	} else data.giveBack(changes);
	return there;
}

/** Have a conversation that has been deleted stored again, with the next `save`. */
export function revive(data) {
	erased.delete(data.id);
	data.stored = false;
}

/** Whether another tab has deleted a conversation. */
export const isDeleted = async ({ id, stored }) => stored && !erased.has(id) && !(await database.isThere(id).catch(() => true));

export async function remove(id) {
	erased.add(id);
	unsaved.delete(id);
	await database.erase(id);
	write(`specllama.unfinished.${id}`, null);
	channel?.postMessage(id);
}

/** Call `changed(id)` when another tab has changed or removed a conversation. */
export function onChange(changed) {
	channel?.addEventListener("message", ({ data }) => changed(data));
}

/** Ids of the conversations that have these words, in their order. signal: ends the search. */
export async function search(words, signal) {
	const wanted = words.toLowerCase();
	const found = new Set();
	for (const { id, title } of await titles()) if (title.toLowerCase().includes(wanted)) found.add(id);
	await database.eachMessage(({ conversation: id, content }) => {
		if (!found.has(id) && typeof content === "string" && content.toLowerCase().includes(wanted)) found.add(id);
		return signal.aborted;
	});
	return found;
}

/** The settings of this browser; those that are not set are absent. */
export function settings() {
	const found = readJson(SETTINGS);
	return found && typeof found === "object" && !Array.isArray(found) ? found : {};
}

/** Returns whether they last longer than the page. */
export const saveSettings = (data) => write(SETTINGS, JSON.stringify(data));
