// Leaving the oldest turns out of requests.

import { count } from "./generate.js";
import { starts } from "./turns.js";

const SHARE = 0.75; // of the context that the rest may take
const MOST = 0.9; // of the context, from which on leaving out makes no room

/**
 * The oldest messages, as few as needed, without which there is room; none where there is not even for the last turn alone.
 * draft: the question that is not sent yet, null without one.
 */
export async function tooMany(data, models, draft = null) {
	const path = data.messages.filter(({ out }) => !out);
	const begins = draft && path.length ? [...starts(path), path.length] : starts(path);
	const rests = begins.map((i) => [...path.slice(i), ...(draft ? [draft] : [])]);
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
	return high < 0 || (await length(low)) >= MOST * size ? [] : path.slice(0, begins[low]);
}

/** Leave out the oldest turns: see tooMany. Returns whether any is. */
export async function leaveOut(data, models, draft = null) {
	const oldest = await tooMany(data, models, draft);
	for (const message of oldest) {
		message.out = true;
		data.touch(message);
	}
	return oldest.length > 0;
}
