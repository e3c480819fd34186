// Starts the page and connects its parts.

import { addressed, moveTo, onMove } from "./address.js";
import { onKeyNeeded, recovered } from "./api.js";
import { LARGEST, setUpAttachments } from "./attach.js";
import { Chat } from "./chat.js";
import { draftFiles } from "./database.js";
import { askForKey, setUpDialogs } from "./dialog.js";
import { announce, button, byId, bytes, copyText, element, inSentences, keepFocus, onEnter, pause } from "./dom.js";
import { Drafts } from "./drafts.js";
import { setUpExplanations } from "./explain.js";
import { describeImages, imageView, tooManyImages } from "./images.js";
import { closeSide, isNarrow, setUpLayout, toggle } from "./layout.js";
import { ConversationList } from "./list.js";
import { blocks, render } from "./markdown.js";
import { fileItem } from "./message.js";
import { Models } from "./models.js";
import { say, takeBack } from "./notice.js";
import { Panel } from "./panel.js";
import { currentSettings, setSpeculate } from "./settings.js";
import { openShortcuts, setUpShortcuts } from "./shortcuts.js";
import { keys } from "./storage.js";
import { applyTheme } from "./theme.js";
import * as unfinished from "./unfinished.js";

applyTheme();
setUpDialogs();
setUpExplanations();
onKeyNeeded(askForKey);
const gain = async () => {
	const { openCard } = await import("./card.js");
	openCard({ model: models.name, props: models.props });
};
const panel = new Panel(gain);
const models = new Models(described, failed);
const drafts = new Drafts(byId("question"), showDraft);
const chat = new Chat(models, panel, moved);
const list = new ConversationList({
	open(id) {
		chat.open(id).catch(failed);
		if (isNarrow()) toggle("list", false);
	},
	remove: (one) => remove(one).catch(failed),
	rename: (id, title) => chat.rename(id, title),
	say,
});
chat.list = list;

/** The properties of the chosen model are known, or not any more. */
function described() {
	describeImages(models.props);
	chat.describe();
	grow();
}

/** The address and the draft follow the conversation. began: a new one has its first question. replaced: see moveTo. */
function moved(id, began = false, replaced = began) {
	moveTo(id, replaced);
	if (began) drafts.became(id);
	else drafts.show(id).catch(failed);
}

/** Delete a conversation, which can be undone. */
async function remove({ id, title }) {
	const files = await draftFiles(id).catch(() => []);
	const undo = await chat.remove(id);
	const restore = drafts.forget(id, files);
	const back = async () => {
		say("");
		await restore();
		await undo().catch(failed);
	};
	say(`"${title || "Untitled"}" is deleted.`, undo ? { Undo: back } : {});
}

function failed(error) {
	if (error.name !== "AbortError") say(inSentences(error));
}

function send() {
	if (chat.busy || !(byId("question").value.trim() || drafts.files.length) || chat.refuses) return;
	const { text, files } = drafts.take();
	grow();
	chat.ask(text, files).catch(failed);
}

/** Show the files of the draft. */
function showDraft() {
	const shown = drafts.files.map((file) => {
		const drop = () => {
			drafts.detach(file);
			checkFiles();
		};
		const named = () => element("span", {}, `${file.name} · ${bytes(new Blob([file.text]).size)}`);
		return fileItem(file.text === undefined ? imageView(file) : named(), file, drop);
	});
	const files = byId("files");
	const change = () => {
		files.replaceChildren(...shown);
		files.hidden = !shown.length;
	};
	keepFocus(files, change, (item) => item?.querySelector(".icon"));
	grow();
}

let saidOfFiles = "";

/** "": what was said before is taken back. */
function sayOfFiles(text) {
	if (text) say(text);
	else takeBack(saidOfFiles);
	saidOfFiles = text;
}

function checkFiles() {
	const texts = drafts.files.filter(({ text }) => text !== undefined);
	const over = new Blob([JSON.stringify(texts)]).size - LARGEST;
	const images = tooManyImages([...chat.data.messages.filter(({ out }) => !out), drafts]);
	sayOfFiles(over > 0 ? `With the request around them the attached files are ${bytes(over)} too large: a request holds at most ${bytes(LARGEST)}: remove some.` : images);
}

