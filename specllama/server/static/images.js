// Images as attachments: what is read of a file, how it is shown, kept in a file, and sent. An image is a file of a
// message, {name, image}: a Blob, null for one that is not kept any more.

import { openDialog } from "./dialog.js";
import { bytes, button, byId, element, whole } from "./dom.js";

const MOST = 100; // of a request
const PIXELS = 20_000_000; // of an image; the server takes no larger one
const LARGEST = 20 * 2 ** 20; // bytes of an image
const TOGETHER = 31_000_000; // bytes of all in a request, in base64
const SENT = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"]; // as they are
const DATA = /^data:(image\/[a-z0-9.+-]{1,40});base64,([A-Za-z0-9+/=]+)$/;

let reads = false; // whether the chosen model reads images

/** props: of the chosen model, null before they are known. */
export function describeImages(props) {
	reads = props?.modalities?.vision === true;
	byId("attach-image").hidden = !reads;
	document.body.classList.toggle("reads-images", reads);
}

/** An image of a file as {image, note}; note: what was changed, as a sentence, "" for nothing. Throws Error with why not. */
export async function readImage(file, name) {
	if (!reads) throw new Error("the chosen model reads no images");
	const bitmap = await createImageBitmap(file).catch(() => null);
	if (!bitmap) throw new Error("this browser cannot read it as an image: save it as PNG or JPEG, and attach that");
	const [width, height] = [bitmap.width, bitmap.height];
	const share = Math.min(1, Math.sqrt(PIXELS / (width * height)));
	let [image, note] = [file, ""];
	if (share < 1 || !SENT.includes(file.type)) {
		const canvas = new OffscreenCanvas(Math.max(1, Math.floor(share * width)), Math.max(1, Math.floor(share * height)));
		canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
		image = await canvas.convertToBlob({ type: "image/webp", quality: 0.95 });
		const size = `${whole(canvas.width)} × ${whole(canvas.height)}`;
		if (share < 1) note = `${name} has ${whole(width)} × ${whole(height)} pixels, and the most is 20 million: it is sent as ${size}.`;
	}
	bitmap.close();
	if (image.size > LARGEST) throw new Error(`it has ${bytes(image.size)}, and the most is ${bytes(LARGEST)}`);
	return { image, note };
}

const isImage = (file) => "image" in file;
const imagesOf = (messages) => messages.flatMap(({ files = [] }) => files.filter(({ image }) => image));

/** What is wrong with the images of a request, as a sentence; "" for nothing. messages: all that is sent. */
export function tooManyImages(messages) {
	const all = reads ? imagesOf(messages) : [];
	const size = all.reduce((sum, { image }) => sum + Math.ceil(image.size / 3) * 4, 0);
	const what = "Remove some, delete earlier messages, or begin a new conversation.";
	if (all.length > MOST) return `With these images the conversation has ${all.length}, and a request holds at most ${MOST}. ${what}`;
	if (size > TOGETHER) return `The images of the conversation have ${bytes(size)} in a request, which holds at most ${bytes(TOGETHER)}. ${what}`;
	return "";
}

/** A small view of an image, which opens a large one. */
export function imageView({ name, image }) {
	if (!image) return element("span", {}, `${name} · the image is not kept any more`);
	const open = () => openDialog(name, [shown(image, name)], { wide: true });
	const small = button("", open, { class: "thumbnail", title: name, "aria-label": `Show ${name} larger` });
	small.append(shown(image, ""));
	return small;
}

function shown(image, alt) {
	const url = URL.createObjectURL(image);
	const forget = () => URL.revokeObjectURL(url);
	return element("img", { src: url, alt, on: { load: forget, error: forget } });
}

/** The sentence below a question whose images are not sent; the style sheet shows it with a model that reads none. */
export const unsentNote = (files) =>
	files.some(isImage) ? element("p", { class: "hint unsent" }, "The chosen model reads no images: they are not sent.") : null;

/** The content of a message: its text, after its images where the model reads them and there are any. */
export function contentOf(text, files) {
	const all = imagesOf([{ files }]);
	if (!reads || !all.length) return text;
	const parts = all.map(({ image }) => ({ type: "image_url", image_url: { url: image } }));
	return text ? [...parts, { type: "text", text }] : parts;
}

/** Messages of `contentOf` as the server gets them. */
export function encoded(messages) {
	const part = async (one) => (one.image_url ? { ...one, image_url: { url: await toUrl(one.image_url.url) } } : one);
	const message = async (one) => (Array.isArray(one.content) ? { ...one, content: await Promise.all(one.content.map(part)) } : one);
	return Promise.all(messages.map(message));
}

/** An image as a data URL. */
export const toUrl = (image) =>
	new Promise((resolve, reject) => {
		const reader = new FileReader();
		reader.onload = () => resolve(reader.result);
		reader.onerror = () => reject(reader.error);
		reader.readAsDataURL(image);
	});

/** The image of a stored file or of a file of Export; null where there is none. */
export function imageOf(data) {
	if (data instanceof Blob) return SENT.includes(data.type) ? data : null;
	const [, type, text] = (typeof data === "string" && DATA.exec(data)) || [];
	if (!SENT.includes(type)) return null;
	try {
		return new Blob([Uint8Array.from(atob(text), (character) => character.charCodeAt(0))], { type });
	} catch {
		return null;
	}
}

/** A file without its image, for stores of text. */
export const withoutImage = (file) => (isImage(file) ? { ...file, image: null } : file);
