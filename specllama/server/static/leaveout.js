// Leaving the oldest turns out of requests.

import { count } from "./context.js";
import { starts } from "./turns.js";

const SHARE = 0.75; // of the context that the rest may take

/**
 * Leave out as few of the oldest turns as needed. Returns whether any is: the last turn stays, and if it is too long
 * alone, all do.
 */
export async function leaveOut(data, models) {
	const path = data.messages.filter(({ out }) => !out);
	const begins = starts(path);
	const rests = begins.map((i) => path.slice(i));
	const size = models.contextLength;
	let low = 0;
	let high = rests.length - 1;
	const known = new Map();
	const length = async (i) => {
		if (!known.has(i)) known.set(i, await count(rests[i], data.system, models.name));
		return known.get(i);
	};
	while (low < high) {
		const middle = (low + high) >> 1;
		if ((await length(middle)) <= SHARE * size) high = middle;
		else low = middle + 1;
	}
	if (high < 0 || (await length(low)) >= size) return false;
	for (const message of path.slice(0, begins[low])) {
		message.out = true;
		data.touch(message);
	}
	return true;
}
