"""A text that arrives in pieces is shown as the whole one is, with its sources."""

from __future__ import annotations

import pytest

from tests.support.browser import Page, needs_chromium
from tests.support.page_pace import TEXTS

pytestmark = needs_chromium()
TABLE = "| a | b |\n|:--|--:|\n" + "".join(f"| {i} | `x{i}` **b** |\n" for i in range(60)) + "\nAfter it.\n"
LIST = "Before.\n\n" + "".join(f"{i}. item *{i}* with words\n" for i in range(1, 90)) + "\nAfter it.\n"
NESTED = (
    "- a\n  - b\n\n    ```\n    code\n    ```\n- c\n\n> quoted\n> more\n\n"
    "---\n\n~~gone~~ &amp; 1 < 2 <b>x</b>\n"
)
CODE = "Text\n\n```js\n" + "".join(f"const x{i} = `{i}`;\n\n" for i in range(120)) + "```\n\nAfter it.\n"
UNICODE = "# Grüße 🦙\n\n| 🦙 | é |\n|---|---|\n| **ß** | 漢字 |\n\n- 🦙 `🦙`\r\n- zwei\r\n"
DEFINED = "See [this][a] and [that].\n\n[a]: https://example.org/a\n[that]: https://example.org/b\n"
ALL = {
    "table": TABLE, "list": LIST, "nested": NESTED, "code": CODE, "unicode": UNICODE, "defined": DEFINED,
    "mixed": TEXTS["mixed"] * 6, "paragraph": TEXTS["one paragraph"] * 40,
    "unclosed": "```py\nx = 1\n\ny = 2",
}  # fmt: skip
# In pieces of a few characters, each of a round of its own, and in one.
_BOTH = """
const [text, size, done] = arguments;
Promise.all([import("/page/stream.js"), import("/page/trace.js")]).then(([{ MarkdownStream }, { Trace }]) => {
  const drawn = (pieces) => {
    const trace = new Trace();
    const place = document.createElement("div");
    document.getElementById("log").append(place);
    const stream = new MarkdownStream(place, trace);
    let n = 0;
    for (const piece of pieces) {
      const characters = [...piece].length;
      const half = characters >> 1;
      trace.add(piece, { tokens: [[half, "model"], [characters - half, "target"]],
                         round: { drafted: 3, accepted: 2, ms: 1, n_predict: ++n } });
      stream.push(piece);
      stream.show();
    }
    stream.finish();
    const spans = [...place.querySelectorAll("[data-round]")];
    const shown = {
      text: place.textContent,
      html: place.innerHTML.replace(/<\\/?span[^>]*>/g, "").replace(/\\n+/g, "\\n"),
      lists: [...place.querySelectorAll("li")].length,
      cells: [...place.querySelectorAll("td")].length,
      rounds: new Set(spans.map((e) => e.dataset.round)).size,
      order: spans.every((e, i) => !i || Number(e.dataset.round) >= Number(spans[i - 1].dataset.round)),
      bare: [...place.querySelectorAll("p, li, td, code")].some((e) => [...e.childNodes].some(
        (c) => c.nodeType === 3 && c.data.trim())),
    };
    place.remove();
    return shown;
  };
  const characters = [...text];
  const pieces = [];
  for (let i = 0; i < characters.length; i += size) pieces.push(characters.slice(i, i + size).join(""));
  done([drawn(pieces), drawn([text]), pieces.length]);
}, (error) => done(String(error)));
"""


@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("name", ALL)
def test_pieces_and_whole_are_shown_alike(page: Page, name: str, size: int) -> None:
    streamed, whole, n = page.driver.execute_async_script(_BOTH, ALL[name], size)
    assert " ".join(streamed["text"].split()) == " ".join(whole["text"].split())
    assert (streamed["lists"], streamed["cells"]) == (whole["lists"], whole["cells"])
    if name != "table":  # whose rows have other line breaks between them: test_whole.py compares those
        assert streamed["html"] == whole["html"]
    assert streamed["order"]
    assert not streamed["bare"]
    assert streamed["rounds"] <= n
    assert streamed["rounds"] > 0.5 * n * min(1, len(whole["text"]) / len(ALL[name]))


_IMAGE = "![t h](e)"
_LINKS = (
    "See [the *link*](https://example.org/the) hat, [a][1] tab, <https://x.example/t> to "
    "[t](javascript:t) t.\n\n1. 1\n2. `t` t\n\n| t | h |\n|---|---|\n| [t](http://h.example/t) | t\\|h |\n\n"
    "- ```t\n  t\n  ```\n\n"
    f"after {_IMAGE} t &amp; end\n\n[1]: https://t.example\n"
)  # fmt: skip
# Each character is of a round of its own.
_PLACES = """
const [text, done] = arguments;
Promise.all([import("/page/stream.js"), import("/page/trace.js")]).then(([{ MarkdownStream }, { Trace }]) => {
  const trace = new Trace();
  const place = document.createElement("div");
  const stream = new MarkdownStream(place, trace);
  for (const c of text) {
    trace.add(c, { tokens: [[1, "model"]], round: { drafted: 1, accepted: 1, ms: 1, n_predict: 1 } });
    stream.push(c);
    stream.show();
  }
  stream.finish();
  done([...place.querySelectorAll("[data-round]")].map((e) => [e.textContent, Number(e.dataset.round)]));
}, (error) => done(String(error)));
"""


def test_characters_are_of_their_own_round(page: Page) -> None:
    """Next to the addresses of links, bullets, fences and the like, which have the same characters."""
    shown = page.driver.execute_async_script(_PLACES, _LINKS)
    image = range(_LINKS.index(_IMAGE), _LINKS.index(_IMAGE) + len(_IMAGE))
    assert [(c, i) for c, i in shown if i not in image and _LINKS[i] != c] == []
    assert len(shown) > 70
