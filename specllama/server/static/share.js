// A race and a card as one HTML file, which loads nothing and runs exhibit.js alone; what a model wrote is data in it.

import { say } from "./notice.js";
import { aboutServer } from "./race.js";
import { download } from "./transfer.js";

const BASE = `
*, *::before, *::after { box-sizing: border-box; }
body { max-width: 72rem; margin: 0 auto; padding: 1rem; background: var(--bg); color: var(--fg); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; }
.hint { color: var(--dim); font-size: 0.85rem; }
button { min-height: 2.25rem; padding: 0.2rem 0.75rem; border: 1px solid var(--rule); border-radius: 0.5rem; background: var(--raised); color: inherit; font: inherit; }
[data-source] { background: var(--other); } [data-source="target"] { background: none; }
[data-source="model"] { background: var(--model); } [data-source="head"] { background: var(--head); } [data-source="copy"] { background: var(--copy); }
[data-source="memory"] { background: var(--memory); } [data-source="grammar"] { background: var(--grammar); }
`;
const INVALID = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** JSON that no HTML parser reads as anything but the text of its element. */
const embedded = (data) =>
	JSON.stringify(data).replace(/[<>&\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

const escaped = (text) => text.replace(/[<>&"']/g, (c) => `&#${c.charCodeAt(0)};`);

const random = () => btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(18))));

/** What a run shows, and nothing else. */
const shownRun = ({ parts, times, seconds }) => ({ parts, times, seconds });

/** The file. code: of exhibit.js; style: exhibit.css; results: as in results.js. */
export function sharedFile(code, style, { race, card }) {
	const nonce = random();
	const shown = race && {
		prompt: race.prompt, verdict: race.verdict, details: race.details,
		plain: shownRun(race.plain), speculative: shownRun(race.speculative),
	};
	const about = race ? aboutServer(race.props, race.model, race.settings) : [];
	const title = `specllama: ${[race && "race", card && "what drafts gain"].filter(Boolean).join(" and ")}`;
	const policy = `default-src 'none'; style-src 'nonce-${nonce}'; script-src 'nonce-${nonce}'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'`;
	const script = code.replace(/^export /gm, "");
	const text = `<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<title>${escaped(title)}</title>
<style nonce="${nonce}">${BASE}${style}</style></head>
<body><h1>${escaped(title)}</h1><main></main>
<noscript><p>This file shows its figures with JavaScript.</p></noscript>
<script type="application/json" id="data">${embedded({ about, race: shown, card })}</script>
<script nonce="${nonce}">
${script}
exhibit(document.querySelector("main"), JSON.parse(document.getElementById("data").textContent));
</script></body></html>
`;
	return text.replace(INVALID, "\ufffd");
}

const textOf = async (name) => (await fetch(new URL(name, import.meta.url))).text();

/** Save what was measured on this page as a file. */
export async function saveShared(results) {
	try {
		const names = ["exhibit.js", "exhibit.css", "style.css"];
		const [code, style, page] = await Promise.all(names.map(textOf));
		const [colours] = page.match(/^:root \{.*?^\}/ms);
		const name = `specllama-${new Date().toISOString().slice(0, 10)}.html`;
		download(name, sharedFile(code, colours + style, results), "text/html");
	} catch (error) {
		say(`The file could not be made: ${error.message}`);
	}
}
