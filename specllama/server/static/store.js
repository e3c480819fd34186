// Conversations and settings in this browser. Each conversation is an entry of its own, so that tabs do not
// overwrite each other's; one that another tab has changed meanwhile is kept under a new name.

const PREFIX = "specllama.conversation.";
const TITLE = "specllama.title."; // of each conversation, with when it was changed: the list reads no more
const SETTINGS = "specllama.settings";
const VERSION = 1;

export class FullError extends Error {}

const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(3)), (n) => n.toString(36)).join("");

/** An empty conversation, not stored yet. */
export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", system: "", created: now, changed: now, revision: 0, messages: [] };
}

function stored(key) {
  try {
    return checked(JSON.parse(localStorage.getItem(key)));
  } catch {
    return null;
  }
}

/** A conversation with its fields in the types that the page relies on; null where that is impossible. */
function checked(data) {
  if (typeof data !== "object" || data === null || !Array.isArray(data.messages)) return null;
  const text = (value) => (typeof value === "string" ? value : "");
  const number = (value) => (Number.isFinite(value) ? value : 0);
  const messages = data.messages
    .filter((m) => m && ["user", "assistant"].includes(m.role) && typeof m.content === "string")
    .map((m) => ({ ...m, reasoning: text(m.reasoning), trace: traceOf(m.trace), reasoningTrace: traceOf(m.reasoningTrace) }));
  return {
    id: /^[a-z0-9]{1,40}$/.test(data.id) ? data.id : newId(),
    title: text(data.title).slice(0, 200),
    system: text(data.system),
    created: number(data.created),
    changed: number(data.changed),
    revision: number(data.revision),
    messages,
  };
}

function traceOf(data) {
  const runs = Array.isArray(data?.runs) ? data.runs : [];
  const rounds = Array.isArray(data?.rounds) ? data.rounds : [];
  const good =
    runs.every((r) => Array.isArray(r) && Number.isFinite(r[0]) && typeof r[1] === "string" && Number.isInteger(r[2])) &&
    rounds.every((r) => Array.isArray(r) && r.length >= 3 && r.every(Number.isFinite));
  return good ? { runs, rounds } : { runs: [], rounds: [] };
}

/** All conversations, the one changed last first. */
export function conversations() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  const found = keys.map(stored).filter(Boolean);
  return found.sort((a, b) => b.changed - a.changed);
}

/** {id, title, changed} of all conversations, the one changed last first. */
export function titles() {
  const found = [];
  for (const key of Object.keys(localStorage)) {
    if (!key.startsWith(TITLE)) continue;
    const [title, changed] = JSON.parse(localStorage.getItem(key));
    found.push({ id: key.slice(TITLE.length), title, changed });
  }
  return found.sort((a, b) => b.changed - a.changed);
}

function put(data, text = JSON.stringify(data)) {
  localStorage.setItem(PREFIX + data.id, text);
  localStorage.setItem(TITLE + data.id, JSON.stringify([data.title, data.changed]));
}

export const conversation = (id) => stored(PREFIX + id);

/**
 * Store a conversation. Returns whether it got a new id because another tab has changed the stored one.
 * Throws FullError.
 */
export function save(data) {
  const there = stored(PREFIX + data.id);
  const conflict = there !== null && there.revision !== data.revision;
  if (conflict) Object.assign(data, { id: newId(), title: `${data.title} (from another tab)` });
  data.revision += 1;
  data.changed = Date.now();
  const text = JSON.stringify(data);
  try {
    put(data, text);
  } catch {
    for (const other of conversations().reverse()) {
      if (other.id === data.id) continue;
      dropTraces(other);
      try {
        put(data, text);
        return conflict;
      } catch {
        // the next one
      }
    }
    throw new FullError("The browser's storage is full: export conversations and delete some.");
  }
  return conflict;
}

function dropTraces(data) {
  for (const message of data.messages) {
    delete message.trace;
    delete message.reasoningTrace;
  }
  localStorage.setItem(PREFIX + data.id, JSON.stringify(data));
}

export function remove(id) {
  localStorage.removeItem(TITLE + id);
  localStorage.removeItem(PREFIX + id);
}

/** Call `changed(id)` when another tab has changed or removed a conversation. */
export function onChange(changed) {
  addEventListener("storage", ({ key }) => {
    if (key === null) changed(null);
    else if (key.startsWith(TITLE)) changed(key.slice(TITLE.length)); // it is written last
  });
}

/** All conversations as the text of a file. */
export function exported() {
  return JSON.stringify({ format: "specllama.conversations", version: VERSION, conversations: conversations() }, null, 1);
}

/** Add the conversations of a file. Returns how many. Throws Error with a sentence, and FullError. */
export function imported(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("The file is no JSON.");
  }
  if (data?.format !== "specllama.conversations" || !Array.isArray(data.conversations)) {
    throw new Error("The file has no conversations of specllama: it needs to come from Export.");
  }
  if (data.version > VERSION) throw new Error("The file comes from a newer specllama: update this one.");
  const found = data.conversations.map(checked).filter(Boolean);
  for (const one of found) {
    if (conversation(one.id)) one.id = newId();
    one.revision = 0;
    save(one);
  }
  return found.length;
}

/** The settings of this browser; those that are not set are absent. */
export function settings() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
  } catch {
    return {};
  }
}

export function saveSettings(data) {
  localStorage.setItem(SETTINGS, JSON.stringify(data));
}
