// Starts the page and connects its parts.

import { addressed, moveTo, onMove } from "./address.js";
import { onKeyNeeded, recovered } from "./api.js";
import { setUpAttachments } from "./attach.js";
import { Chat } from "./chat.js";
import { askForKey, setUpDialogs } from "./dialog.js";
import { button, byId, bytes, element } from "./dom.js";
import { Drafts } from "./drafts.js";
import { ConversationList } from "./list.js";
import { blocks, render } from "./markdown.js";
import { Models } from "./models.js";
import { say } from "./notice.js";
import { Panel } from "./panel.js";
import { openRace } from "./race.js";
import { currentSettings, openSettings, setSpeculate } from "./settings.js";
import { openStatus } from "./status.js";
import { migrate } from "./transfer.js";
import * as unfinished from "./unfinished.js";

const WIDE = matchMedia("(min-width: 1200px)");
const MIDDLE = matchMedia("(min-width: 800px)");

setUpDialogs();
onKeyNeeded(askForKey);
const panel = new Panel();
const models = new Models(() => chat.describe(), failed);
const drafts = new Drafts(byId("question"), showDraft);
const chat = new Chat(models, panel, moved);
const list = new ConversationList({
  open(id) {
    chat.open(id).catch(failed);
    if (!MIDDLE.matches) toggle("list", false);
  },
  begin() {
    chat.open().catch(failed);
    if (!MIDDLE.matches) toggle("list", false);
  },
  removed(id) {
    drafts.forget(id);
    chat.removed(id);
  },
  rename: (id, title) => chat.rename(id, title),
  say,
});
chat.list = list;

/** The address and the draft follow the conversation. began: it was a new one, and has a question now. */
function moved(id, began = false) {
  moveTo(id, began);
  if (began) drafts.became(id);
  else drafts.show(id).catch(failed);
}

function failed(error) {
  if (error.name !== "AbortError") say(`${error.message} ${error.todo ?? ""}`);
}

/** Show or hide the list or the panel. */
function toggle(name, shown = byId(name).hidden) {
  byId(name).hidden = !shown;
  byId(`show-${name}`).setAttribute("aria-expanded", String(shown));
}

function send() {
  if (chat.busy || !(byId("question").value.trim() || drafts.files.length)) return;
  const { text, files } = drafts.take();
  grow();
  chat.ask(text, files).catch(failed);
}

/** Show the files of the draft. */
function showDraft() {
  const shown = drafts.files.map((file) => {
    const remove = button("✕", () => drafts.detach(file), { class: "icon", "aria-label": `Remove ${file.name}` });
    return element("li", {}, `${file.name} · ${bytes(new Blob([file.text]).size)}`, remove);
  });
  byId("files").replaceChildren(...shown);
  byId("files").hidden = !shown.length;
  grow();
}

function grow() {
  const area = byId("question");
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight / 3)}px`;
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("question").addEventListener("input", grow);
byId("stop").addEventListener("click", () => chat.stop());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is that of the conversation
  byId("question").focus();
});
setUpAttachments({
  pick: byId("attach"),
  input: byId("attach-file"),
  area: byId("question"),
  zone: document.querySelector("main"),
  add: (file) => drafts.attach(file),
  refused: say,
});
onMove((id) => chat.open(id).catch(failed));
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chat.busy && !document.querySelector("dialog[open]")) chat.stop();
});
byId("show-list").addEventListener("click", () => toggle("list"));
byId("show-panel").addEventListener("click", () => toggle("panel"));
byId("speculate").checked = currentSettings().speculate;
byId("speculate").addEventListener("change", ({ target }) => {
  setSpeculate(target.checked);
  chat.describe();
});
byId("open-settings").addEventListener("click", () => openSettings(models.defaults, chat.data, () => chat.keep()));
byId("open-status").addEventListener("click", () => openStatus(models.name, chat.session));
byId("open-race").addEventListener("click", () => {
  const last = chat.data.messages.findLast(({ role }) => role === "user")?.content;
  const prompt = byId("question").value || last || "Explain what a hash table is, and show one in Python.";
  openRace({ prompt, system: chat.data.system, model: models.name, settings: currentSettings() });
});
const arrange = () => {
  toggle("list", MIDDLE.matches);
  toggle("panel", WIDE.matches);
};
WIDE.addEventListener("change", arrange);
MIDDLE.addEventListener("change", arrange);
arrange();
// The first answer is shown sooner when its code has run before.
(globalThis.requestIdleCallback ?? setTimeout)(() => render(blocks("# a\n\n- `b`\n\n```\nc\n```\n\n|d|\n|-|\n|e|")));

/** Read what the server has; where it does not answer yet, again and again, at longer and longer intervals. */
async function connect() {
  for (let wait = 500; ; wait = Math.min(30_000, 2 * wait)) {
    try {
      await models.refresh();
      say("");
      return;
    } catch (error) {
      failed(error);
      if (!error.retry) return;
      await new Promise((resolve) => setTimeout(resolve, wait));
      await recovered((why) => say(`Waiting for the engine: ${why}.`));
    }
  }
}

/** Have the answers go on that ended when their page was closed. */
async function goOn() {
  for (const one of await unfinished.recovered().catch(() => [])) chat.goOn(one).catch(failed);
}

async function begin() {
  await migrate().catch(failed);
  const open = await unfinished.recovered().catch(() => []);
  await chat.open(addressed());
  await connect();
  for (const one of open) chat.goOn(one).catch(failed);
  unfinished.onUnfinished(goOn);
  await goOn();
}
begin().catch(failed);
