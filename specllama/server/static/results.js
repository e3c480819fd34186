// The race and the card that were last measured on this page, which a shared file holds.

export const results = { race: null, card: null };

/** Save them as one HTML file. */
export async function share() {
	const { saveShared } = await import("./share.js");
	await saveShared(results);
}
