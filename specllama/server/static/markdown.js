// From what a model writes to elements, through a sanitiser. HTML in it is shown as text but for a few tags without attributes, images are not loaded, links are
// web or mail addresses. What would take long is not parsed but shown as text.

import { Lexer, Marked, Renderer, Tokenizer } from "./vendor/marked.esm.js";
import "./vendor/purify.min.js";
import { addLines, codeHead } from "./code.js";
import { element } from "./dom.js";
import { boxed } from "./tables.js";
import { cutsFormula, mathExtensions, mayHaveMath } from "./math_syntax.js";
import { isBreak, mayHaveSmall, smallExtensions } from "./small_syntax.js";

const purify = globalThis.DOMPurify;
const ALLOWED = {
	ALLOWED_TAGS: [
		...["p", "br", "hr", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a"],
		...["h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "data", "var", "sub", "sup", "kbd"],
	],
	ALLOWED_ATTR: ["href", "start", "align", "title", "value"],
	ADD_URI_SAFE_ATTR: ["start", "align"], // or their values would need to look like addresses
	ALLOW_DATA_ATTR: false,
	ALLOW_ARIA_ATTR: false,
	ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
	RETURN_DOM_FRAGMENT: true,
};

const DEEPEST = 12; // quotes and lists in each other
const NESTED = 6000; // characters in a quote or an item
const PIECE = 2000; // characters that are parsed together: the time grows with the square
const PARSED = 6000; // characters of a paragraph that are parsed
const COLUMNS = 100;
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escaped = (text) => text.replace(/[&<>"']/g, (c) => ESCAPES[c]);

/** The text of a part, with its place in the source if known: see places.js. */
const placed = ({ place }, html) => (place ? `<data value="${place.join(" ")}">${html}</data>` : html);

const marked = new Marked({
	gfm: true,
	breaks: true,
	extensions: [
		{ ...mathExtensions[0], renderer: (token) => formulaMarkup(token, token.display) },
		{
			...mathExtensions[1],
			renderer: (token) => (token.closed ? formulaMarkup(token, true) : `<p title="source">${placed(token, escaped(token.text))}</p>`),
		},
		{
			...smallExtensions[0],
			renderer({ tag, tokens, text, place }) {
				if (tag === "br") return "<br>";
				return `<${tag}>${tokens ? this.parser.parseInline(tokens) : placed({ place }, escaped(text))}</${tag}>`;
			},
		},
		{
			...smallExtensions[1],
			renderer({ label, tokens }) {
				return `<p title="footnote"><sup>${escaped(label)}</sup> ${this.parser.parseInline(tokens)}</p>`;
			},
		},
	],
	renderer: {
		html(token) {
			if (token.block && isBreak(token.text)) return "<p><br></p>";
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

const formulaMarkup = (token, display) =>
	`<var title="${display ? "block" : "inline"}">${placed(token, escaped(token.text))}</var>`;

class BoundedTokenizer extends Tokenizer {
	lheading(source) {
		const found = super.lheading(source);
		return found && /\n {0,3}(?:\$\$|\\\[)/.test(found.raw) ? undefined : found; // a line of a formula is "="
	}

	emStrong(source, masked, before) {
		const found = super.emStrong(source, masked, before);
		return found && cutsFormula(source, found.raw.length) ? undefined : found;
	}

	table(source) {
		const line = source.slice(0, source.indexOf("\n"));
		return line.length > COLUMNS && line.split("|").length > COLUMNS + 2 ? undefined : super.table(source);
	}
}

class BoundedLexer extends Lexer {
	#depth = 0;

	blockTokens(source, tokens = [], clipped = false) {
		if (this.#depth > DEEPEST) return this.#plain(source, tokens);
		const cut = this.#depth && source.length > NESTED ? source.lastIndexOf("\n", NESTED) + 1 || NESTED : source.length;
		this.#depth += 1;
		try {
			super.blockTokens(source.slice(0, cut), tokens, clipped);
		} finally {
			this.#depth -= 1;
		}
		return cut < source.length ? this.#plain(source.slice(cut), tokens) : tokens;
	}

	inlineTokens(source, tokens = []) {
		let rest = source;
		for (let parsed = 0; rest.length > PIECE && parsed < PARSED; ) {
			const cut = Math.max(rest.lastIndexOf("\n", PIECE), rest.lastIndexOf(" ", PIECE)) + 1 || PIECE;
			super.inlineTokens(rest.slice(0, cut), tokens);
			parsed += cut;
			rest = rest.slice(cut);
		}
		if (rest.length <= PIECE) return super.inlineTokens(rest, tokens);
		tokens.push({ type: "text", raw: rest, text: rest, escaped: false });
		return tokens;
	}

	#plain(source, tokens) {
		if (source.trim()) {
			const text = { type: "text", raw: source, text: source, escaped: false };
			tokens.push({ type: "paragraph", raw: source, text: source, tokens: [text] });
		}
		return tokens;
	}
}

/** The blocks of a Markdown text without carriage returns; their sources, `raw`, are together the whole text. */
export function blocks(source) {
	const { extensions, ...options } = marked.defaults;
	const tokenizer = new BoundedTokenizer();
	return new BoundedLexer({ ...options, tokenizer, extensions: mayHaveMath(source) || mayHaveSmall(source) ? extensions : null }).lex(source);
}

/** The elements of some blocks, safe to insert, for `Trace.paint` and `furnish`. */
export function render(tokens) {
	return purify.sanitize(marked.parser(tokens), ALLOWED);
}

/** Add what people use: heads of code, tables that scroll, formulas, links, the direction of each block. */
export function furnish(root) {
	for (const child of root.children) if (!child.matches("pre, hr, var")) child.dir = "auto";
	for (const part of root.querySelectorAll("p[title]")) {
		part.className = part.title;
		part.removeAttribute("title");
	}
	for (const pre of root.querySelectorAll("pre")) {
		const language = pre.title || "code";
		pre.removeAttribute("title");
		const box = element("div", { class: "code", dir: "ltr" }, codeHead(pre, language));
		const code = pre.querySelector("code");
		addLines(code, [...code.childNodes]);
		pre.replaceWith(box);
		pre.tabIndex = 0; // it scrolls
		pre.setAttribute("role", "region");
		pre.setAttribute("aria-label", language);
		box.append(pre);
	}
	for (const table of root.querySelectorAll("table")) boxed(table);
	for (const link of root.querySelectorAll("a")) {
		link.target = "_blank";
		link.rel = "noopener noreferrer nofollow";
		link.title = link.href;
	}
	for (const source of root.querySelectorAll("var")) {
		const parts = element("span", { class: "tex" }, ...source.childNodes);
		source.replaceWith(element("span", { class: source.title === "block" ? "math display" : "math", dir: "ltr" }, parts));
	}
	if (root.querySelector(".math")) showFormulas(root);
	return root;
}

let formulas = null; // math.js, when it is there
let loading = false;

function showFormulas(root) {
	if (formulas) formulas.showFormulas(root);
	else if (!loading) {
		loading = true;
		import("./math.js").then(
			(module) => {
				formulas = module;
				formulas.showFormulas(document);
			},
			() => {
				loading = false; // the sources are shown; the next formula tries again
			},
		);
	}
}
