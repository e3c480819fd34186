// The state of the server: models, slots, queue, memory, device.

import { json, request } from "./api.js";
import { openDialog } from "./dialog.js";
import { bytes, counted, element, inSentences, keepFocus, numeral, pause, percent, region, whole } from "./dom.js";
import { term } from "./explain.js";
import { deviceInWords, draftNames, inWords } from "./panel.js";

const EVERY = 2000; // milliseconds between two looks

/** Open the view. model: its name; session: {near_ties, answers} of this page. */
export function openStatus(model, session) {
	const place = element("div", { class: "status" }, element("p", {}, "Asking the server…"));
	let open = true;
	openDialog("Status", [place], {
		closed: () => {
			open = false;
		},
	});
	const look = async () => {
		while (open) {
			try {
				const found = await gathered(model);
				keepFocus(place, () => show(place, found, rowsOf(found, session)));
			} catch (error) {
				place.replaceChildren(element("p", { class: "bad", role: "alert" }, inSentences(error)));
			}
			await pause(EVERY);
		}
	};
	return look();
}

async function gathered(model) {
	const query = `?model=${encodeURIComponent(model)}`;
	const [props, slots, metrics] = await Promise.all([
		json(`/props${query}`),
		json(`/slots${query}`),
		request(`/metrics${query}`).then((response) => response.text()),
	]);
	return { props, slots, metrics: parsed(metrics) };
}

/** The values of a text in Prometheus' format, by name; those with several labels are added up. */
function parsed(text) {
	const found = new Map();
	for (const line of text.split("\n")) {
		const match = /^(\w+)(?:\{[^}]*\})? (\S+)$/.exec(line);
		if (match) found.set(match[1], (found.get(match[1]) ?? 0) + Number(match[2]));
	}
	return found;
}

/** Show the facts; where they have the same names as before, their elements stay. */
function show(place, found, rows) {
	const values = [...place.querySelectorAll(":scope > .facts > dd")];
	const names = [...place.querySelectorAll(":scope > .facts > dt")].map((dt) => dt.textContent);
	if (names.join("\n") !== rows.map(([name]) => name).join("\n")) {
		const facts = rows.flatMap(([name, value, explanation]) => [
			element("dt", {}, explanation ? term(name, explanation) : name), element("dd", {}, value),
		]);
		place.replaceChildren(element("dl", { class: "facts" }, ...facts), slotTable(found.slots));
		return;
	}
	rows.forEach(([, value], i) => {
		if (values[i].textContent !== value) values[i].textContent = value;
	});
	place.lastElementChild.replaceWith(slotTable(found.slots));
}

/** The facts as [name, text, name of its explanation]. */
function rowsOf({ props, slots, metrics }, session) {
	const { target, machine } = props;
	const busy = slots.filter((slot) => slot.is_processing).length;
	const kv = metrics.get("specllama_kv_used_ratio");
	const of = (name) => metrics.get(`specllama_${name}`) ?? 0;
	const restarts = of("engine_restarts");
	const drafted = of("draft_tokens_total");
	const took = of("compared_decode_seconds_total");
	return [
		["Version", props.build_info],
		["Model", `${target.name} ${target.quant}, ${numeral(target.n_params / 1e6)} million weights`],
		["Draft", drafters(props)],
		["Speculation", inWords(props, true)],
		["Slots", `${busy} of ${slots.length} busy, ${whole(of("texts_waiting"))} waiting`, "slots"],
		["Context", `${whole(props.default_generation_settings.n_ctx)} tokens for all slots${kv === undefined ? "" : `, ${percent(kv)} in use`}`, "context"],
		["Memory", memory(machine)],
		["Device", deviceInWords(machine)],
		["Since the start", `${counted(of("texts_total"), "text")}, ${counted(of("generation_tokens_total"), "token")}, ${drafted ? `${percent(of("draft_tokens_accepted_total") / drafted)} of ${counted(drafted, "draft token")} accepted` : "nothing drafted"}${restarts ? `, the engine was restarted ${counted(restarts, "time")}` : ""}`],
		["Gain", took > 0 ? `${(of("compared_plain_seconds_total") / took).toFixed(2)} × plain decoding, over ${numeral(took)} s of decoding whose gain is known` : "not known yet", "total"],
		["Near-ties", `${whole(session.near_ties)} in ${counted(session.answers, "answer")} of this page: tokens chosen by less than the rounding error of a wide decode`, "ties"],
		...props.notes.map((note) => ["Note", note]),
	];
}

function drafters(props) {
	const { drafters: words, vocabulary, memory: remembers } = props.speculation;
	const names = draftNames(props, vocabulary ? ` (vocabulary ${vocabulary})` : "");
	const parts = [...names, ...words.filter((word) => word !== "model")];
	if (remembers) parts.push("memory of earlier answers");
	return parts.join(", ") || "none";
}

function memory({ host_bytes: host, device_bytes: gpu }) {
	return gpu ? `${bytes(host)} of the machine, ${bytes(gpu)} of its GPUs` : `${bytes(host)}`;
}

function slotTable(slots) {
	const rows = slots.map((slot) => {
		const token = slot.next_token?.[0];
		const cells = [
			slot.id,
			slot.is_processing ? "busy" : "idle",
			numeral(slot.n_past || null),
			numeral(token?.n_decoded),
			slot.draft_n === undefined ? "–" : `${numeral(slot.draft_n_accepted)} of ${numeral(slot.draft_n)}`,
		];
		return element("tr", {}, ...cells.map((cell) => element("td", {}, String(cell))));
	});
	const head = ["Slot", "State", "Tokens in cache", "Written", "Draft tokens accepted"];
	return element(
		"div",
		{ class: "scroll", ...region("Slots") },
		element(
			"table",
			{},
			element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
			element("tbody", {}, ...rows),
		),
	);
}
