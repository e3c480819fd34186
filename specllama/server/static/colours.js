// Colours of code, loaded with the first block of a language, and given to complete blocks when the page is idle. What
// the page says of the sources of the text stays.

import "./vendor/purify.min.js";
import { element } from "./dom.js";
import { later } from "./idle.js";

const purify = globalThis.DOMPurify;
const ALLOWED = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true };
const LONGEST = 20_000; // characters of a block with colours
// by name: the file below vendor/languages
const LANGUAGES = {
	bash: "bash", sh: "bash", shell: "bash", zsh: "bash", console: "bash",
	// near enough for C and C++, whose own file is large
	c: "java", h: "java", cpp: "java", "c++": "java", cc: "java", hpp: "java", cxx: "java", cuda: "java",
	diff: "diff", patch: "diff", go: "go", golang: "go", ini: "ini", toml: "ini", java: "java",
	javascript: "javascript", js: "javascript", jsx: "javascript", mjs: "javascript",
	typescript: "javascript", ts: "javascript", tsx: "javascript",
	json: "json", jsonc: "json", json5: "json", python: "python", py: "python", python3: "python", pycon: "python",
	rust: "rust", rs: "rust",
	xml: "xml", html: "xml", svg: "xml", xhtml: "xml", yaml: "yaml", yml: "yaml",
};
const NEEDS = { xml: ["javascript"] }; // for what is within it
// by the page's class: the library's
const CLASSES = {
	"": "operator tag",
	keyword: "keyword literal template-tag selector-tag",
	string: "string regexp template-variable link code addition",
	number: "number symbol bullet variable selector-class",
	comment: "comment quote doctag",
	name: "title section selector-id name function",
	type: "type built_in class attr attribute property",
	meta: "meta deletion meta-keyword",
};
const KINDS = Object.fromEntries(Object.entries(CLASSES).flatMap(([kind, names]) => names.split(" ").map((name) => [name, kind])));

let library = null;
const languages = new Map(); // promises by file

function load(name) {
	library ??= import("./vendor/highlight.min.js").then((module) => module.default);
	if (!languages.has(name)) {
		const before = (NEEDS[name] ?? []).map(load);
		const file = import(`./vendor/languages/${name}.js`);
		const loaded = Promise.all([library, file, ...before]).then(([core, module]) => {
			core.registerLanguage(name, module.default);
			return core;
		});
		loaded.catch(() => {
			languages.delete(name); // without colours; the next block tries again
			library = null;
		});
		languages.set(name, loaded);
	}
	return languages.get(name);
}

/** Colour the complete blocks of code in an element, when there is time. */
export function colourLater(root) {
	const boxes = root.matches(".code") ? [root] : root.querySelectorAll(".code");
	for (const box of boxes) {
		const name = LANGUAGES[box.querySelector(".code-head > span").textContent.toLowerCase()];
		if (!name || box.dataset.colours) continue;
		box.dataset.colours = name;
		later(box, () => load(name).then((core) => later(box, () => colour(box, core, name)), () => {}));
	}
}

function colour(box, core, name) {
	const code = box.querySelector("pre > code");
	const text = code.textContent;
	if (text.length > LONGEST) return;
	const found = purify.sanitize(core.highlight(text, { language: name, ignoreIllegals: true }).value, ALLOWED);
	if (found.textContent !== text) return;
	paint(code, kinds(found));
}

/** The kinds of a text's parts, in order: [end, kind]. */
function kinds(root) {
	const found = [];
	let end = 0;
	const walk = (node, kind) => {
		for (const child of node.childNodes) {
			if (child.nodeType === Node.TEXT_NODE) {
				end += child.data.length;
				if (found.length && found.at(-1)[1] === kind) found.at(-1)[0] = end;
				else found.push([end, kind]);
			} else walk(child, KINDS[/hljs-([\w-]+)/.exec(child.className)?.[1]] ?? kind);
		}
	};
	walk(root, "");
	return found;
}

/** Wrap the texts in an element by their kinds. */
function paint(root, parts) {
	const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
	const nodes = [];
	while (texts.nextNode()) nodes.push(texts.currentNode);
	let at = 0;
	let i = 0;
	for (const node of nodes) {
		const begin = at;
		at += node.data.length;
		const pieces = [];
		for (let from = begin; from < at; ) {
			const [end, kind] = parts[i];
			const to = Math.min(end, at);
			const text = node.data.slice(from - begin, to - begin);
			pieces.push(kind ? element("span", { class: `t-${kind}` }, text) : text);
			from = to;
			if (end <= at) i += 1;
		}
		if (pieces.some((piece) => typeof piece !== "string")) node.replaceWith(...pieces);
	}
}
