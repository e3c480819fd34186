// The list of conversations: choosing, deleting, export and import.

import { byId, button, element } from "./dom.js";
import * as store from "./store.js";

/** actions: {open(id), begin(), removed(id), say(text)}. */
export class ConversationList {
  #actions;
  #open = "";

  constructor(actions) {
    this.#actions = actions;
    byId("new").addEventListener("click", () => actions.begin());
    byId("export").addEventListener("click", download);
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", () => this.#import());
  }

  /** Show the list. open: id of the conversation that is shown. */
  show(open) {
    this.#open = open;
    const found = store.titles().map((one) => {
      const current = one.id === open;
      const name = one.title || "Untitled";
      const choose = button(name, () => this.#actions.open(one.id), { class: "choose", title: name });
      if (current) choose.setAttribute("aria-current", "true");
      const gone = button("✕", () => this.#remove(one), { class: "icon", "aria-label": `Delete ${name}` });
      return element("li", {}, choose, gone);
    });
    byId("conversations").replaceChildren(...found);
  }

  #remove(one) {
    if (!confirm(`Delete "${one.title || "Untitled"}"? It is kept in this browser only.`)) return;
    store.remove(one.id);
    this.#actions.removed(one.id);
    this.show(this.#open);
  }

  async #import() {
    const input = byId("import-file");
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    try {
      const n = store.imported(await file.text());
      this.#actions.say(`${n} ${n === 1 ? "conversation" : "conversations"} imported.`);
    } catch (error) {
      this.#actions.say(error.message);
    }
    this.show(this.#open);
  }
}

function download() {
  const url = URL.createObjectURL(new Blob([store.exported()], { type: "application/json" }));
  const link = element("a", { href: url, download: "specllama-conversations.json" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
