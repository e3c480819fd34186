// Draws a race and a card from data with any text. Imports nothing: shared files contain it.

/** A new element with a class and children. */
function part(tag, name, ...children) {
	const found = document.createElement(tag);
	if (name) found.className = name;
	found.append(...children);
	return found;
}

const inSeconds = (seconds) => (seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toPrecision(3)} s`);

/**
 * A run that can be shown at its pace. run: {parts: [[text, source], …], times: [[seconds, characters], …], seconds},
 * characters as of JavaScript strings.
 */
export function lane(name, run) {
	const text = part("div", "lane-text");
	text.tabIndex = 0;
	text.setAttribute("role", "region");
	text.setAttribute("aria-label", `${name} text`);
	text.dir = "auto";
	const clock = part("span", "clock");
	let [shown, index, used, time] = [0, 0, 0, 0];
	const upTo = (end) => {
		while (shown < end && index < run.parts.length) {
			const [whole, source] = run.parts[index];
			const more = whole.slice(used, used + end - shown);
			const span = part("span", "", more);
			if (source) span.dataset.source = source;
			text.append(span);
			used += more.length;
			shown += more.length;
			if (used < whole.length) break;
			[index, used] = [index + 1, 0];
		}
	};
	const finish = () => {
		upTo(Infinity);
		clock.textContent = `finished after ${inSeconds(run.seconds)}`;
	};
	return {
		element: part("section", "lane", part("h3", "", name, clock), text),
		seconds: run.seconds,
		finish,
		reset() {
			text.replaceChildren();
			[shown, index, used, time] = [0, 0, 0, 0];
		},
		show(seconds) {
			while (time < run.times.length && run.times[time][0] <= seconds) time++;
			upTo(time ? run.times[time - 1][1] : 0);
			clock.textContent = `${seconds.toFixed(1)} s`;
			if (seconds >= run.seconds) finish();
			text.scrollTop = text.scrollHeight;
		},
	};
}

/** Show lanes at their pace, or at once for those who want no motion. */
export function replay(lanes, signal = null) {
	if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
		for (const one of lanes) one.finish();
		return Promise.resolve();
	}
	for (const one of lanes) one.reset();
	const began = performance.now();
	const end = Math.max(...lanes.map((one) => one.seconds));
	return new Promise((resolve) => {
		const step = () => {
			const seconds = (performance.now() - began) / 1000;
			for (const one of lanes) one.show(seconds);
			if (seconds < end && !signal?.aborted) return requestAnimationFrame(step);
			for (const one of lanes) one.finish();
			return resolve();
		};
		requestAnimationFrame(step);
	});
}

/** The lanes of a race: {plain, speculative}, each a run. */
export const lanesOf = ({ plain, speculative }) => [lane("Plain", plain), lane("Speculative", speculative)];

const HIGHEST = 4; // speed-up that fills the width of a bar

/**
 * The card: {sentence, about: [text, …], tasks: [{name, speedup, low, high, said, note}, …]}. Unknown figures are null.
 */
export function cardOf({ sentence, about, tasks }) {
	const most = Math.max(HIGHEST, ...tasks.map(({ high }) => (Number.isFinite(high) ? high : 0)));
	const share = (value) => `${(100 * Math.min(value, most)) / most}%`;
	const rows = tasks.map(({ name, speedup, low, high, said, note }) => {
		const bar = part("div", "card-bar");
		const one = part("i", "card-one");
		one.style.left = share(1);
		if (Number.isFinite(speedup)) {
			const fill = part("i", "card-fill");
			fill.style.width = share(speedup);
			bar.append(fill);
		}
		if (Number.isFinite(low) && Number.isFinite(high)) {
			const range = part("i", "card-range");
			range.style.left = share(low);
			range.style.width = share(high - low);
			bar.append(range);
		}
		bar.append(one);
		bar.setAttribute("aria-hidden", "true");
		return part("tr", "", part("th", "", name), part("td", "", bar), part("td", "", part("strong", "", said), part("small", "", note)));
	});
	for (const row of rows) row.firstChild.scope = "row";
	const table = part("table", "card-tasks", part("tbody", "", ...rows));
	return part("section", "card", part("p", "card-sentence", sentence), table, ...about.map((text) => part("p", "card-about", text)));
}

/** Fill a shared file. race, card: null for none. */
export function exhibit(root, { about, race, card }) {
	if (card) root.append(cardOf(card));
	if (!race) return;
	const lanes = lanesOf(race);
	const again = part("button", "", "Replay");
	again.type = "button";
	const run = async () => {
		if (again.ariaDisabled === "true") return;
		again.ariaDisabled = "true"; // it keeps the focus
		await replay(lanes);
		again.ariaDisabled = "false";
	};
	again.addEventListener("click", run);
	root.append(
		part("section", "shared-race", part("h2", "", "Race"), part("p", "shared-prompt", race.prompt),
			part("div", "lanes", ...lanes.map((one) => one.element)),
			part("p", "verdict", race.verdict), part("p", "hint", race.details), again),
		...about.map((text) => part("p", "hint", text)),
	);
	run();
}
