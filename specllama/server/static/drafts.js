// What is typed and attached and not sent yet, kept for each conversation.

import { draftFiles, keepDraftFiles } from "./database.js";
import { read, write } from "./storage.js";

const PREFIX = "specllama.draft.";
const NEW = "new"; // of the conversation that has no question yet
const PAUSE = 300; // milliseconds after a key

export class Drafts {
  files = []; // [{name, text}]
  #id = null;
  #area;
  #changed;
  #timer = 0;

  /** area: where one types. changed(): called when another draft is shown, or its files change. */
  constructor(area, changed) {
    this.#area = area;
    this.#changed = changed;
    area.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.keep(), PAUSE);
    });
    addEventListener("pagehide", () => this.keep());
  }

  /** Show the draft of a conversation, "" for a new one. */
  async show(id) {
    const next = id || NEW;
    if (next === this.#id) return;
    const first = this.#id === null;
    this.keep();
    this.#id = next;
    const typed = first ? this.#area.value : ""; // before the page was ready
    this.#area.value = typed || (read(PREFIX + next) ?? "");
    this.files = [];
    this.#changed();
    const files = await draftFiles(next).catch(() => []);
    if (this.#id !== next || !files.length) return;
    this.files = [...files, ...this.files];
    this.#changed();
  }

  /** Keep the text as it is. */
  keep() {
    clearTimeout(this.#timer);
    if (this.#id !== null) write(PREFIX + this.#id, this.#area.value || null);
  }

  attach(file) {
    this.files.push(file);
    this.#filesChanged();
  }

  detach(file) {
    this.files = this.files.filter((one) => one !== file);
    this.#filesChanged();
  }

  #filesChanged() {
    this.#changed();
    keepDraftFiles(this.#id ?? NEW, this.files).catch(() => {}); // they are there until the page is closed
  }

  /** Take the draft, to send it: {text, files}. */
  take() {
    const found = { text: this.#area.value, files: this.files };
    this.#area.value = "";
    this.files = [];
    this.keep();
    this.#filesChanged();
    return found;
  }

  /** Move what is typed to the conversation that the draft has begun. */
  became(id) {
    this.keep();
    const text = this.#area.value;
    write(PREFIX + (this.#id ?? NEW), null);
    this.#id = id || NEW;
    if (text) this.keep();
  }

  /** Forget the draft of a conversation that is deleted. */
  forget(id) {
    write(PREFIX + id, null);
    keepDraftFiles(id, []).catch(() => {});
  }
}
