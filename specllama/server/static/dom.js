// Small helpers for elements. Texts are always set as text, never parsed as HTML.

/**
 * A new element. props: `on` (event listeners by name), `data` (data attributes), and attributes by name; null, undefined
 * and false are left out. children: nodes and texts.
 */
export function element(tag, props = {}, ...children) {
	const found = document.createElement(tag);
	for (const [name, value] of Object.entries(props)) {
		if (value === null || value === undefined || value === false) continue;
		if (name === "on") {
			for (const [event, listener] of Object.entries(value)) found.addEventListener(event, listener);
		} else if (name === "data") {
			Object.assign(found.dataset, value);
		} else {
			found.setAttribute(name, value === true ? "" : String(value));
		}
	}
	found.append(...children.filter((child) => child !== null && child !== undefined));
	return found;
}

/** A button that runs `action` unless it is `aria-disabled`. */
export function button(text, action, props = {}) {
	const click = ({ currentTarget }) => currentTarget.ariaDisabled !== "true" && action();
	return element("button", { type: "button", on: { click }, ...props }, text);
}

export const byId = (id) => document.getElementById(id);

/** Attributes of an element that scrolls, for the keyboard. */
export const region = (label) => ({ tabindex: 0, role: "region", "aria-label": label });

/** Have exactly these children, and move none in its place: it may have the focus, or be under a finger. */
export function arrange(box, children) {
	const wanted = new Set(children);
	for (const one of [...box.children]) if (!wanted.has(one)) one.remove();
	children.forEach((one, i) => {
		if (box.children[i] !== one) box.insertBefore(one, box.children[i] ?? null);
	});
}

const nameOf = (one) => one.getAttribute("aria-label") ?? (one.title || one.textContent);
const canFocus = (one) => Boolean(one?.isConnected && one.checkVisibility() && !one.disabled);

/**
 * Run `change()`. If it removes, hides or disables the focused element in `root`, focus the one of the same name in the
 * same child of `root`, else `next(child)`, else where one types or closes the dialog.
 */
export function keepFocus(root, change, next = () => null) {
	const had = document.activeElement;
	if (!root.contains(had)) return change();
	const i = [...root.children].findIndex((child) => child.contains(had));
	change();
	const now = document.activeElement;
	if (i < 0 || (now === had ? canFocus(had) : now !== document.body)) return undefined;
	const child = root.children[Math.min(i, root.children.length - 1)];
	const all = child ? [child, ...child.querySelectorAll("*")].filter((one) => one.tabIndex >= 0 && canFocus(one)) : [];
	const same = canFocus(had) ? had : all.find((one) => nameOf(one) === nameOf(had));
	if (same) return same.focus({ preventScroll: true });
	const typing = coarse.matches ? "log" : "question"; // or a phone's keyboard comes up
	const one = next(child);
	return (canFocus(one) ? one : byId(root.closest("dialog") ? "dialog-close" : typing)).focus();
}

/** A button that copies `text()`, and says so for a moment. looks: what it shows before and after. */
export function copyButton(text, label, looks = ["Copy", "Copied"]) {
	const [look, done] = looks;
	const copy = async () => {
		const copied = await copyText(text());
		found.replaceChildren(copied ? done : "Not allowed");
		announce(copied ? "Copied" : "The browser does not allow copying.");
		await pause(1500);
		found.replaceChildren(look);
	};
	const found = button(look, copy, { title: "Copy", "aria-label": label });
	return found;
}

/** Copy a text; returns whether the browser allowed it. */
export async function copyText(text) {
	try {
		await navigator.clipboard.writeText(text);
		return true;
	} catch {
		const area = element("textarea", { class: "offscreen" });
		area.value = text;
		document.body.append(area);
		area.select();
		const done = document.execCommand("copy");
		area.remove();
		return done;
	}
}

/** Say something to those who hear the page. */
export function announce(text) {
	byId("announcer").textContent = text;
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** An error and what to do about it, as sentences. */
export const inSentences = ({ message, todo }) => `${message} ${todo ?? ""}`.trim();

/** A whole number as people read it: 1,234. */
export const whole = (n) => n.toLocaleString("en");

/** A number as people read it: 1,234; 12.3; 0.93. */
export function numeral(value, digits = 3) {
	if (value === null || value === undefined || !Number.isFinite(value)) return "–";
	if (Math.abs(value) >= 10 ** (digits - 1)) return whole(Math.round(value));
	return String(Number(value.toPrecision(digits)));
}

/** "1 token", "1,234 tokens". */
export const counted = (n, what) => `${whole(n)} ${what}${n === 1 ? "" : "s"}`;

export const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);

/** Seconds as people read them. */
export function duration(seconds) {
	return seconds < 1 ? `${numeral(1000 * seconds)} ms` : `${numeral(seconds)} s`;
}

/** Bytes as people read them. */
export function bytes(n) {
	const units = ["B", "KiB", "MiB", "GiB", "TiB"];
	const i = n > 0 ? Math.min(units.length - 1, Math.floor(Math.log2(n) / 10)) : 0;
	return `${numeral(n / 1024 ** i)} ${units[i]}`;
}

/** Place a tip above a box, or below it where there is no room. */
export function placeTip(tip, { left, top, bottom }) {
	const above = top - tip.offsetHeight - 6;
	tip.style.left = `${Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 8))}px`;
	tip.style.top = `${above > 0 ? above : Math.min(bottom + 6, innerHeight - tip.offsetHeight - 8)}px`;
}

const coarse = matchMedia("(pointer: coarse)");

/** Have Enter call `send()`; on a phone, whose keyboard has no Shift+Enter, it begins a line, and Ctrl+Enter sends. */
export function onEnter(area, send) {
	area.enterKeyHint = coarse.matches ? "enter" : "send";
	area.addEventListener("keydown", (event) => {
		const { key, shiftKey, ctrlKey, metaKey, isComposing } = event;
		if (key !== "Enter" || isComposing || !(ctrlKey || metaKey || !(shiftKey || coarse.matches))) return;
		event.preventDefault();
		send();
	});
}

/** Escape calls `act()` and does nothing else, unless that returns false. */
export function onEscape(node, act) {
	node.addEventListener("keydown", (event) => event.key === "Escape" && act() !== false && event.preventDefault());
}
