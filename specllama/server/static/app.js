// Starts the page and connects its parts.

import { onKeyNeeded, recovered } from "./api.js";
import { Chat } from "./chat.js";
import { askForKey, setUpDialogs } from "./dialog.js";
import { byId } from "./dom.js";
import { setUpExplanations } from "./explain.js";
import { ConversationList } from "./list.js";
import { blocks, render } from "./markdown.js";
import { Models } from "./models.js";
import { say } from "./notice.js";
import { Panel } from "./panel.js";
import { currentSettings, openSettings, setSpeculate } from "./settings.js";
import { openStatus } from "./status.js";

const WIDE = matchMedia("(min-width: 1200px)");
const MIDDLE = matchMedia("(min-width: 800px)");

setUpDialogs();
setUpExplanations();
onKeyNeeded(askForKey);
const gain = async () => {
  const { openCard } = await import("./card.js");
  openCard({ model: models.name, props: models.props });
};
const panel = new Panel(gain);
const models = new Models(() => chat.describe(), failed);
const chat = new Chat(models, panel);
const list = new ConversationList({
  open(id) {
    chat.open(id);
    if (!MIDDLE.matches) toggle("list", false);
  },
  begin() {
    chat.open();
    if (!MIDDLE.matches) toggle("list", false);
  },
  removed: (id) => id === chat.data.id && chat.open(),
  say,
});
chat.list = list;

function failed(error) {
  if (error.name !== "AbortError") say(`${error.message} ${error.todo ?? ""}`);
}

/** Show or hide the list or the panel. */
function toggle(name, shown = byId(name).hidden) {
  byId(name).hidden = !shown;
  byId(`show-${name}`).setAttribute("aria-expanded", String(shown));
}

function send() {
  const area = byId("question");
  const text = area.value;
  if (chat.busy || !text.trim()) return;
  area.value = "";
  grow();
  chat.ask(text).catch(failed);
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
byId("open-race").addEventListener("click", async () => {
  const { openRace } = await import("./race.js");
  const last = chat.data.messages.findLast(({ role }) => role === "user")?.content;
  const prompt = byId("question").value || last || "Explain what a hash table is, and show one in Python.";
  openRace({ prompt, system: chat.data.system, model: models.name, settings: currentSettings(), props: models.props });
});
const arrange = () => {
  toggle("list", MIDDLE.matches);
  toggle("panel", WIDE.matches);
};
WIDE.addEventListener("change", arrange);
MIDDLE.addEventListener("change", arrange);
arrange();
chat.open();
(globalThis.requestIdleCallback ?? setTimeout)(async () => (await import("./intro.js")).setUpIntro(gain));
// The first answer is shown sooner when its code has run before.
(globalThis.requestIdleCallback ?? setTimeout)(() => render(blocks("# a\n\n- `b`\n\n```\nc\n```\n\n|d|\n|-|\n|e|")));

/** Read what the server has; where it does not answer yet, again and again. */
async function begin() {
  for (;;) {
    try {
      await models.refresh();
      say("");
      return;
    } catch (error) {
      failed(error);
      if (!error.retry) return;
      await recovered((why) => say(`Waiting for the engine: ${why}.`));
    }
  }
}
begin();