function grow() {
	const area = byId("question");
	area.style.height = "auto";
	area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight / 3)}px`;
	chat.draft({ content: area.value, files: drafts.files });
}

byId("composer").addEventListener("submit", (event) => {
	event.preventDefault();
	send();
});
onEnter(byId("question"), send);
byId("question").addEventListener("input", grow);
byId("stop").addEventListener("click", () => chat.stop());
document.querySelector(".skip").addEventListener("click", (event) => {
	event.preventDefault(); // the address is that of the conversation
	byId("question").focus();
});
setUpAttachments({
	picks: [[byId("attach"), byId("attach-file")], [byId("attach-image"), byId("image-file")]],
	area: byId("question"),
	zone: document.querySelector("main"),
	next: () => 1 + Math.max(0, ...drafts.files.map(({ name }) => Number(/^pasted-(\d+)\.txt$/.exec(name)?.[1] ?? 0))),
	add(file) {
		drafts.attach(file);
		checkFiles();
	},
	said: sayOfFiles,
});
onMove((id) => chat.open(id).catch(failed));
addEventListener("keydown", (event) => {
	if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open], :popover-open") || closeSide()) return;
	if (chat.busy) chat.stop();
	else closeSide({ always: true });
});
byId("speculate").checked = currentSettings().speculate;
byId("speculate").addEventListener("change", ({ target }) => {
	setSpeculate(target.checked);
	chat.describe();
});

function opens(id, open) {
	byId(id).addEventListener("click", () => open().catch(failed));
}

opens("open-settings", async () => {
	const { openSettings } = await import("./settings_dialog.js");
	openSettings(models.props, chat.data, (changed) => chat.keep(changed));
});
opens("open-status", async () => {
	const { openStatus } = await import("./status.js");
	openStatus(models.name, chat.session);
});
opens("open-race", async () => {
	const { openRace } = await import("./race.js");
	const last = chat.data.messages.findLast(({ role }) => role === "user")?.content;
	const prompt = byId("question").value || last || "Explain what a hash table is, and show one in Python.";
	openRace({ prompt, system: chat.data.system, model: models.name, settings: currentSettings(), props: models.props });
});
setUpLayout();
setUpShortcuts({
	begin: () => chat.open().catch(failed),
	search() {
		toggle("list", true);
		byId("search").select();
	},
	list: () => toggle("list"),
	async copy() {
		const text = chat.lastAnswer;
		if (text) announce((await copyText(text)) ? "The answer is copied." : "The browser does not allow copying.");
	},
});
byId("open-shortcuts").addEventListener("click", openShortcuts);
const later = globalThis.requestIdleCallback ?? setTimeout;
later(async () => (await import("./intro.js")).setUpIntro(gain));
// Warm up: the first answer is shown sooner.
later(() => {
	render(blocks("# a\n\n- `b`\n\n```\nc\n```\n\n|d|\n|-|\n|e|"));
	// Views work even if the server is gone.
	for (const name of ["settings_dialog", "status", "race", "transfer", "leaveout", "picker"]) import(`./${name}.js`).catch(() => {});
});

/** Read what the server has, trying again at longer and longer intervals. */
async function connect() {
	let waited = false;
	for (let wait = 500; ; wait = Math.min(30_000, 2 * wait)) {
		try {
			await models.refresh();
			if (waited) say("");
			return;
		} catch (error) {
			waited = true;
			failed(error);
			if (!error.retry) return;
			await pause(wait);
			await recovered((why) => say(`Waiting for the engine: ${why}.`));
		}
	}
}

/** Continue answers whose page was closed. */
async function goOn() {
	for (const one of await unfinished.recovered().catch(() => [])) chat.goOn(one).catch(failed);
}

async function begin() {
	if (keys("specllama.conversation.").length) await (await import("./transfer.js")).migrate().catch(failed);
	const open = await unfinished.recovered().catch(() => []);
	await chat.open(addressed());
	await connect();
	for (const one of open) chat.goOn(one).catch(failed);
	unfinished.onUnfinished(goOn);
	await goOn();
}
begin().catch(failed);
