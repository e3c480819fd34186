// Blocks of code: their lines and their head.

import { button, copyButton, element } from "./dom.js";

const NODES = 60; // of a block of lines

/**
 * Add nodes to code, in blocks of whole lines: the browser lays out only blocks that change. nodes: texts and spans of
 * text.
 */
export function addLines(code, nodes) {
	for (const node of withoutIndents(nodes, isIndent(code.querySelector(".lines:last-child")))) {
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

/** Whether what comes next in a block of lines stands at the beginning of a line, or after spaces alone. */
function isIndent(block) {
	for (let node = block?.lastChild; node; node = node.previousSibling) {
		const text = node.textContent;
		const end = text.lastIndexOf("\n") + 1;
		if (text.slice(end).trim()) return false;
		if (end) return true;
	}
	return true;
}

/** The nodes with the spaces before lines in spans without a source: they are not tinted. indent: see isIndent. */
function withoutIndents(nodes, indent) {
	let begins = indent;
	return nodes.flatMap((node) => {
		const text = node.textContent;
		const parts = text.split(begins ? /((?:^|(?<=\n))[ \t]+)/ : /((?<=\n)[ \t]+)/);
		const line = text.slice(text.lastIndexOf("\n") + 1);
		begins = !line.trim() && (begins || line.length < text.length);
		if (!node.dataset?.source || parts.length === 1) return [node];
		node.remove();
		return parts.map((part, i) => {
			const span = node.cloneNode(false);
			span.textContent = part;
			if (i % 2) span.removeAttribute("data-source");
			return span;
		}).filter((span) => span.textContent);
	});
}

export function codeHead(pre, language) {
	const wrap = button("Wrap", () => wrap.setAttribute("aria-pressed", String(pre.classList.toggle("wrapped"))), {
		"aria-pressed": "false", "aria-label": `Wrap the lines of ${language}`,
	});
	return element("div", { class: "code-head" }, element("span", {}, language), wrap, copyButton(() => pre.textContent, `Copy ${language}`));
}
