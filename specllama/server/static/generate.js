// Asks the server for an answer and follows it: texts, sources, rounds and figures. Knows no elements.

import { events, request } from "./api.js";
import { Trace } from "./trace.js";

/**
 * An answer while it is written. times: of each arrival, the seconds since the request and the characters so far,
 * those of the reasoning included.
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
  seed = null;
  prefilled = null; // [tokens of the prompt that are evaluated, all of them]
  began = performance.now();
  firstAt = 0;
  lastAt = 0;

  /** The traces of the reasoning and of the text. */
  get traces() {
    return [this.reasoningTrace, this.trace];
  }

  get n_rounds() {
    return this.trace.rounds.length + this.reasoningTrace.rounds.length;
  }

  get drafted() {
    return this.trace.drafted + this.reasoningTrace.drafted;
  }

  get accepted() {
    return this.trace.accepted + this.reasoningTrace.accepted;
  }

  /** Tokens per second so far, from the first token on; null before there are two. */
  get rate() {
    const seconds = (this.lastAt - this.firstAt) / 1000;
    return this.n > 1 && seconds > 0 ? (this.n - 1) / seconds : null;
  }

  /** Add an event. Returns the new part of the text, "" where it has none. */
  add(event) {
    const choice = event.choices?.[0];
    const now = performance.now();
    const part = choice?.delta?.content ?? "";
    const thought = choice?.delta?.reasoning_content ?? "";
    if (event.prompt_progress) this.prefilled = [event.prompt_progress.processed, event.prompt_progress.total];
    if (part || thought) {
      this.firstAt ||= now;
      this.lastAt = now;
      const trace = part ? this.trace : this.reasoningTrace;
      trace.add(part || thought, event.speculation);
      this.content += part;
      this.reasoning += thought;
      this.n = event.speculation?.round?.n_predict || this.n + 1;
      this.times.push([(now - this.began) / 1000, this.reasoning.length + this.content.length]);
    }
    if (choice?.finish_reason) this.finish = choice.finish_reason;
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
    speculation: { enabled: speculate, ...(max ? { max } : {}), trace: true, ...speculation },
  };
}

/**
 * Have an answer written. grown(answer, event) is called with each event. Returns the answer, and throws Problem
 * or AbortError with the text so far in `answer`.
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
