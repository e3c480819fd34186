// One message of a conversation as elements: the text, its reasoning, its rounds, its figures, and what one can
// do with it. Knows no server.

import { button, copyText, element, flash } from "./dom.js";
import { figuresLine } from "./figures.js";
import { watchPrefill } from "./prefill.js";
import { roundsView } from "./rounds.js";
import { MarkdownStream } from "./stream.js";
import { Trace } from "./trace.js";

export { watchRounds } from "./rounds.js";

const BLINK = 500; // milliseconds

/** A question. actions: {edit(text)}. */
export function questionView(message, actions) {
  const body = element("div", { class: "body plain" }, message.content);
  const copy = button("Copy", async () => flash(copy, (await copyText(message.content)) ? "Copied" : "Not allowed"));
  const edit = button("Edit", () => editor.begin());
  const tools = element("div", { class: "actions" }, copy, edit);
  const view = element("article", { class: "message question", "aria-label": "Question" }, body, tools);
  const editor = {
    begin() {
      const area = element("textarea", { "aria-label": "Edit the question", rows: 4 });
      area.value = message.content;
      const end = () => {
        form.replaceWith(body, tools);
        edit.focus();
      };
      const send = (event) => {
        event.preventDefault();
        if (area.value.trim()) actions.edit(area.value);
      };
      const form = element(
        "form",
        { class: "edit", on: { submit: send } },
        area,
        element("p", { class: "hint" }, "What follows this question is replaced."),
        element("div", { class: "actions" }, element("button", { class: "primary" }, "Send"), button("Cancel", end)),
      );
      area.addEventListener("keydown", (event) => {
        if (event.key === "Escape") end();
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
      });
      body.replaceWith(form);
      tools.remove();
      area.focus();
    },
  };
  return view;
}

/** An answer, complete or being written. actions: {regenerate(), resume()}. */
export class AnswerView {
  #actions;
  #body = element("div", { class: "body" });
  #thoughts = element("div", { class: "thoughts", tabindex: 0, role: "region", "aria-label": "Reasoning" });
  #summary = element("summary", {}, "Reasoning");
  #reasoning = element("details", { class: "reasoning", hidden: true }, this.#summary, this.#thoughts);
  #outcome = element("p", { class: "outcome", hidden: true });
  #foot = element("footer", {});
  #stream;
  #thought = 0; // characters of the reasoning that are shown
  #blinking = 0; // the timer of the mark at the end of the text
  #begun = () => {}; // ends the view of the prompt

  constructor(actions) {
    this.#actions = actions;
    this.element = element(
      "article",
      { class: "message answer", "aria-label": "Answer" },
      this.#reasoning,
      this.#body,
      this.#outcome,
      this.#foot,
    );
  }

  /** Begin to show an answer that grows: a generate.Answer, or a stored message. */
  begin(answer) {
    this.#stream = new MarkdownStream(this.#body, answer.trace);
    this.#body.classList.add("writing");
    this.#begun = watchPrefill(answer, this.#body);
    // An animation of the style sheet would have the whole conversation painted again in each frame.
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.#blinking = setInterval(() => this.#body.classList.toggle("blink"), BLINK);
    }
    this.element.setAttribute("aria-busy", "true");
  }

  /** Text that will be shown with the next `show`. */
  push(text) {
    this.#stream.push(text);
  }

  show(answer) {
    this.#begun();
    this.#showReasoning(answer);
    this.#stream.show();
  }

  #showReasoning(answer) {
    if (answer.reasoning.length === this.#thought) return;
    this.#reasoning.hidden = false;
    const added = answer.reasoning.slice(this.#thought);
    this.#thoughts.append(...answer.reasoningTrace.spans(added, this.#thought));
    this.#thought = answer.reasoning.length;
    this.#summary.textContent = answer.content ? "Reasoning" : "Reasoning…";
  }

  /** Take away an answer that has no text. */
  remove() {
    clearInterval(this.#blinking);
    this.#begun();
    this.element.remove();
  }

  /** Show a complete message, or what there is of one. message: as it is stored. */
  end(message) {
    const answer = { ...message, trace: new Trace(message.trace), reasoningTrace: new Trace(message.reasoningTrace) };
    if (!this.#stream) {
      this.begin(answer);
      this.push(message.content);
    }
    if (message.reasoning) {
      this.#showReasoning(answer);
      this.#summary.textContent = "Reasoning";
    }
    this.#begun();
    this.#stream.finish();
    clearInterval(this.#blinking);
    this.#body.classList.remove("writing", "blink");
    this.element.removeAttribute("aria-busy");
    this.#outcome.hidden = !message.outcome;
    this.#outcome.textContent = message.outcome ?? "";
    this.#outcome.classList.toggle("bad", Boolean(message.failed));
    this.#foot.replaceChildren(...this.#footer(message, answer));
  }

  #footer(message, answer) {
    const found = [];
    const line = figuresLine(message.figures);
    if (line) found.push(line);
    found.push(...roundsView(this.element, message, answer.trace, answer.reasoningTrace));
    const copy = button("Copy", async () => flash(copy, (await copyText(message.content)) ? "Copied" : "Not allowed"));
    copy.setAttribute("aria-label", "Copy the answer");
    const tools = [copy];
    // Of the last message only, by the style sheet.
    tools.push(button("Regenerate", () => this.#actions.regenerate(), { class: "of-last" }));
    if (message.partial && message.content) {
      tools.push(button("Continue", () => this.#actions.resume(), { class: "of-last" }));
    }
    found.push(element("div", { class: "actions" }, ...tools));
    return found;
  }
}
