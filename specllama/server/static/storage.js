// Small entries of this browser that are read at once: settings, drafts, the key. Where the browser refuses them,
// they last until the page is closed.

const held = { local: new Map(), session: new Map() }; // what the browser did not take

function area(name) {
	try {
		return name === "local" ? globalThis.localStorage : globalThis.sessionStorage;
	} catch {
		return null; // the browser blocks it
	}
}

/** The text of an entry, null without it. name: "local" or "session", for this tab alone. */
export function read(key, name = "local") {
	if (held[name].has(key)) return held[name].get(key);
	try {
		return area(name)?.getItem(key) ?? null;
	} catch {
		return null;
	}
}

/** Keep an entry; null removes it. Returns whether it lasts longer than the page. */
export function write(key, text, name = "local") {
	try {
		if (text === null) area(name)?.removeItem(key);
		else area(name).setItem(key, text);
		held[name].delete(key);
		return true;
	} catch {
		if (text === null) held[name].delete(key);
		else held[name].set(key, text);
		return false;
	}
}

/** The names of the entries that begin so. */
export function keys(prefix) {
	let found = [];
	try {
		found = Object.keys(area("local") ?? {});
	} catch {
		// none
	}
	return [...new Set([...found, ...held.local.keys()])].filter((key) => key.startsWith(prefix));
}

/** An entry as JSON; null where it is missing or broken. */
export function readJson(key) {
	try {
		return JSON.parse(read(key));
	} catch {
		return null;
	}
}
