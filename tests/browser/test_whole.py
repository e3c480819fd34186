"""In the end, what was shown in pieces has the elements of the whole Markdown rendered at once."""

from __future__ import annotations

import random

import pytest

from tests.support.browser import Page, needs_chromium

pytestmark = needs_chromium()
_ITEMS = "".join(f"- item {i} with some words in it\n" for i in range(30))
_NUMBERED = "".join(f"{i}. item {i} with some words in it\n" for i in range(1, 32))
ODD = {
    "nested lists": "- a\n  - b\n    1. c\n    2. d\n  - e\n- f\n\n1. g\n   - h\n\n     i\n2. j\n",
    "code in a list": (
        "1. First:\n\n   ```sh\n   ls -l\n\n   # no"
        " heading\n   ```\n\n2. Then:\n   ```\n   x\n   ```\n"
    ),
    "a fence that is not closed": "- a\n  ```py\n  x = 1\n",
    "other fences": "~~~~\n```\n~~~\n~~~~\n\n```js `x`\n\n````md\n```\n````\n",
    "tables": "| a | b |\n|:-:|--:|\n| 1 | `a\\|b` |\n| 2 |\n| 3 | 4 | 5 |\n# no row\n\n|x|\n|-|\n",
    "a table in a list": "- | a | b |\n  |---|---|\n  | 1 | 2 |\n- c\n",
    "references defined later": (
        "See [a][1], [2] and ![i][1].\n\n- [2]\n\n[1]:"
        " https://example.org 't'\n[2]: <mailto:a@b>\n"
    ),
    "html": (
        "<div>\n*no emphasis*\n\n*emphasis*\n</div>\n\ntext"
        " <b>bold</b>\n<prefer> this\n<script>\n\nx\n</script>\nend\n"
    ),
    "comments": "a\n<!-- b\n\nc -->\nd\n\n<!-- not closed\n\n- e\n",
    "headings below": "Title\n=====\nSub *title*\n---\ntext\n---\n\n- a\n===\n\n> quoted\n---\n",
    "lines that look like something else": (
        "text\n***bold***\ntext\n#hashtag\ntext\n"
        "+5\ntext\n2024. was\ntext\n>\n***\n"
    ),
    "numbers": "1. one\n\n2. two\n\n3. three\n10\n\n2024 was a year\n\n4) four\n\n1.5 is no item\n",
    "a loose list": "- a\n- b\n\n- c\n",
    "a list that becomes loose late": f"{_ITEMS}\n- the last one\n- not the last\n\n  more\n\nEnd.\n",
    "a numbered list that becomes loose late": f"{_NUMBERED}\n32. the last one\n\n33\n",
    "tasks that become loose late": f"{_ITEMS.replace('item', '[x] item')}\n- [ ] open\n",
    "a list that becomes loose in its last line": f"{_ITEMS}- the last one\n\n  more",
    "two lists": f"{_ITEMS}* another list\n* of stars\n1. and numbers\n",
    "a line under a list": f"{_ITEMS}---\ntext\n{_ITEMS}--b\n- - -\n{_ITEMS}- - c\n",
    "a long list of numbers": "".join(f"{i}. {i}\n" for i in range(130)),
    "a long table and an odd end": "| a |\n|---|\n" + "| x |\n" * 20 + "***\n" + "no row\n#row\n",
    "a long table, not ended": "|a|b|\n|-|-|\n" + "|1|2|\n" * 20 + "|3|",
    "quotes": "> a\nlazy\n> - b\n>   c\n>\n> > d\n\n> e\n#lazy\n\n>f",
    "emphasis": "*a **b** c* _d_ __e__ ***f*** **g*h* ~~i~~ `` ` `` `a\nb` \\*k\\* 2 * 3 * 4\n",
    "links": (
        "[a](https://b.example/(c)_d 'e \"f') <https://g.example>"
        " www.h.example i@j.example [k](javascript:l) ![m](n)"
    ),
    "entities": "&amp; &lt;b&gt; &copy; &#x41; &nope; a&b\n\n- &amp;\n\n`&amp;`\n\n    &amp;\n",
    "indented code": "a\n\n    b\n\n    c\n        d\n\n- e\n\n      f\n\n\tg\n",
    "breaks": "a  \nb\\\nc\nd\r\ne\r\n\r\nf\n\n\n\ng\n   h\n",
    "a long paragraph": (
        "words and words and more of them " * 50
        + "**bold** [l](http://x.example)\nline\n#\n#x\n***y***\n"
    ),
    "a link defined in a quote": "> [a] *b* [a]: c\n>[a]: https://d.example\n",
    "text like a tag": "a <pre> b &amp; <!-- c\n\nd\n",
    "formulas": (
        "a \\(x^2\\) $y_1$ b, $5 and $10\n$$\nx\n=\n- y\n$$\nc\n\n\\[\n# a\n\\]\n\n\\[ d\n\ne \\]\n\n"
        "$$\n- open\n\n- \\[ x \\]\n- b *\\(x*y\\)*\n\n\\[1\\] f \\[a\\](b)\n$$ g $$ h\n"
    ),
    "a long formula that is not closed": "text\n\\[\n" + "a + b\n- c\n" * 30 + "\nd\n",
    "small tags": (
        "H<sub>2</sub>O<br>x<SUP>*2*</sup> <kbd>Ctrl</kbd>+<kbd><b></kbd> <sub>a\nb</sub> <br/>\n\n<br>\n\n"
        "| a<br>b | <sup>c</sup> |\n|---|---|\n| <sub>d | e</sub> |\n| f<br />g | h |\n\n"
        "- i<br>\n- <kbd>j</kbd>\n"
    ),
    "footnotes": (
        "One[^1] and[^two], `[^3]`, [^not here].\n\n[^1]: https://a.example\n[^two]: *Two*\nmore\n\nEnd.\n"
        "[^1]: again\n- a[^1]\n"
    ),
    "nothing": " \n\n\t\n",
    "a nul": "a\0b\n\n\0\n",
}  # fmt: skip
_FRAGMENTS = (
    "word ", "word\n", "\n", "\n\n", "- ", "- a\n", "  - b\n", "* ", "+ c\n", "1. ", "2. d\n", "10) e\n",
    "   ", "    ", "# ", "#", "===\n", "---\n", "***", "**", "_", "`", "```\n", "```py\n", "~~~\n", "> ",
    ">", "| a | b |\n", "|---|---|\n", "| 1 | 2 |\n", "|", "<b>", "</b>", "<div>\n", "</div>\n", "<!--",
    "-->", "<pre>", "[x] ", "[a][b]", "[b]: https://c.example\n", "[d](https://e.example)", "![f](g)",
    "https://h.example/i ", "&amp;", "&", "\\", "\\*", "\t", "\r\n", "🦙", "é", "2024", "~~",
    "www.j.example", "<br>", "<sub>2</sub>", "<kbd>", "[^1]", "[^1]: note\n",
    "$", "$$", "$$\n", "\\(", "\\)", "\\[\n", "\\]\n",
)  # fmt: skip
_SHOWN = """
const [documents, done] = arguments;
Promise.all(["stream", "trace", "markdown"].map((name) => import(`/page/${name}.js`))).then((all) => {
  const [{ MarkdownStream }, { Trace }, { blocks, furnish, render }] = all;
  const html = (place) => {
    place.querySelectorAll("math").forEach((one) => one.remove()); // of the sources, when they are loaded
    const shown = place.innerHTML.replace(/<\\/?span[^>]*>/g, "").replace(/\\n+/g, "\\n");
    return shown.replace(/>\\s+</g, "><").trim();
  };
  done(documents.map((pieces) => {
    const text = pieces.join("");
    const whole = document.createElement("div");
    whole.append(render(blocks(text.replaceAll("\\r", " "))));
    new Trace().paint(whole, text);
    furnish(whole);
    const place = document.createElement("div");
    const trace = new Trace();
    const stream = new MarkdownStream(place, trace);
    for (const piece of pieces) {
      trace.add(piece, { tokens: [[[...piece].length, "model"]], round: { drafted: 1, accepted: 1, ms: 1 } });
      stream.push(piece);
      stream.show();
    }
    stream.finish();
    return [html(place), html(whole)];
  }));
}, (error) => done(String(error)));
"""


