// The address of the shown conversation, after the "#".

const ADDRESS = /^#\/([a-z0-9]{1,40})$/;

/** The id in the address, "" without one. */
export const addressed = () => ADDRESS.exec(location.hash)?.[1] ?? "";

/** Set the address of a conversation, "" for a new one. replaced: replaces the one before. */
export function moveTo(id, replaced = false) {
	if (addressed() === id && (id || !location.hash)) return;
	replaced ||= location.hash && !addressed(); // going back to an address that is none would lead here again
	const address = id ? `#/${id}` : location.pathname + location.search;
	history[replaced ? "replaceState" : "pushState"](null, "", address);
}

/** Call `open(id)` when the address changes. */
export function onMove(open) {
	addEventListener("popstate", () => open(addressed()));
}
