// The server's API: requests, streams of events, errors as sentences.

import { counted, pause, whole } from "./dom.js";
import { read, write } from "./storage.js";

const KEY = "specllama.key"; // of this browser session only
const ROOT = new URL("../", import.meta.url); // where a proxy offers the server

/** The address of a route: "/v1/models". */
const at = (path) => new URL(path.slice(1), ROOT);

/** What went wrong and what to do, as sentences. retry: whether the same request may work later. */
export class Problem extends Error {
	constructor(message, todo = "", { status = 0, retry = false, code = "" } = {}) {
		super(message);
		Object.assign(this, { todo, status, retry, code });
	}
}

let askForKey = async () => {
	throw new Problem("This server needs an API key.");
};
let asking = null; // one dialog for all requests that wait for a key

/** `ask(wrong)` resolves to a typed key. wrong: whether the last one was refused. */
export function onKeyNeeded(ask) {
	askForKey = ask;
}

/** A request; asks for the key while it is refused. Throws Problem. */
export async function request(path, { body, signal, headers = {} } = {}) {
	for (;;) {
		const key = read(KEY, "session") ?? "";
		const sent = { ...headers };
		if (key) sent.authorization = `Bearer ${inBytes(key)}`;
		if (body !== undefined) sent["content-type"] = "application/json";
		const options = { method: body === undefined ? "GET" : "POST", headers: sent, signal, cache: "no-store" };
		if (body !== undefined) options.body = JSON.stringify(body);
		let response;
		try {
			response = await fetch(at(path), options);
		} catch (error) {
			if (error.name === "AbortError") throw error;
			throw unreachable("The server does not answer.", "Check that specllama serve is running; this page reconnects by itself.");
		}
		if (response.ok) return response;
		if (response.status === 401) {
			await newKey(key);
			continue;
		}
		throw problemOf(response.status, await errorOf(response));
	}
}

async function newKey(refused) {
	if ((read(KEY, "session") ?? "") !== refused) return; // another request has got one meanwhile
	asking ??= askForKey(refused !== "").finally(() => {
		asking = null;
	});
	write(KEY, await asking, "session");
}

/** A key as headers have it: its UTF-8 bytes, which the server compares. */
const inBytes = (key) => String.fromCharCode(...new TextEncoder().encode(key));

/** The JSON that a route answers. Throws Problem. */
export async function json(path, options) {
	return (await request(path, options)).json();
}

const unreachable = (message, todo) => new Problem(message, todo, { retry: true, code: "unreachable" });
const lost = () => unreachable("The connection to the server was lost.", "The text so far is kept.");

async function errorOf(response) {
	try {
		return (await response.json()).error ?? {};
	} catch {
		return {};
	}
}

/** A Problem from a status (0 within a stream) and the `error` object of the API. */
export function problemOf(status, error) {
	const said = sentence(error.message ?? `The server answered with status ${status}.`, error.param);
	const more = { status, code: error.code ?? error.type ?? "" };
	if (error.type === "exceed_context_size_error" || error.code === "context_length_exceeded") {
		const sizes =
			error.n_prompt_tokens && error.n_ctx
				? `The conversation has ${counted(error.n_prompt_tokens, "token")}, and the context holds ${whole(error.n_ctx)}.`
				: said;
		return Object.assign(new Problem(sizes, FULL, more), { full: true });
	}
	if (status === 429) return new Problem(said, "Wait a moment and try again.", { ...more, retry: true });
	if (status === 503 || error.type === "unavailable_error") {
		const todo = "The engine is started again by itself; you can continue when it is back.";
		return new Problem(said, todo, { ...more, retry: true });
	}
	if (status === 404) return new Problem(said, "Choose another model in the menu above.", more);
	if (status === 504) return new Problem(said, "Ask for a shorter answer, or raise --timeout.", more);
	if (status === 413) return new Problem(said, "Attach less, or leave out or delete earlier messages.", more);
	const many = error.param === "messages" && said.includes("at most");
	if (status === 400) return new Problem(said, many ? "Start a new conversation, or delete earlier messages." : "", more);
	return new Problem(said, "Try again; the server's terminal may say more.", { ...more, retry: true });
}

const FULL =
	"Start a new conversation, leave out or delete earlier messages, or start the server with a larger context (-c).";

/** A text of the server as a sentence; a field's name at its beginning stays as it is. */
function sentence(text, field) {
	const [first] = text.split(/[\s,:]/, 1);
	const isName = !/^[a-z]+$/.test(first) || first === "specllama" || first === String(field ?? "").split(/\W/, 1)[0];
	const found = isName ? text : text.charAt(0).toUpperCase() + text.slice(1);
	return /[.!?]$/.test(found) ? found : `${found}.`;
}

/** The parsed events of a stream. Throws Problem for an error in it or its loss. */
export async function* events(response) {
	const reader = response.body.getReader();
	const decoder = new TextDecoder();
	let held = "";
	try {
		for (;;) {
			let part;
			try {
				part = await reader.read();
			} catch (error) {
				throw error.name === "AbortError" ? error : lost();
			}
			if (part.done) break;
			const found = (held + decoder.decode(part.value, { stream: true })).split("\n\n");
			held = found.pop();
			for (const one of found) {
				if (!one.startsWith("data: ")) continue;
				if (one === "data: [DONE]") return;
				const event = JSON.parse(one.slice(6));
				if (event.error) throw problemOf(0, event.error);
				yield event;
			}
		}
		throw lost();
	} finally {
		reader.cancel().catch(() => {});
	}
}

/** Wait for the engine. onWait(reason): called each time it does not answer. */
export async function recovered(onWait, signal) {
	while (!signal?.aborted) {
		try {
			const response = await fetch(at("/health"), { cache: "no-store", signal });
			if (response.ok) return;
			onWait((await errorOf(response)).message ?? "the engine does not answer");
		} catch (error) {
			if (error.name === "AbortError") return;
			onWait("the server does not answer");
		}
		await pause(700);
	}
}
