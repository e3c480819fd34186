// From what a model writes to elements. HTML in it is shown as text, images are not loaded, and links are web or
// mail addresses. What the renderer makes passes a sanitiser that knows the few elements and attributes below.

import { Marked, Renderer } from "./vendor/marked.esm.js";
import "./vendor/purify.min.js";
import { button, copyText, element, flash } from "./dom.js";

const purify = globalThis.DOMPurify;
const ALLOWED = {
  ALLOWED_TAGS: [
    ...["p", "br", "hr", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a"],
    ...["h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "data"],
  ],
  ALLOWED_ATTR: ["href", "start", "align", "title", "value"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  RETURN_DOM_FRAGMENT: true,
};

const NODES = 60; // of a block of lines
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escaped = (text) => text.replace(/[&<>"']/g, (c) => ESCAPES[c]);

/** The text of a part, with its place in the source where that is known: see places.js. */
const placed = ({ place }, html) => (place ? `<data value="${place.join(" ")}">${html}</data>` : html);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html(token) {
      const found = placed(token, escaped(token.text));
      return token.block ? `<p>${found}</p>` : found;
    },
    image: (token) => placed(token, escaped(`[image: ${token.text || token.href}]`)),
    link({ href, tokens }) {
      const inner = this.parser.parseInline(tokens);
      return /^(?:https?:|mailto:)/i.test(href) ? `<a href="${escaped(href)}">${inner}</a>` : inner;
    },
    code(token) {
      const language = escaped((token.lang ?? "").split(/\s/)[0].slice(0, 30));
      return `<pre title="${language}"><code>${placed(token, escaped(token.text))}</code></pre>`;
    },
    codespan: (token) => `<code>${placed(token, escaped(token.text))}</code>`,
    text(token) {
      if (token.tokens) return this.parser.parseInline(token.tokens);
      return placed(token, Renderer.prototype.text.call(this, { ...token, escaped: false })); // even after "<pre>"
    },
    checkbox: (token) => placed(token, token.checked ? "☑ " : "☐ "),
  },
});

/**
 * The blocks of a Markdown text without carriage returns. Each has its source as `raw`; together they are the whole
 * text.
 */
export function blocks(source) {
  return marked.lexer(source);
}

/** The elements of some blocks, safe to insert, for `Trace.paint` and `furnish`. */
export function render(tokens) {
  return purify.sanitize(marked.parser(tokens), ALLOWED);
}

/**
 * Add nodes to code, in blocks of whole lines: the browser lays out a block again only when it changes, so that
 * the work for one more line does not depend on how many there are. nodes: texts and spans of text.
 */
export function addLines(code, nodes) {
  for (const node of nodes) {
    let block = code.lastElementChild;
    if (!block?.matches(".lines")) {
      block = element("span", { class: "lines" });
      code.append(block);
    }
    const text = node.textContent;
    const end = block.childNodes.length >= NODES ? text.lastIndexOf("\n") + 1 : 0;
    if (!end) {
      block.append(node);
      continue;
    }
    const next = element("span", { class: "lines" });
    code.append(next);
    if (end < text.length) {
      const rest = node.cloneNode(true);
      node.textContent = text.slice(0, end);
      rest.textContent = text.slice(end);
      next.append(rest);
    }
    block.append(node);
  }
}

/** Add what people use: a head with a button to copy on code, tables that scroll, links to other pages. */
export function furnish(root) {
  for (const pre of root.querySelectorAll("pre")) {
    const language = pre.title || "code";
    pre.removeAttribute("title");
    const copy = button("Copy", async () => {
      flash(copy, (await copyText(pre.textContent)) ? "Copied" : "Not allowed");
    });
    copy.setAttribute("aria-label", `Copy ${language}`);
    const box = element("div", { class: "code" }, element("div", { class: "code-head" }, language, copy));
    addLines(pre.querySelector("code"), [...pre.querySelector("code").childNodes]);
    pre.replaceWith(box);
    pre.tabIndex = 0; // it scrolls
    pre.setAttribute("role", "region");
    pre.setAttribute("aria-label", language);
    box.append(pre);
  }
  for (const table of root.querySelectorAll("table")) {
    const box = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "table" });
    table.replaceWith(box);
    box.append(table);
  }
  for (const link of root.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
    link.title = link.href;
  }
  return root;
}
