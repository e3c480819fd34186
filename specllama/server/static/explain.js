// What the figures mean, shown where one points or goes with the keyboard. The terms are those of llama.cpp and of the
// papers on speculative decoding.

import { byId, element } from "./dom.js";

const TEXTS = {
  tokens: "Tokens: the pieces of words that the model writes; about four characters each in English.",
  rate: "Tokens per second from the second token on; the first one is of the prompt.",
  gain:
    "Speed over plain decoding: tokens per second of this answer, over those of the model without drafts. That speed is " +
    "taken from rounds without a draft in this answer or, where they are few, from a time measured before. It is too " +
    "close to call where the 95 % interval holds 1.",
  accepted:
    "Acceptance rate: the share of verified draft tokens that the target chose too. Those that it did not choose are " +
    "discarded; the text stays the target's.",
  none: "No draft token was verified: each round wrote the target's one token, as plain decoding does.",
  first: "Time to first token: from the request, with the wait for a slot and the evaluation of the prompt.",
  prompt: "Prompt: tokens evaluated, and their speed. Those that were in the cache already are not evaluated again.",
  rounds:
    "Tokens a round: a round is one decode of the target, which verifies a draft and adds the target's own next token. " +
    "Plain decoding writes 1; it is the most that speculation can gain.",
  position:
    "Of the draft tokens at a position, the share that was accepted. A token counts only if all before it were accepted, " +
    "so later positions are accepted less often.",
  time: "Verify: decodes of the target. Draft: proposing tokens. Sampling: choosing tokens from the logits. Other: the rest.",
  curve:
    "t(n): milliseconds of one decode of the target with n rows, one row a token. Verifying a draft pays where n rows cost " +
    "little more than one.",
  sources: "Which drafter proposed the tokens that were accepted. Target: tokens that the model chose without a draft.",
};

/** Have an element explain itself. names: of texts, separated by spaces. */
export function explained(target, names) {
  target.dataset.explain = names;
  return target;
}

/** A button that explains itself: for names of figures. */
export function term(text, name) {
  return explained(element("button", { type: "button", class: "term", "aria-describedby": "explanation" }, text), name);
}

/** Show explanations, in one element that comes and goes. */
export function setUpExplanations() {
  const tip = element("div", { id: "explanation", role: "tooltip", hidden: true });
  document.body.append(tip);
  let shown = null;
  const hide = () => {
    shown?.removeAttribute("aria-describedby");
    shown = null;
    tip.hidden = true;
  };
  const show = (target) => {
    if (!target || target === shown) return;
    hide();
    const texts = target.dataset.explain.split(" ").map((name) => TEXTS[name]).filter(Boolean);
    if (!texts.length) return;
    (target.closest("dialog[open]") ?? document.body).append(tip);
    tip.replaceChildren(...texts.map((text) => element("p", {}, text)));
    tip.hidden = false;
    target.setAttribute("aria-describedby", "explanation");
    shown = target;
    const box = target.getBoundingClientRect();
    const above = box.top - tip.offsetHeight - 6;
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${above > 0 ? above : Math.min(box.bottom + 6, innerHeight - tip.offsetHeight - 8)}px`;
  };
  const of = ({ target }) => target.closest?.("[data-explain]");
  addEventListener("pointerover", (event) => {
    const found = of(event);
    if (found) show(found);
    else if (shown && shown !== document.activeElement && event.target.closest?.("#explanation") !== tip) hide();
  });
  addEventListener("focusin", (event) => (of(event) ? show(of(event)) : hide()));
  addEventListener("focusout", hide);
  addEventListener("scroll", hide, { passive: true, capture: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
  byId("dialog")?.addEventListener("close", () => {
    hide();
    document.body.append(tip);
  });
}
