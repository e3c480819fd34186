// Downloading a known model: the server does it, by the name of its own list, and the page shows how far it is.

import { json } from "./api.js";
import { bytes, copyText, pause } from "./dom.js";
import { say } from "./notice.js";

const POLL = 1000; // milliseconds between looks at the list

/**
 * Offer to download a model. status(): reads the list and returns the model's status, undefined where it has gone.
 * use(): called when it is there and somebody wants it.
 */
export async function offerPull(name, command, { status, use }) {
	const copy = { "Copy the command": () => copyText(command) };
	const start = async () => {
		try {
			await json("/models/pull", { body: { model: name } });
		} catch (error) {
			say(`${error.message} This command downloads it: ${command}`, copy);
			return;
		}
		await follow();
	};
	const follow = async () => {
		const stop = () => json("/models/pull/stop", { body: { model: name } }).catch((error) => say(error.message));
		for (;;) {
			const found = await status().catch(() => ({ pull: command }));
			if (!found?.pull) break;
			const { done, total, error, running } = found.download ?? { running: true };
			if (!running && error) return say(`${name} is not downloaded: ${error}`, { "Try again": start, ...copy });
			say(`Downloading ${name}${total ? `: ${bytes(done)} of ${bytes(total)}` : "…"}`, { "Stop the download": stop });
			await pause(POLL);
		}
		return say(`${name} is on this disk now.`, { "Use it": use });
	};
	const found = await status();
	if (found?.download?.running) await follow();
	else say(`${name} is not on this disk.`, { "Download it": start, ...copy });
}
