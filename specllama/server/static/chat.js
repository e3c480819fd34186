// The conversation at hand: asking, following the answer, stopping, editing, going on after a failure.

import { FULL, recovered } from "./api.js";
import { announce, byId } from "./dom.js";
import { Follow } from "./follow.js";
import { Answer, asked, generate } from "./generate.js";
import { continued, messageOf } from "./kept.js";
import { AnswerView, questionView, watchRounds } from "./message.js";
import { say, showContext } from "./notice.js";
import { Pace } from "./pace.js";
import { currentSettings } from "./settings.js";
import * as store from "./store.js";
import { Trace } from "./trace.js";

export class Chat {
  session = { near_ties: 0, answers: 0 };
  #models;
  #panel;
  #list;
  #data = store.newConversation();
  #stop = null; // AbortController while an answer is written
  #answers = new Map(); // message elements to the stored messages
  #live = null;
  #waiting = null; // AbortController while the engine is awaited
  #follow = new Follow(byId("log"));
  #left = false; // whether the page is being closed

  constructor(models, panel) {
    this.#models = models;
    this.#panel = panel;
    watchRounds(byId("log"), byId("tip"), (root, thoughts) => {
      const message = this.#answers.get(root);
      return (thoughts ? message?.reasoningTrace : message?.trace)?.rounds;
    });
    store.onChange((id) => this.#changedElsewhere(id));
    addEventListener("pagehide", () => this.#keepUnfinished());
    addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
  }

  /** Store what there is of an answer when the page is closed. */
  #keepUnfinished() {
    const answer = this.#live?.answer;
    this.#left = true; // the loss of the connection, which follows, is not the answer's end
    if (!answer || !(answer.content || answer.reasoning)) return;
    const closed = Object.assign(new Error("The page was closed."), { name: "AbortError" });
    const message = { ...messageOf(answer, closed, {}), outcome: "The page was closed before the end." };
    try {
      store.save({ ...this.#data, messages: [...this.#data.messages, message] });
    } catch {
      // nobody is there to see it
    }
  }

  set list(list) {
    this.#list = list;
  }

  get data() {
    return this.#data;
  }

  get busy() {
    return this.#stop !== null;
  }

  /** Show a conversation; without an id, a new one. */
  open(id) {
    this.stop();
    this.#data = (id && store.conversation(id)) || store.newConversation();
    this.#show();
    byId("question").focus();
  }

  #show() {
    this.#answers.clear();
    const { messages } = this.#data;
    byId("log").replaceChildren(...messages.map((message) => this.#view(message)));
    this.#list.show(this.#data.id);
    say("");
    this.#showLast();
    this.#follow.toEnd({ opened: true });
  }

  /** Show the figures of the last answer. */
  #showLast() {
    const message = this.#data.messages.findLast(({ role }) => role === "assistant");
    if (message?.trace) {
      const answer = Object.assign(new Answer(), { n: message.figures?.n ?? 0, ...message.report });
      answer.trace = new Trace(message.trace);
      answer.reasoningTrace = new Trace(message.reasoningTrace);
      this.#panel.show(answer, this.#models.props, false);
    } else this.#panel.clear(this.#models.props);
    this.gauge();
  }

  /** Draw the panel again, when more is known about the model. */
  describe() {
    this.#panel.describe(this.#models.props, currentSettings().speculate);
    if (!this.busy) this.#showLast();
  }

  #view(message) {
    if (message.role === "user") return questionView(message, { edit: (text) => this.#edit(message, text) });
    const view = this.#answerView();
    view.end(message);
    this.#answers.set(view.element, message);
    return view.element;
  }

  #answerView() {
    return new AnswerView({ regenerate: () => this.regenerate(), resume: () => this.resume(), stop: () => this.stop() });
  }

  /** Ask a question. */
  async ask(text) {
    if (this.busy || !text.trim()) return;
    const message = { role: "user", content: text };
    this.#data.messages.push(message);
    this.#data.title ||= text.trim().split("\n")[0].slice(0, 80);
    await this.#write({ question: message });
  }

  async #edit(message, text) {
    this.stop();
    this.#data.messages.splice(this.#data.messages.indexOf(message));
    this.#show();
    await this.ask(text);
  }

  /** Have the last answer written again. */
  async regenerate() {
    if (this.busy || this.#data.messages.at(-1)?.role !== "assistant") return;
    this.#data.messages.pop();
    byId("log").lastElementChild.remove();
    await this.#write();
  }

  /** Go on with an answer that was cut off. */
  async resume() {
    if (this.busy || this.#data.messages.at(-1)?.role !== "assistant") return;
    await this.#write({ before: this.#data.messages.pop() });
  }

  /** End the answer that is being written, and waiting for the engine. */
  stop() {
    this.#stop?.abort();
    this.#waiting?.abort();
    this.#stop = this.#waiting = null;
  }

  /** Store the conversation after a change of its system prompt. */
  keep() {
    if (this.#data.messages.length) this.#save(this.#data);
    this.describe();
  }

  /**
   * Have an answer written. before: the part of it that is there. question: a new one, which is not shown yet.
   * The request is sent before anything is shown or stored.
   */
  async #write({ before = null, question = null } = {}) {
    const data = this.#data;
    const settings = currentSettings();
    const stop = new AbortController();
    this.#stop = stop;
    const answer = new Answer();
    if (before) continued(answer, before);
    const view = this.#answerView();
    const live = { answer, view, pace: new Pace(() => this.#draw(live)) };
    const messages = before ? [...data.messages, before] : data.messages;
    const body = asked({ messages, system: data.system, model: this.#models.name, settings });
    let pushed = answer.content.length;
    const grown = () => {
      view.push(answer.content.slice(pushed));
      pushed = answer.content.length;
      if (pushed || answer.reasoning) live.pace.ask();
    };
    const written = generate(body, { signal: stop.signal, answer, grown });
    this.#begin(live, before, question);
    const failure = await written.then(() => null, (error) => error);
    live.pace.end();
    if (this.#left) return;
    if (this.#live?.answer === answer) this.#live = null;
    if (this.#stop === stop) this.#stop = null;
    this.#end(data, view, answer, failure, settings);
  }

  /** Show an answer that is being written: its question, and what there is of it. */
  #begin(live, before, question) {
    const log = byId("log");
    const { answer, view } = live;
    say("");
    if (question) log.append(this.#view(question));
    if (before) log.lastElementChild.remove();
    log.append(view.element);
    view.begin(answer);
    if (before) view.push(before.content);
    this.#answers.set(view.element, answer);
    this.#live = live;
    this.#buttons();
    this.#follow.toEnd();
    if (question) this.#save(this.#data);
  }

  #end(data, view, answer, failure, settings) {
    const message = messageOf(answer, failure, settings);
    const empty = !message.content && !message.reasoning;
    const { follows } = this.#follow;
    if (empty && failure) view.remove();
    else {
      view.end(message);
      this.#answers.set(view.element, message);
      data.messages.push(message);
    }
    if (!failure) {
      this.session.answers += 1;
      this.session.near_ties += answer.figures?.near_ties ?? 0;
    }
    this.#buttons();
    this.#save(data);
    if (data !== this.#data) return;
    this.#panel.show(answer, this.#models.props, false);
    this.gauge();
    if (follows) this.#follow.toEnd();
    announce(failure ? message.outcome : `The answer is complete, ${answer.n} tokens.`);
    if (failure?.name === "AbortError") {
      if (empty) say("Stopped before the first token.", { "Ask again": () => this.#write() });
    } else if (failure) this.#failed(failure, empty).catch(() => {});
    else if (message.full) say(`The context is full. ${FULL}`);
    else this.#models.update().catch(() => {});
  }

  /** Say what went wrong; where the engine or the server is gone, wait for it. */
  async #failed(problem, empty) {
    say(`${problem.message} ${problem.todo}`, empty ? { "Try again": () => this.#write() } : {});
    if (!problem.retry || ![0, 503].includes(problem.status)) return;
    const waiting = new AbortController();
    this.#waiting = waiting;
    await recovered((why) => say(`Waiting for the engine: ${why}. The text so far is kept.`), waiting.signal);
    if (waiting.signal.aborted) return;
    this.#waiting = null;
    await this.#models.refresh().catch(() => {});
    const again = empty ? { "Try again": () => this.#write() } : { "Continue the answer": () => this.resume() };
    say("The engine is back.", again);
  }

  #save(data) {
    try {
      if (store.save(data)) say("Another tab has changed this conversation, so this one is kept as a copy.");
    } catch (error) {
      say(error.message);
    }
    this.#list.show(this.#data.id);
  }

  #changedElsewhere(id) {
    if (!this.busy && (id === null || id === this.#data.id)) {
      const found = store.conversation(this.#data.id);
      if (found && found.revision !== this.#data.revision) {
        this.#data = found;
        this.#show();
      }
    }
    this.#list.show(this.#data.id);
  }

  /** Show what arrived. */
  #draw(live) {
    if (this.#live !== live) return;
    const { follows } = this.#follow;
    live.view.show(live.answer);
    this.#panel.show(live.answer, this.#models.props, true);
    if (follows) this.#follow.toEnd();
  }

  #buttons() {
    const focused = document.activeElement;
    byId("send").hidden = this.busy;
    byId("stop").hidden = !this.busy;
    byId("log").setAttribute("aria-busy", String(this.busy));
    if (focused === byId("send") || focused === byId("stop")) byId("question").focus();
    if (this.busy) announce("Writing the answer.");
  }

  /** Show how much of the context the conversation takes. */
  gauge() {
    const used = this.#data.messages.findLast((message) => message.tokens)?.tokens ?? 0;
    showContext(used, this.#models.contextLength);
  }
}
