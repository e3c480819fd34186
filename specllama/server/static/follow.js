// Keeps the end of the conversation in view while it grows, unless the reader has scrolled away.

import { byId, keepFocus } from "./dom.js";

const FAR = 0.3; // of the view's height, from which on a button leads back to the end
const AT_END = 4; // pixels: sizes are rounded
const READING = ["wheel", "touchmove", "pointerdown", "keydown"]; // what shows that somebody moves in the conversation

export class Follow {
	#box;
	#following = true;
	#top = 0; // where the view was left
	#settling = false; // whether what is shown finds its size after it was opened

	/** box: the element that scrolls. */
	constructor(box) {
		this.#box = box;
		box.addEventListener("scroll", () => this.#moved(), { passive: true });
		for (const name of READING) box.addEventListener(name, () => (this.#settling = false), { passive: true });
		byId("to-end").addEventListener("click", () => this.toEnd());
		const sizes = new ResizeObserver(() => this.#settling && this.toEnd());
		new MutationObserver((changes) => {
			for (const { addedNodes, removedNodes } of changes) {
				for (const node of addedNodes) if (node instanceof Element) sizes.observe(node);
				for (const node of removedNodes) if (node instanceof Element) sizes.unobserve(node);
			}
		}).observe(box, { childList: true });
	}

	/** Whether the reader is at the end. To be asked before the content changes. */
	get follows() {
		this.#moved();
		return this.#following;
	}

	/** Show the end, from now on too. opened: what is shown has not its final size yet. */
	toEnd({ opened = false } = {}) {
		this.#settling ||= opened;
		this.#following = true;
		this.#box.scrollTop = this.#box.scrollHeight;
		this.#top = this.#box.scrollTop;
		this.#offer(false);
	}

	/** Show or hide the button that leads to the end. */
	#offer(shown) {
		const way = byId("to-end");
		if (way.hidden === shown) keepFocus(way.parentElement, () => (way.hidden = !shown));
	}

	#moved() {
		const { scrollTop, scrollHeight, clientHeight } = this.#box;
		this.#offer(scrollHeight - scrollTop - clientHeight > FAR * clientHeight);
		if (scrollHeight - scrollTop - clientHeight <= AT_END) this.#following = true;
		else if (scrollTop < this.#top - 1) [this.#following, this.#settling] = [false, false];
		this.#top = scrollTop;
	}
}
