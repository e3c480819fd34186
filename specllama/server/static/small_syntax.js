// What models write besides Markdown: line breaks and small tags of HTML without attributes, and footnotes.

const BREAK = /^<br ?\/?>/i;
const TAGS = /^<(sub|sup|kbd)>([^<>\n]{1,200})<\/\1>/i;
const REFERENCE = /^\[\^([^\]\s^]{1,40})\](?!:)/;
const NOTE = /^\[\^([^\]\s^]{1,40})\]:[ \t]+([^\n]*(?:\n(?![ \t]*\n|\[\^)[^\n]+)*)(?:\n+|$)/;

/** Whether a text may have any of these. */
export const mayHaveSmall = (text) => text.includes("<") || text.includes("[^");

/** Whether a block of HTML is nothing but line breaks. */
export const isBreak = (text) => /^(?:\s*<br ?\/?>)+\s*$/i.test(text);

const small = {
	name: "small",
	level: "inline",
	start(text) {
		const at = text.search(/<(?:br|su[bp]|kbd)|\[\^/i);
		return at < 0 ? undefined : at;
	},
	tokenizer(text) {
		const [line] = BREAK.exec(text) ?? [];
		if (line) return { type: "small", raw: line, tag: "br" };
		const [raw, tag, inner] = TAGS.exec(text) ?? [];
		if (raw) return { type: "small", raw, tag: tag.toLowerCase(), tokens: this.lexer.inlineTokens(inner) };
		const [whole, label] = REFERENCE.exec(text) ?? [];
		return whole && { type: "small", raw: whole, tag: "sup", text: label };
	},
};

const note = {
	name: "note",
	level: "block",
	start: (text) => /(?:^|\n)\[\^[^\]\s^]{1,40}\]:[ \t]/.exec(text)?.index,
	tokenizer(text) {
		const [raw, label, inner] = NOTE.exec(text) ?? [];
		return raw && { type: "note", raw, label, tokens: this.lexer.inlineTokens(inner) };
	},
};

export const smallExtensions = [small, note];
