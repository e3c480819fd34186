// The menu of models, and the properties of the chosen one.

import { json } from "./api.js";
import { announce, byId, element, pause } from "./dom.js";
import { say } from "./notice.js";

const POLL = 500; // milliseconds between looks at a load

/** props: of the chosen model, null before they are known. changed(): called when they are. */
export class Models {
	props = null;
	problem = ""; // why the chosen model cannot be used, as a sentence
	#listed = [];
	#used = ""; // the model of which props are
	#changed;
	#failed;

	constructor(changed, failed) {
		this.#changed = changed;
		this.#failed = failed;
		byId("model").addEventListener("change", () => this.#choose().catch(this.#failed));
	}

	get name() {
		return byId("model").value;
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
		this.#listed = (await json("/v1/models?known=true")).data;
		const menu = byId("model");
		const chosen = menu.value || this.#listed[0]?.id;
		const options = this.#listed.map(({ id, status }) => {
			const note = { loaded: "", unloaded: " · on disk", loading: " · loading" }[status.value] ?? " · not downloaded";
			return element("option", { value: id, title: status.pull ?? null }, `${id}${note}`);
		});
		menu.replaceChildren(...options);
		menu.value = this.#listed.some(({ id }) => id === chosen) ? chosen : (this.#listed[0]?.id ?? "");
	}

	#status() {
		return this.#listed.find(({ id }) => id === this.name)?.status;
	}

	async #choose() {
		const name = this.name;
		if (this.#status()?.pull) {
			byId("model").value = this.#used;
			return this.#offer(name, this.#listed.find(({ id }) => id === name).status.pull);
		}
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
			return this.#listed.find(({ id }) => id === name)?.status;
		};
		const before = new Set(this.#listed.map(({ id }) => id));
		const use = () => {
			say("");
			const found = this.#listed.find(({ id, status: { pull } }) => !pull && (id === name || !before.has(id)));
			byId("model").value = found?.id ?? name; // on disk it is listed with its file
			byId("model").dispatchEvent(new Event("change"));
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
		this.#used = name;
		this.props = props;
		this.problem = "";
		this.#changed();
	}
}
