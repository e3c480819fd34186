// Blocks of code: their lines and their head.

import { button, copyButton, element } from "./dom.js";

const NODES = 60; // of a block of lines

/**
 * Add nodes to code, in blocks of whole lines: the browser lays out only blocks that change. nodes: texts and spans of
 * text.
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

export function codeHead(pre, language) {
	const wrap = button("Wrap", () => wrap.setAttribute("aria-pressed", String(pre.classList.toggle("wrapped"))), {
		"aria-pressed": "false", "aria-label": `Wrap the lines of ${language}`,
	});
	return element("div", { class: "code-head" }, element("span", {}, language), wrap, copyButton(() => pre.textContent, `Copy ${language}`));
}
