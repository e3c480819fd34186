// What happens before the first token: the place in the queue, and how much of the prompt is evaluated.

import { element, numeral, percent, whole } from "./dom.js";

/** Show the progress of an answer before an element, until its first text. Returns what ends it. */
export function watchPrefill(answer, place) {
	const said = element("span", {});
	const bar = element("progress", { max: 1, "aria-label": "Evaluation of the prompt" });
	const view = element("p", { class: "prefill" }, said, bar);
	answer.onprefill = (progress) => {
		if (!view.isConnected) place.before(view);
		const text = inWords(progress);
		if (said.textContent !== text) said.textContent = text;
		bar.hidden = Boolean(progress.queue_place);
		bar.value = progress.total ? progress.processed / progress.total : 0;
	};
	return () => {
		answer.onprefill = null;
		view.remove();
	};
}

/** The state of a prompt: {total, cache, processed, time_ms, queue_place}. */
export function inWords({ total, cache, processed, time_ms: ms, queue_place: queued }) {
	if (queued) return queued === 1 ? "Waiting for a slot: this request is the next." : `Waiting for a slot: ${queued - 1} ${queued === 2 ? "request is" : "requests are"} before this one.`;
	const rate = ms > 0 && processed > cache ? `, ${numeral((1000 * (processed - cache)) / ms)} tokens/s` : "";
	const kept = cache ? `, ${whole(cache)} of them kept from before` : "";
	return `Reading the prompt: ${whole(processed)} of ${whole(total)} tokens (${percent(total ? processed / total : 1)})${kept}${rate}`;
}
