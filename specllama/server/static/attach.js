// Text files and images as attachments.

import { bytes } from "./dom.js";
import { readImage } from "./images.js";

export const LARGEST = 4 * 2 ** 20; // bytes of a request
const LONG = 4000; // characters from which on a pasted text becomes a file
const CONTROLS = /[\0-\b\v\x0e-\x1a\x1c-\x1f]/;

/** A file as {name, text}, or as {name, image, note}: see images.js. Throws Error with a sentence. */
export async function readFile(file) {
	const name = file.name.normalize("NFC").replace(/[\p{C}/\\]+/gu, " ").trim().slice(0, 120) || "file";
	const refusal = (why) => new Error(`${name} is not attached: ${why}.`);
	if (/^(audio|video)\//.test(file.type)) throw refusal("models get text and images only, no sound and no video");
	if (/^image\/(?!svg)/.test(file.type)) {
		try {
			return { name, ...(await readImage(file, name)) };
		} catch (error) {
			throw refusal(error.message);
		}
	}
	if (file.type === "application/pdf" || /\.pdf$/i.test(name)) throw refusal("PDF files are not read. Copy their text and paste it");
	if (file.size > LARGEST) throw refusal(`it has ${bytes(file.size)}, and the most is ${bytes(LARGEST)}`);
	const data = new Uint8Array(await file.arrayBuffer());
	const text = decoded(data);
	if (text === null) throw refusal("it is not a text file");
	if (!text.trim()) throw refusal("it is empty");
	return { name, text };
}

/** The text of a file in UTF-8, UTF-16 with its mark, or Windows-1252; null for none. */
function decoded(data) {
	const mark = data[0] === 0xff && data[1] === 0xfe ? "utf-16le" : data[0] === 0xfe && data[1] === 0xff ? "utf-16be" : "";
	for (const encoding of mark ? [mark] : ["utf-8", "windows-1252"]) {
		try {
			const text = new TextDecoder(encoding, { fatal: true }).decode(data);
			return CONTROLS.test(text) ? null : text.replaceAll("\r\n", "\n");
		} catch {
			// the next one
		}
	}
	return null;
}

/**
 * Take files from buttons, dropped on `zone`, or pasted into `area`. picks: [button, field of files]; add(file), next():
 * the number of a pasted text; said(sentences): of files that are refused or changed.
 */
export function setUpAttachments({ picks, area, zone, add, next, said }) {
	const take = async (files) => {
		const problems = [];
		for (const file of files) {
			try {
				const { note, ...read } = await readFile(file);
				add(read);
				if (note) problems.push(note);
			} catch (error) {
				problems.push(error.message);
			}
		}
		if (problems.length) said(problems.join(" "));
	};
	for (const [pick, input] of picks) {
		pick.addEventListener("click", () => input.click());
		input.addEventListener("change", () => {
			const files = [...input.files];
			input.value = "";
			take(files);
		});
	}
	const carries = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
	zone.addEventListener("dragover", (event) => {
		if (!carries(event)) return;
		event.preventDefault();
		zone.classList.add("dropping");
	});
	zone.addEventListener("dragleave", (event) => {
		if (!zone.contains(event.relatedTarget)) zone.classList.remove("dropping");
	});
	zone.addEventListener("drop", (event) => {
		if (!carries(event)) return;
		event.preventDefault();
		zone.classList.remove("dropping");
		take(event.dataTransfer.files);
	});
	for (const name of ["dragover", "drop"]) {
		addEventListener(name, (event) => carries(event) && event.preventDefault()); // or the browser opens the file
	}
	area.addEventListener("paste", (event) => {
		const files = [...(event.clipboardData?.files ?? [])];
		const text = event.clipboardData?.getData("text/plain") ?? "";
		if (files.length && !text) {
			event.preventDefault();
			take(files);
		} else if (text.length >= LONG) {
			event.preventDefault();
			add({ name: `pasted-${next()}.txt`, text: text.replaceAll("\r\n", "\n") });
		}
	});
}
