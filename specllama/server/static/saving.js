// Storing a conversation, and what to say where that fails.

import { byId } from "./dom.js";
import { say } from "./notice.js";
import * as store from "./store.js";

const exports = (data) => ({
	"Export this conversation": async () => {
		const { download, exported, fileName } = await import("./transfer.js");
		download(fileName(data, "json"), await exported(data));
	},
});

/** Store what has changed of a conversation. shown: whether it is the one at hand. */
export async function keep(data, shown) {
	try {
		if (!(await store.save(data)) && shown) sayDeleted(data);
		else if (store.whyNotKept() && byId("notice").hidden) say(store.whyNotKept(), exports(data));
	} catch (error) {
		const lost = "What is new here is lost when the page is closed: export it, or delete conversations.";
		say(`${error.message} ${lost}`, exports(data));
	}
}

/** Say that another tab has deleted the conversation that is shown. */
export function sayDeleted(data) {
	say("This conversation has been deleted in another tab.", {
		"Keep it": async () => {
			store.revive(data);
			say("");
			await keep(data, true);
		},
	});
}
