// Asks the server for an answer and follows it. Knows no elements.

import { events, json, request } from "./api.js";
import { encoded } from "./images.js";
import { Trace } from "./trace.js";
import { turns } from "./turns.js";

/**
 * An answer while it is written. times: of each arrival, the seconds since the request and all characters so far.
 */
export class Answer {
	content = "";
	reasoning = "";
	trace = new Trace();
	reasoningTrace = new Trace();
	times = [];
	n = 0; // tokens
	figures = null; // of the server, at the end
	usage = null;
	timings = null;
	finish = "";
	stopped = ""; // the stop text that ended it
	seed = null;
	id = ""; // of the server
	prefill = null; // the latest prompt_progress of the server
	onprefill = null; // called with them and the milliseconds since the request
	before = null; // the figures of what the answer goes on with, see figures.js
	known = { rounds: 0, drafted: 0, accepted: 0 }; // in the traces then
	began = performance.now();
	firstAt = 0;
	lastAt = 0;

	get traces() {
		return [this.reasoningTrace, this.trace];
	}

	#sum(what) {
		return this.trace[what] + this.reasoningTrace[what];
	}

	get n_rounds() {
		return this.#sum("n_rounds");
	}

	get drafted() {
		return this.#sum("drafted");
	}

	get accepted() {
		return this.#sum("accepted");
	}

	/** Tokens of prompt and text; null while unknown. */
	get tokens() {
		return this.usage?.total_tokens ?? (this.prefill?.total ? this.prefill.total + this.n : null);
	}

	/** Tokens per second from the first token on; null before there are two. */
	get rate() {
		const seconds = (this.lastAt - this.firstAt) / 1000;
		return this.n > 1 && seconds > 0 ? (this.n - 1) / seconds : null;
	}

	/** Add an event. Returns the new part of the text, "" where it has none. */
	add(event) {
		const choice = event.choices?.[0];
		this.id = event.id ?? this.id;
		const now = performance.now();
		const part = choice?.delta?.content ?? "";
		const thought = choice?.delta?.reasoning_content ?? "";
		if (event.prompt_progress) {
			this.prefill = event.prompt_progress;
			this.onprefill?.(this.prefill, now - this.began);
		}
		if (part || thought) {
			this.firstAt ||= now;
			this.lastAt = now;
			const trace = part ? this.trace : this.reasoningTrace;
			trace.add(part || thought, event.speculation);
			this.content += part;
			this.reasoning += thought;
			this.n = event.speculation?.round?.n_predict || this.n + 1;
			this.times.push([(now - this.began) / 1000, this.reasoning.length + this.content.length]);
		} else if (choice && event.speculation?.round) {
			(this.content ? this.trace : this.reasoningTrace).addRounds(event.speculation);
			this.n = event.speculation.round.n_predict || this.n;
		}
		if (choice?.finish_reason) [this.finish, this.stopped] = [choice.finish_reason, choice.stop_reason ?? ""];
		if (choice?.seed !== undefined) this.seed = choice.seed;
		if (event.usage) this.usage = event.usage;
		if (event.timings) {
			this.timings = event.timings;
			this.figures = event.speculation;
			this.n = event.usage?.completion_tokens ?? this.n;
		}
		return part;
	}
}

/** What the server gets for these messages and settings. */
export function asked({ messages, system = "", model, settings = {}, speculation = {} }) {
	const all = system.trim() ? [{ role: "system", content: system }, ...messages] : messages;
	const { speculate = true, draft_max: max, ...sampling } = settings;
	return {
		...(model ? { model } : {}),
		messages: all.map(({ role, content, reasoning_content: thought }) => ({
			role, content, ...(thought ? { reasoning_content: thought } : {}),
		})),
		...sampling,
		stream: true,
		stream_options: { include_usage: true },
		return_progress: true,
		speculation: { enabled: speculate, ...(max ? { max } : {}), trace: "full", ...speculation },
	};
}

/**
 * Have an answer written. grown(answer, event): called with each event. Throws Problem or AbortError; the text so far is
 * in `answer`.
 */
export async function generate(body, { signal, grown, answer = new Answer() }) {
	answer.began = performance.now();
	const response = await request("/v1/chat/completions", { body, signal });
	for await (const event of events(response)) {
		answer.add(event);
		grown?.(answer, event);
	}
	return answer;
}

/** Have the reasoning of an answer that is being written end now. Throws Problem. */
export const endReasoning = ({ id }) => json("/v1/chat/completions/control", { body: { id, action: "reasoning_end" } });

/** Tokens of the prompt that these messages make. */
export async function count(messages, system, model) {
	const { messages: sent } = asked({ messages: await encoded(turns(messages)), system });
	const counted = await json("/v1/chat/completions/input_tokens", { body: { model: model || undefined, messages: sent } });
	return counted.input_tokens;
}
