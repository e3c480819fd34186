// The dialog of the views, and the one that asks for the key.

import { byId } from "./dom.js";

let onClose = () => {};

/** Show nodes under a title. closed(): called when it has been closed. */
export function openDialog(title, nodes, { wide = false, closed = () => {} } = {}) {
	const dialog = byId("dialog");
	if (dialog.open) dialog.close();
	onClose = closed;
	dialog.classList.toggle("wide", wide);
	byId("dialog-title").textContent = title;
	byId("dialog-body").replaceChildren(...nodes);
	dialog.showModal();
}

export const closeDialog = () => byId("dialog").close();

/** Connect the buttons that close the dialog. */
export function setUpDialogs() {
	byId("dialog-close").addEventListener("click", closeDialog);
	byId("dialog").addEventListener("close", () => {
		const closed = onClose;
		onClose = () => {};
		closed();
	});
	byId("key-dialog").addEventListener("cancel", (event) => event.preventDefault());
}

/** Ask for the key until one is typed. wrong: whether the last one was refused. */
export function askForKey(wrong) {
	const dialog = byId("key-dialog");
	byId("key-wrong").hidden = !wrong;
	byId("key").value = "";
	dialog.showModal();
	byId("key").focus();
	return new Promise((resolve) => {
		dialog.addEventListener("close", () => resolve(byId("key").value.replace(/\p{Cc}/gu, "").trim()), { once: true });
	});
}
