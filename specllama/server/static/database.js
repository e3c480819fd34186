// The browser's database: heads of conversations, messages, files of drafts. Where there is none, or one of a newer
// specllama, all is in memory. Knows no messages' content.

const NAME = "specllama";
const VERSION = 1;
const BATCH = 100; // messages that are read together

/** Thrown where the browser's storage is full or refuses to write. */
export class StorageError extends Error {}

const memory = { heads: new Map(), messages: new Map(), drafts: new Map() };
let opening = null;
let told = "";

/** Why nothing lasts longer than the page, "" where it does. Known after the first access. */
export const whyNotKept = () => told;

/** The open database, null where there is none. */
export function database() {
	opening ??= open().catch((error) => {
		told =
			error?.name === "VersionError"
				? "The conversations in this browser are those of a newer specllama: update to see them. New ones are lost when the page is closed; export them before."
				: "This browser does not let the page store anything: conversations are lost when the page is closed. Export them before.";
		return null;
	});
	return opening;
}

function open() {
	return new Promise((resolve, reject) => {
		const request = globalThis.indexedDB.open(NAME, VERSION); // throws where the browser has none
		request.onupgradeneeded = () => {
			const { result } = request;
			result.createObjectStore("heads", { keyPath: "id" });
			result.createObjectStore("messages", { keyPath: ["conversation", "id"] });
			result.createObjectStore("drafts", { keyPath: "id" });
		};
		request.onsuccess = () => {
			const { result } = request;
			result.onversionchange = () => result.close();
			resolve(result);
		};
		request.onerror = () => reject(request.error);
	});
}

const done = (request) =>
	new Promise((resolve, reject) => {
		request.onsuccess = () => resolve(request.result);
		request.onerror = () => reject(request.error);
	});

const range = (id) => IDBKeyRange.bound([id], [id, []]);

/** All heads. */
export async function heads() {
	const db = await database();
	if (!db) return structuredClone([...memory.heads.values()]);
	return done(db.transaction("heads").objectStore("heads").getAll());
}

/** [head, messages] of a conversation; null without it. */
export async function load(id) {
	const db = await database();
	if (!db) {
		const head = memory.heads.get(id);
		return head ? structuredClone([head, [...memory.messages.values()].filter((one) => one.conversation === id)]) : null;
	}
	const all = db.transaction(["heads", "messages"]);
	const [head, messages] = await Promise.all([
		done(all.objectStore("heads").get(id)),
		done(all.objectStore("messages").getAll(range(id))),
	]);
	return head ? [head, messages] : null;
}

/** Whether there is a conversation. */
export async function isThere(id) {
	const db = await database();
	return db ? (await done(db.transaction("heads").objectStore("heads").getKey(id))) !== undefined : memory.heads.has(id);
}

/** Call `visit(message)` with each message until it returns true. */
export async function eachMessage(visit) {
	const db = await database();
	if (!db) {
		for (const one of memory.messages.values()) if (visit(one)) return;
		return;
	}
	for (let rest = null; ; ) {
		const found = await done(db.transaction("messages").objectStore("messages").getAll(rest, BATCH));
		for (const one of found) if (visit(one)) return;
		if (found.length < BATCH) return;
		const { conversation, id } = found.at(-1);
		rest = IDBKeyRange.lowerBound([conversation, id], true);
	}
}

/**
 * Change a conversation, wholly or not at all. fresh: whether it may begin to exist. patch: fields of the head. put:
 * messages; drop: ids of messages. Returns whether it is there. Throws StorageError.
 */
export async function change(id, { fresh = false, patch = {}, put = [], drop = [] }) {
	const db = await database();
	if (!db) return changeInMemory(id, fresh, patch, put, drop);
	let there = true;
	await transaction(db, ["heads", "messages"], (all) => {
		const messages = all.objectStore("messages");
		const heads = all.objectStore("heads");
		const request = heads.get(id);
		request.onsuccess = () => {
			there = Boolean(request.result) || fresh;
			if (!there) return;
			try {
				for (const one of drop) messages.delete([id, one]);
				for (const one of put) messages.put({ ...one, conversation: id });
				heads.put({ ...request.result, ...patch, id });
			} catch (error) {
				all.failed = error;
				all.abort();
			}
		};
	});
	return there;
}

function changeInMemory(id, fresh, patch, put, drop) {
	if (!memory.heads.has(id) && !fresh) return false;
	for (const one of drop) memory.messages.delete(`${id} ${one}`);
	for (const one of put) memory.messages.set(`${id} ${one.id}`, structuredClone({ ...one, conversation: id }));
	memory.heads.set(id, structuredClone({ ...memory.heads.get(id), ...patch, id }));
	return true;
}

/** Remove a conversation with all that belongs to it. */
export async function erase(id) {
	const db = await database();
	if (!db) {
		memory.heads.delete(id);
		memory.drafts.delete(id);
		for (const [key, one] of memory.messages) if (one.conversation === id) memory.messages.delete(key);
		return;
	}
	await transaction(db, ["heads", "messages", "drafts"], (all) => {
		all.objectStore("heads").delete(id);
		all.objectStore("drafts").delete(id);
		all.objectStore("messages").delete(range(id));
	});
}

/** The files of a draft. */
export async function draftFiles(id) {
	const db = await database();
	const found = db ? await done(db.transaction("drafts").objectStore("drafts").get(id)) : memory.drafts.get(id);
	return found?.files ?? [];
}

/** Keep the files of a draft. Throws StorageError. */
export async function keepDraftFiles(id, files) {
	const db = await database();
	if (!db) {
		if (files.length) memory.drafts.set(id, { files });
		else memory.drafts.delete(id);
		return;
	}
	await transaction(db, ["drafts"], (all) => {
		if (files.length) all.objectStore("drafts").put({ id, files });
		else all.objectStore("drafts").delete(id);
	});
}

/** Run `act(transaction)` and wait until all is written. */
function transaction(db, names, act) {
	return new Promise((resolve, reject) => {
		let all;
		const failed = (error) => {
			const full = error?.name === "QuotaExceededError";
			reject(new StorageError(full ? "The browser's storage is full." : `The browser does not store it (${error?.name ?? "no reason given"}).`));
		};
		try {
			all = db.transaction(names, "readwrite");
			all.oncomplete = () => resolve();
			all.onabort = () => failed(all.failed ?? all.error);
			act(all);
		} catch (error) {
			failed(error);
		}
	});
}
