// Notices a text that goes on repeating itself, which small models do: nothing but Stop ends it.

const TAIL = 3000; // characters at the end that are looked at
const EVERY = 300; // characters between two looks
const LEAST = 240; // characters of repetitions
const SIGNS = 1500; // the same for parts without letters and digits, such as rules
const TIMES = 5;

/** How a text ends in repetitions: {part, times}; null if it does not. */
export function repetition(text) {
	const end = text.slice(-TAIL);
	const n = end.length;
	// The failure function of Knuth, Morris and Pratt, read backwards: the shortest period of each ending.
	const border = new Uint16Array(n);
	let found = null;
	for (let i = 1, k = 0; i < n; i++) {
		while (k && end[n - 1 - i] !== end[n - 1 - k]) k = border[k - 1];
		if (end[n - 1 - i] === end[n - 1 - k]) k += 1;
		border[i] = k;
		const length = i + 1;
		const period = length - k;
		if (length < LEAST || length / period < TIMES) continue;
		const part = end.slice(n - period);
		if (length < SIGNS && !/[\p{L}\p{N}]/u.test(part)) continue;
		found = { part, times: Math.floor(length / period) };
	}
	return found;
}

/** Looks at a text that grows, now and then. */
export class RepetitionWatch {
	#looked = 0;
	#found = null;

	/** How the text repeats itself, as far as it has been looked at. */
	look(text) {
		if (text.length - this.#looked >= EVERY) {
			this.#looked = text.length;
			this.#found = repetition(text);
		}
		return this.#found;
	}
}
