// Shows a Markdown text while it arrives. What is complete is rendered once and never touched again: blocks, items
// of a long list, rows of a long table. The rest is rendered again while it is short. A long block only grows at its
// end, and is rendered again when it has grown by a quarter, so that the work per token does not depend on how much
// there is.

import { addLines, blocks, furnish, render } from "./markdown.js";
import { element } from "./dom.js";

const SHORT = 1500; // characters of a last block that is rendered again with each change
const GROWTH = 1.25;
const ROWS = 16; // of a table; the rows of a longer one are added one by one
const INNER = "div, pre, pre > code, p, ul, ol, li, blockquote, table, tbody, tr, td, h1, h2, h3, h4, h5, h6";
const FENCE = /^ {0,3}(?:```|~~~)/m;

export class MarkdownStream {
  #text = "";
  #settled = 0; // end of what is complete
  #rendered = 0; // length of the last block when it was rendered
  #shown = 0; // end of what is shown
  #open = ""; // type of the last block
  #newline = ""; // at the end of the last block, if it is code, which is rendered without it
  #tail = element("div", { class: "tail" });
  #table = null; // of a long table that may go on: {head: its source, body, open: the elements of its rows}

  /** container: gets the elements, and is emptied. trace: the sources of the text. */
  constructor(container, trace) {
    this.container = container;
    this.trace = trace;
    container.replaceChildren(this.#tail);
  }

  get text() {
    return this.#text;
  }

  /** Add text, which `show` will show. */
  push(text) {
    this.#text += text;
  }

  /** Show what was added. */
  show() {
    if (this.#shown === this.#text.length) return;
    const length = this.#text.length - this.#settled;
    const grows = this.#open === "code" || length < GROWTH * this.#rendered;
    if (length > SHORT && grows && !this.#ends()) this.#append();
    else this.#render();
    this.#shown = this.#text.length;
  }

  /** Show the whole text, which is complete. */
  finish() {
    if (/^ {0,3}\[[^\]]+\]:\s*\S/m.test(this.#text)) {
      [this.#settled, this.#table] = [0, null]; // a link is defined after its use
      this.container.replaceChildren(this.#tail);
    }
    if (this.#text.length > this.#settled) this.#render();
    this.#tail.replaceWith(...this.#tail.childNodes);
  }

  /** Whether the new text may end the last block. */
  #ends() {
    const before = Math.max(this.#settled, this.#text.lastIndexOf("\n", this.#shown - 1));
    const added = this.#text.slice(before);
    if (this.#open === "code") return FENCE.test(added);
    return this.#open !== "list" && this.#open !== "blockquote" && /\n\s*\n/.test(added);
  }

  #append() {
    let last = this.#tail;
    while (last.lastElementChild?.matches(INNER)) last = last.lastElementChild;
    const added = this.trace.spans(this.#text.slice(this.#shown), this.#shown);
    if (this.#open === "code") addLines(last, [document.createTextNode(this.#newline), ...added]);
    else last.append(...added);
    this.#newline = "";
  }

  #render() {
    if (this.#table) return this.#renderRows();
    const text = this.#text.slice(this.#settled);
    let tokens = blocks(text);
    const whole = tokens.reduce((sum, token) => sum + token.raw.length, 0) === text.length;
    if (whole && tokens.length > 1) {
      const last = tokens.findLastIndex((token) => token.type !== "space");
      for (const token of tokens.slice(0, Math.max(0, last))) this.#settle([token], token.raw.length);
      tokens = tokens.slice(Math.max(0, last));
    }
    const [first] = tokens;
    if (whole && first?.type === "list" && first.items.length > 1 && first.raw.length > SHORT / 2) {
      const items = first.items.slice(0, -1);
      const raw = items.map((item) => item.raw).join("");
      if (first.raw.startsWith(raw)) {
        this.#settle([{ ...first, items, raw }], raw.length);
        tokens = blocks(this.#text.slice(this.#settled));
      }
    }
    if (whole && tokens[0]?.type === "table" && tokens[0].rows.length > ROWS && this.#openTable(tokens[0])) {
      return this.#renderRows();
    }
    this.#open = tokens.findLast((token) => token.type !== "space")?.type ?? "";
    this.#newline = this.#open === "code" && this.#text.endsWith("\n") ? "\n" : "";
    this.#tail.replaceChildren(...this.#painted(tokens, this.#settled));
    this.#rendered = this.#text.length - this.#settled;
    return undefined;
  }

  /** Settle all rows of a table but the last one. Returns whether its source has a line for each. */
  #openTable(token) {
    const lines = token.raw.split("\n");
    const rows = token.rows.slice(0, -1);
    if (lines.length < rows.length + 3) return false;
    const end = lines.slice(0, rows.length + 2).join("\n").length + 1;
    this.#tail.replaceChildren();
    this.#settle([{ ...token, rows }], end);
    const table = this.#tail.previousElementSibling.querySelector("table");
    this.#table = { head: `${lines[0]}\n${lines[1]}\n`, body: table.tBodies[0], open: table.createTBody() };
    return true;
  }

  /** Show the rows that a long table has got. */
  #renderRows() {
    const { head, body, open } = this.#table;
    const [first, next] = blocks(head + this.#text.slice(this.#settled));
    const goes_on = first?.type === "table" && !next;
    const rows = first?.type === "table" ? first.rows : [];
    const lines = (first?.raw ?? "").slice(head.length).split("\n");
    const n = goes_on ? Math.max(0, rows.length - 1) : rows.length;
    if (n) {
      body.append(...this.#painted([{ ...first, rows: rows.slice(0, n) }], this.#settled, "tbody tr"));
      const end = this.#settled + lines.slice(0, n).join("\n").length + 1;
      this.#settled = Math.min(this.#text.length, end);
    }
    if (!goes_on) {
      open.remove();
      this.#table = null;
      return this.#render();
    }
    const last = rows.length ? this.#painted([{ ...first, rows: rows.slice(n) }], this.#settled, "tbody tr") : [];
    open.replaceChildren(...last);
    this.#rendered = this.#text.length - this.#settled;
    return undefined;
  }

  #settle(tokens, length) {
    this.#tail.before(...this.#painted(tokens, this.#settled));
    this.#settled += length;
  }

  /** The nodes of some blocks, whose source begins here; selector: only these elements of them. */
  #painted(tokens, begin, selector = "") {
    const found = render(tokens);
    if (selector) found.querySelector("thead")?.remove();
    this.trace.paint(found, this.#text, begin);
    furnish(found);
    return selector ? found.querySelectorAll(selector) : found.childNodes;
  }
}
