// What is stored of an answer, and how it goes on from there.

import { counted } from "./dom.js";
import { figuresOf } from "./figures.js";
import { Trace } from "./trace.js";

/**
 * What there is of an answer as a message. failure: what ended it too early, null for nothing. settings: of its request.
 * size: tokens of the context, 0 while unknown.
 */
export function messageOf(answer, failure, settings = {}, size = 0) {
	const { content, reasoning, trace, reasoningTrace, figures, usage, timings, seed } = answer;
	const summed = figuresOf(answer);
	const cut = answer.finish === "length";
	const { max_tokens: most, t_max_predict_ms: time } = settings;
	const late = cut && time && timings?.predicted_ms >= time;
	const full = cut && !late && !(most > 0 && answer.n >= most) && !(size && usage?.total_tokens < size - 1);
	let outcome = "";
	if (failure) outcome = failure.name === "AbortError" ? "Stopped." : `${failure.message} ${failure.todo ?? ""}`.trim();
	else if (full) outcome = "The context is full, which ended the answer.";
	else if (late) outcome = `The longest time is set to ${time / 1000} s.`;
	else if (cut) outcome = `The longest answer is set to ${counted(most > 0 ? most : answer.n, "token")}.`;
	else if (!content.trim()) outcome = `The answer is empty: ${whyEmpty(answer)}.`;
	return {
		role: "assistant", content, reasoning,
		trace: { runs: trace.runs, rounds: trace.rounds },
		reasoningTrace: { runs: reasoningTrace.runs, rounds: reasoningTrace.rounds },
		figures: summed,
		report: { figures, timings, summed },
		tokens: answer.tokens,
		prompt: usage?.prompt_tokens ?? (answer.prefill?.total || null),
		cached: usage?.prompt_tokens_details?.cached_tokens ?? null,
		seed, outcome, full,
		partial: Boolean(failure) || cut,
		failed: Boolean(failure) && failure.name !== "AbortError",
	};
}

function whyEmpty({ stopped, reasoning }) {
	if (stopped) return `the stop text ${JSON.stringify(stopped)} came first`;
	return `the model ended it ${reasoning ? "after its reasoning" : "at once"}`;
}

/** Begin an answer with the part of it that is there. */
export function continued(answer, before) {
	answer.content = before.content;
	answer.reasoning = before.reasoning ?? "";
	answer.before = before.figures ?? null;
	answer.trace = new Trace(before.trace, answer.content.length);
	answer.reasoningTrace = new Trace(before.reasoningTrace, answer.reasoning.length);
	answer.known = { rounds: answer.n_rounds, drafted: answer.drafted, accepted: answer.accepted };
}
