// A conversation as a tree of versions, of which one path is shown and sent. Knows neither storage nor elements, but which
// messages have changed since they were stored.

const random = (n) => Array.from(crypto.getRandomValues(new Uint32Array(n)), (part) => part.toString(36)).join("");

export const newId = () => random(3);

let latest = 0;

/** Milliseconds since the epoch, a later one with each call: the order of versions. */
function now() {
	latest = Math.max(Date.now(), latest + 1);
	return latest;
}

export class Conversation {
	id;
	title;
	system;
	created;
	changed;
	leaf; // id of the last message that is shown, null without any
	stored = false; // whether it is in the database
	#all = new Map(); // messages by id
	#children = new Map(); // ids by the id of the parent, in their order
	#put = new Set();
	#drop = new Set();
	#patch = {};

	/** head: its fields; messages: each with `id`, `parent` and `at`. What does not fit together is mended. */
	constructor(head = {}, messages = []) {
		const { id = newId(), title = "", system = "", created = Date.now(), changed = created, leaf = null } = head;
		Object.assign(this, { id, title, system, created, changed, leaf });
		this.#fill(messages);
	}

	#fill(messages) {
		this.#all = new Map(messages.map((message) => [message.id, message]));
		for (const message of this.#all.values()) if (!this.#all.has(message.parent)) message.parent = null;
		breakCircles(this.#all);
		this.#index();
		if (!this.#all.has(this.leaf)) this.leaf = this.#end(null);
		else this.leaf = this.#end(this.leaf);
	}

	#index() {
		this.#children = new Map();
		const sorted = [...this.#all.values()].sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
		for (const { id, parent } of sorted) {
			if (!this.#children.has(parent)) this.#children.set(parent, []);
			this.#children.get(parent).push(id);
		}
	}

	/** The last message after this one, by the latest version everywhere. */
	#end(id) {
		let last = id;
		for (let next = last; next !== undefined; next = this.#children.get(next)?.at(-1)) last = next;
		return last;
	}

	get messages() {
		const found = [];
		for (let one = this.#all.get(this.leaf); one; one = this.#all.get(one.parent)) found.push(one);
		return found.reverse();
	}

	get all() {
		return [...this.#all.values()];
	}

	get last() {
		return this.#all.get(this.leaf);
	}

	has(message) {
		return this.#all.get(message.id) === message;
	}

	get(id) {
		return this.#all.get(id);
	}

	/** The messages that may stand where this one does, itself among them, in order. */
	versions(message) {
		return (this.#children.get(message.parent) ?? []).map((id) => this.#all.get(id));
	}

	isLast(message) {
		return !this.#children.get(message.id)?.length;
	}

	/** Add a message after another one, by default the last one that is shown. Returns it. */
	add(message, parent = this.leaf, shown = true) {
		const added = Object.assign(message, { id: newId(), parent, at: now() });
		this.#all.set(added.id, added);
		if (!this.#children.has(parent)) this.#children.set(parent, []);
		this.#children.get(parent).push(added.id);
		this.touch(added);
		if (shown) this.show(added.id);
		return added;
	}

	show(id) {
		this.leaf = id;
		this.set({ leaf: id });
	}

	choose(message) {
		this.show(this.#end(message.id));
	}

	/** Take away a message; what follows stays. Returns how to undo that. */
	remove(message) {
		const path = this.messages;
		const was = { leaf: this.leaf, moved: this.#children.get(message.id) ?? [] };
		for (const id of was.moved) this.#move(id, message.parent);
		this.#all.delete(message.id);
		this.#put.delete(message.id);
		this.#drop.add(message.id);
		this.#index();
		if (was.leaf === message.id) {
			const at = path.indexOf(message);
			const other = this.versions(message).at(-1);
			this.show(other ? this.#end(other.id) : (path[at - 1]?.id ?? null));
		}
		return () => {
			this.#all.set(message.id, message);
			this.#drop.delete(message.id);
			this.touch(message);
			for (const id of was.moved) if (this.#all.has(id)) this.#move(id, message.id);
			if (!this.#all.has(message.parent)) message.parent = null;
			this.#index();
			if (this.#all.has(was.leaf)) this.show(was.leaf);
		};
	}

	#move(id, parent) {
		const one = this.#all.get(id);
		one.parent = parent;
		this.touch(one);
	}

	touch(message) {
		this.#put.add(message.id);
	}

	set(fields) {
		Object.assign(this, fields);
		Object.assign(this.#patch, fields);
	}

	/** What has changed since the last call: see database.change. All of it, if the conversation is not stored. */
	takeChanges() {
		const { title, system, created, leaf } = this;
		const patch = this.stored ? this.#patch : { title, system, created, leaf };
		const put = (this.stored ? [...this.#put].map((id) => this.#all.get(id)) : this.all).filter(Boolean);
		const found = { patch, put, drop: [...this.#drop], fresh: !this.stored };
		this.#put = new Set();
		this.#drop = new Set();
		this.#patch = {};
		return found;
	}

	giveBack({ patch, put, drop }) {
		this.#patch = { ...patch, ...this.#patch };
		for (const { id } of put) this.#put.add(id);
		for (const id of drop) this.#drop.add(id);
	}

	/** Take over what another tab has stored. keep: a message that is being written here. */
	merge(head, messages, keep = null) {
		const own = [...this.#put, keep?.id].map((id) => this.#all.get(id)).filter(Boolean);
		const mine = new Set(own.map(({ id }) => id));
		const gone = this.#drop;
		const known = new Map(messages.filter(({ id }) => !mine.has(id) && !gone.has(id)).map((one) => [one.id, one]));
		for (const one of own) known.set(one.id, one);
		for (const [id, one] of known) if (isSame(this.#all.get(id), one)) known.set(id, this.#all.get(id));
		const path = this.messages.map(({ id }) => id);
		const shown = path.findLast((id) => known.has(id)) ?? null;
		const { title, system } = { ...head, ...this.#patch };
		Object.assign(this, { title, system, leaf: shown });
		this.#fill([...known.values()]);
		if (shown !== null) this.leaf = this.#follows(head.leaf, shown) ? head.leaf : shown;
	}

	#follows(id, other) {
		for (let one = this.#all.get(id); one; one = this.#all.get(one.parent)) if (one.id === other) return true;
		return false;
	}
}

const COMPARED = ["content", "reasoning", "outcome", "writing", "parent", "at", "out", "model", "partial"];

/** Whether what is shown of a message is the same. */
const isSame = (one, other) => one !== undefined && COMPARED.every((name) => one[name] === other[name]);

/** Make those messages that follow themselves the first ones. */
function breakCircles(all) {
	const good = new Set();
	for (const message of all.values()) {
		const path = new Set();
		let one = message;
		while (one && !good.has(one.id) && !path.has(one.id)) {
			path.add(one.id);
			one = all.get(one.parent);
		}
		if (one && path.has(one.id)) one.parent = null;
		for (const id of path) good.add(id);
	}
}
