// Work that can wait, done a few milliseconds at a time while the page is idle, what is on the screen first.

const SLICE = 12; // milliseconds of work between two frames
const PAUSE = 40; // milliseconds after a slice, for the engine

const waiting = new Map(); // the work of each element, in order
const urgent = new Set(); // elements near the screen
let planned = false;
let nearby = null;

/** Do this once `target` comes near the screen, or there is time. */
export function later(target, work) {
	waiting.set(target, work);
	nearby ??= new IntersectionObserver(seen, { rootMargin: "600px" });
	nearby.observe(target);
	plan();
}

/** Do what waits for an element now, if anything does. */
export function now(target) {
	const work = waiting.get(target);
	waiting.delete(target);
	urgent.delete(target);
	if (target) nearby?.unobserve(target);
	work?.();
}

/** Do all that waits. */
export const allNow = () => [...waiting.keys()].forEach(now);

function seen(entries) {
	for (const { target, isIntersecting } of entries) {
		if (isIntersecting && waiting.has(target)) urgent.add(target);
		else urgent.delete(target);
	}
	const end = performance.now() + 2 * SLICE;
	for (const target of urgent) {
		if (performance.now() > end) break;
		now(target);
	}
	plan();
}

function plan() {
	if (planned || !waiting.size) return;
	planned = true;
	const wait = urgent.size ? 0 : PAUSE;
	setTimeout(() => (globalThis.requestIdleCallback ?? setTimeout)(work), wait);
}

function work() {
	planned = false;
	const end = performance.now() + SLICE;
	do {
		const [target] = urgent.size ? urgent : waiting.keys();
		if (!target) return;
		if (target.isConnected) now(target);
		else {
			waiting.delete(target);
			urgent.delete(target);
			nearby.unobserve(target);
		}
	} while (performance.now() < end);
	plan();
}
