// When an answer is drawn while it arrives: its first text at once, the rest in frames that leave most of the processor's
// time to the model.

const SHORTEST = 30; // milliseconds between two drawings
const LONGEST = 250;
const REST = 4; // after a drawing, in times of its duration
const HIDDEN = 200; // milliseconds between two drawings that nobody sees

export class Pace {
	#draw;
	#asked = false;
	#began = null; // when the last drawing began; null before the first one
	#cost = 0; // milliseconds of a drawing with layout and painting, as a running mean
	#after = new MessageChannel(); // its messages arrive after the frame

	/** draw(): shows what there is. */
	constructor(draw) {
		this.#draw = draw;
		this.#after.port1.onmessage = () => {
			const cost = performance.now() - this.#began;
			this.#cost = this.#cost ? (3 * this.#cost + cost) / 4 : cost;
		};
	}

	ask() {
		if (this.#asked) return;
		if (this.#began === null) {
			this.#began = performance.now();
			this.#draw();
			return;
		}
		this.#asked = true;
		if (document.hidden) {
			setTimeout(() => this.#show(), HIDDEN);
			return;
		}
		const interval = Math.min(LONGEST, Math.max(SHORTEST, (1 + REST) * this.#cost));
		const wait = this.#began + interval - performance.now();
		setTimeout(() => requestAnimationFrame(() => this.#show()), Math.max(0, wait));
	}

	end() {
		this.#draw = () => {};
		this.#after.port1.close();
	}

	#show() {
		this.#asked = false;
		this.#began = performance.now();
		this.#draw();
		this.#after.port2.postMessage(null);
	}
}
