// Small helpers for elements. Texts are always set as text, never parsed as HTML.

/**
 * A new element. props: `class`, `on` (event listeners by name), `data` (data attributes), boolean attributes,
 * and other attributes by name; null and undefined are left out. children: nodes and texts.
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

/** A button that runs `action`; what it is called can differ from what it shows. */
export function button(text, action, props = {}) {
	return element("button", { type: "button", on: { click: action }, ...props }, text);
}

export const byId = (id) => document.getElementById(id);

/** Show `text` for a moment on a button, such as "Copied". */
export function flash(target, text) {
	const before = target.textContent;
	target.textContent = text;
	setTimeout(() => {
		target.textContent = before;
	}, 1500);
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

/** A number as people read it: 1,234; 12.3; 0.93. */
export function numeral(value, digits = 3) {
	if (value === null || value === undefined || !Number.isFinite(value)) return "–";
	if (Math.abs(value) >= 10 ** (digits - 1)) return Math.round(value).toLocaleString("en");
	return String(Number(value.toPrecision(digits)));
}

/** "1 token", "1,234 tokens". */
export const counted = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

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

/** Have Escape call `act()` and do nothing else, unless that returns false. */
export function onEscape(node, act) {
	node.addEventListener("keydown", (event) => event.key === "Escape" && act() !== false && event.preventDefault());
}
