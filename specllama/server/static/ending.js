// What to say when an answer of the conversation at hand has ended, and waiting for an engine that is gone.

import { recovered } from "./api.js";
import { announce, counted } from "./dom.js";
import { say } from "./notice.js";

/** actions: {ask(question, before), resume(), makeRoom(again)}. models: see models.js. */
export class Ending {
  #actions;
  #models;
  #waiting = null; // AbortController while the engine is awaited

  constructor(models, actions) {
    this.#models = models;
    this.#actions = actions;
  }

  /** Wait no more. */
  stop() {
    this.#waiting?.abort();
    this.#waiting = null;
  }

  /** Say that an answer is complete. writing: a Writing. */
  complete({ answer, message, conversation }) {
    announce(`${message?.outcome || "The answer is complete"}, ${counted(answer.n, "token")}.`.replace(".,", ":"));
    if (message?.full && conversation.last === message) {
      const again = () => this.#actions.makeRoom(() => this.#actions.resume());
      say("The context is full, which ended the answer. Nothing is left out of it unless you say so.", {
        "Leave out the oldest turns and continue": again,
      });
    } else this.#models.update().catch(() => {});
  }

  /** Say what ended an answer before its end; where the engine or the server is gone, wait for it. */
  async failed({ question, before, message }, problem) {
    const empty = !message || message === before;
    const ask = () => this.#actions.ask(question, before);
    announce(empty ? problem.message : message.outcome);
    if (problem.name === "AbortError") {
      if (empty && !before) say("Stopped before the first token.", { "Ask again": ask });
      return;
    }
    const again = empty ? { "Try again": ask } : {};
    if (problem.full) again["Leave out the oldest turns"] = () => this.#actions.makeRoom(ask);
    say(`${problem.message} ${problem.todo ?? ""}`.trim(), again);
    if (problem.retry && [0, 503].includes(problem.status)) await this.#wait(empty ? ask : null);
  }

  async #wait(ask) {
    const waiting = new AbortController();
    this.#waiting = waiting;
    await recovered((why) => say(`Waiting for the engine: ${why}. The text so far is kept.`), waiting.signal);
    if (!waiting.signal.aborted) await this.#models.refresh().catch(() => {});
    if (waiting.signal.aborted) return;
    this.#waiting = null;
    say("The engine is back.", ask ? { "Try again": ask } : { "Continue the answer": () => this.#actions.resume() });
  }
}