def pieces(text: str, chance: random.Random, most: int) -> list[str]:
    """The text in pieces of up to `most` characters, more of what is far from its end."""
    found = []
    while text:
        n = chance.randint(1, most if len(text) < 300 else max(most, 60))
        found.append(text[:n])
        text = text[n:]
    return found


def check(page: Page, documents: list[list[str]]) -> None:
    shown = page.driver.execute_async_script(_SHOWN, documents)
    assert isinstance(shown, list), shown
    for document, (streamed, whole) in zip(documents, shown, strict=True):
        assert streamed == whole, document


@pytest.mark.parametrize("name", ODD)
def test_odd_texts(page: Page, name: str) -> None:
    chance = random.Random(name)
    check(page, [pieces(ODD[name], chance, most) for most in (1, 1, 3, 10, 10, 40, 10_000)])


@pytest.mark.parametrize("seed", range(4))
def test_made_up_texts(page: Page, seed: int) -> None:
    chance = random.Random(seed)
    texts = ["".join(chance.choices(_FRAGMENTS, k=chance.randint(1, 30))) for _ in range(50)]
    before = [chance.choice(("", "", _ITEMS, _NUMBERED, "| a |\n|---|\n" + "| x |\n" * 20)) for _ in texts]
    check(
        page, [pieces(a + b, chance, chance.choice((1, 4, 12))) for a, b in zip(before, texts, strict=True)]
    )
