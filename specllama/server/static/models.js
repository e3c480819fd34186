// The menu of models, and the properties of the chosen one.

import { json } from "./api.js";
import { announce, byId, pause } from "./dom.js";
import { say } from "./notice.js";

const POLL = 500; // milliseconds between looks at a load

/** props: of the chosen model, null before they are known. changed(): called when they are. */
export class Models {
	props = null;
	problem = ""; // why the chosen model cannot be used, as a sentence
	name = ""; // of the chosen one
	#listed = [];
	#picker = null; // of picker.js, once the menu has been opened
	#changed;
	#failed;

	constructor(changed, failed) {
		this.#changed = changed;
		this.#failed = failed;
		byId("models").addEventListener("toggle", ({ newState }) => {
			byId("model").setAttribute("aria-expanded", String(newState === "open"));
			if (newState === "open") this.#open().catch(failed);
		});
	}

	/** Use a model, or offer to download it. */
	choose(name) {
		return this.#choose(name).catch(this.#failed);
	}

	get contextLength() {
		return this.props?.default_generation_settings.n_ctx ?? 0;
	}

	get defaults() {
		return this.props?.default_generation_settings.params ?? {};
	}

	/** Read the list and, while the model is being loaded, wait for it. */
	async refresh() {
		await this.#list();
		await this.#follow(() => this.#status()?.value === "loading");
		await this.#describe();
	}

	/** Read again what changes, such as measured times. */
	async update() {
		if (this.#status()?.value === "loaded") await this.#describe();
	}

	async #list() {
		this.#listed = (await json("/v1/models?known=true")).data.filter(({ meta }) => !meta?.embeds); // they write no texts
		this.#show(this.#status() ? this.name : (this.#listed[0]?.id ?? ""));
	}

	#show(name) {
		this.name = name;
		byId("model-name").textContent = name;
		byId("model").title = name;
		if (byId("models").matches(":popover-open")) this.#picker?.show(this.#listed, name);
	}

	async #open() {
		const { Picker } = await import("./picker.js");
		this.#picker ??= new Picker((name) => this.choose(name));
		this.#picker.open(this.#listed, this.name);
		await this.#list();
	}

	#status(name = this.name) {
		return this.#listed.find(({ id }) => id === name)?.status;
	}

	async #choose(name) {
		const { pull } = this.#status(name) ?? {};
		if (pull) return this.#offer(name, pull);
		this.#show(name);
		this.#forget("");
		try {
			await this.#load(name);
			await this.#describe();
		} catch (error) {
			if (name === this.name) this.#forget(`${name} cannot be used. ${error.message}`);
			await this.#list().catch(() => {});
			throw error;
		}
		return undefined;
	}

	async #offer(name, command) {
		const status = async () => {
			await this.#list();
			return this.#status(name);
		};
		const before = new Set(this.#listed.map(({ id }) => id));
		const use = () => {
			say("");
			const found = this.#listed.find(({ id, status: { pull } }) => !pull && (id === name || !before.has(id)));
			this.choose(found?.id ?? name); // on disk it is listed with its file
		};
		const { offerPull } = await import("./pulls.js");
		await offerPull(name, command, { status, use });
	}

	/** Show nothing of the model before. problem: why the chosen one cannot be used. */
	#forget(problem) {
		this.props = null;
		this.problem = problem;
		this.#changed();
	}

	async #load(name) {
		if (this.#status()?.value === "unloaded") {
			announce(`Loading ${name}`);
			let open = true;
			const load = json("/models/load", { body: { model: name } }).finally(() => {
				open = false;
			});
			await Promise.all([load, this.#follow(() => open)]).finally(() => {
				byId("loading").hidden = true;
			});
			await this.#list();
			announce(`${name} is in memory`);
		}
	}

	/** Show the progress of a load while `loading` says that there is one. */
	async #follow(loading) {
		const bar = byId("loading");
		while (loading()) {
			bar.hidden = false;
			const { progress } = this.#status() ?? {};
			if (progress === undefined) bar.removeAttribute("value");
			else bar.value = progress;
			await pause(POLL);
			await this.#list();
		}
		bar.hidden = true;
	}

	async #describe() {
		const name = this.name;
		const props = await json(`/props?model=${encodeURIComponent(name)}`);
		if (name !== this.name) return;
		this.props = props;
		this.problem = "";
		this.#changed();
	}
}
