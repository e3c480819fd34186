"""How texts are shown: formulas, code, tables, long lines, directions of writing, the source."""

from __future__ import annotations

import pytest

from tests.support.browser import AXE, Page, needs_chromium
from tests.support.page_answers import answer_with, made_up

pytestmark = needs_chromium()
FORMULAS = (
    "With \\(x^2\\) and $a_1 + b_1$, but $5 and $10:\n\n\\[\nx\n=\n- \\frac{a}{b}\n\\]\n\n"
    "$$\\begin{aligned} f'(x) &= 1 \\\\ &= y \\end{aligned}$$\n\n- item \\(\\alpha\\)\n\n"
    "| a |\n|---|\n| $\\sqrt 2$ |\n\n`\\(code\\)` and *a \\(x*y\\) b*, \\[1\\] and \\[a\\](b)\n"
)


def shown_formulas(page: Page) -> list[list[str]]:
    """[text, display or ""] of each formula, when all are shown."""
    page.until(lambda: page.js("return !document.querySelector('.answer .math:not(.shown)')"))
    found: list[list[str]] = page.js(
        "return [...document.querySelectorAll('.answer math')].map(m =>"
        " [m.textContent, m.getAttribute('display') ?? ''])"
    )
    return found


def test_formulas(page: Page) -> None:
    text = made_up(page, FORMULAS, size=5)
    assert shown_formulas(page) == [
        ["x2", ""], ["a1+b1", ""], ["x=−ab", "block"], ["f′(x)=1=y", "block"], ["α", ""], ["2", ""],
        ["x∗y", ""],
    ]  # fmt: skip
    assert "but $5 and $10:" in text
    assert "\\(code\\)" in text
    assert "[1] and [a](b)" in text
    assert page.js("return document.querySelectorAll('.answer .tex:not([hidden])').length") == 0
    sources = page.js("return [...document.querySelectorAll('.answer .math')].map(m => m.dataset.round)")
    assert all(sources), "each formula is of a round"
    sizes = page.js(
        "return [...document.querySelectorAll('.answer math')].map(m => m.getBoundingClientRect().height)"
    )
    assert min(sizes) > 8


@pytest.mark.parametrize(
    "text",
    [
        "\\(\\frac{a\\)",
        "\\(\\unknowncommand\\)",
        "$$\\includegraphics{http://127.0.0.2:9/x}$$",
        "\\(a",
        "$$ b\n- c",
    ],
)
def test_what_is_no_formula_keeps_its_characters(page: Page, text: str) -> None:
    shown = made_up(page, text + "\n\nAfter.")
    shown_formulas(page)
    expected = text if text != "\\(a" else "(a"  # an escaped bracket of Markdown
    assert shown.replace("\n", "") == (expected + "After.").replace("\n", "")


def test_hostile_formulas(page: Page) -> None:
    """What would run, load or point elsewhere is refused, and endless ones end."""
    made_up(
        page,
        "\\(\\href{javascript:window.hacked=1}{x}\\) \\(\\htmlData{onclick=window.hacked=1}{x}\\) "
        "\\(\\url{http://127.0.0.2:9/}\\) \\(\\def\\a{\\a\\a}\\a\\) \\(\\rule{1e9em}{1e9em}\\) "
        "\\(\\color{red;position:fixed}x\\) \\(\\text{<img src=x onerror=window.hacked=1>}\\) "
        "\\(\\style{position:fixed}{x}\\) \\(\\cancelto{0}{x}\\)\n\nAfter.",
    )
    shown_formulas(page)
    assert page.js("return window.hacked") is None
    assert (
        page.js(
            "return document.querySelectorAll('.answer :is(img, script, a, [href], [src], [onclick])').length"
        )
        == 0
    )
    assert (
        page.js("return Math.max(...[...document.querySelectorAll('.math')].map(m => m.offsetHeight))") < 2000
    )
    assert page.text_of(".answer .body").endswith("After.")


def test_long_formulas_scroll(page: Page) -> None:
    page.resize(390)
    made_up(page, "$$" + " + ".join(f"\\frac{{a_{{{i}}}}}{{b}}" for i in range(60)) + "$$")
    shown_formulas(page)
    page.until(lambda: page.all("region", "formula"))
    assert page.js("return document.documentElement.scrollWidth") == 390


CODE = (
    "```python\nclass A:  # one\n    x = 'text' + str(1)\n```\n\n```js\nconst a = 1; // two\n```\n\n"
    "```c\nint main(void) { return 0; }\n```\n\n```nosuch\nplain = 1\n```\n\n"
)


def test_code_has_colours_and_keeps_its_sources(page: Page) -> None:
    made_up(page, CODE + "The end.", size=3)
    coloured = (
        "return [...document.querySelectorAll('.answer .code')].map("
        "c => c.querySelectorAll('[class^=t-]').length)"
    )
    page.until(lambda: all(n > 1 for n in page.js(coloured)[:3]))
    assert page.js(coloured)[3] == 0
    words = page.js("return [...document.querySelectorAll('.answer .t-keyword')].map(e => e.textContent)")
    assert "class" in "".join(words)
    texts = page.js("return [...document.querySelectorAll('.answer pre')].map(p => p.textContent)")
    assert texts[0] == "class A:  # one\n    x = 'text' + str(1)"
    rounds = page.js(
        "return [...document.querySelectorAll('.answer [class^=t-]')].every(e => e.closest('[data-round]'))"
    )
    assert rounds
    colours = page.js(
        "const all = [...document.querySelectorAll('.answer [class^=t-]')];"
        "return [...new Set(all.map(e => getComputedStyle(e).color))]"
    )
    assert len(colours) > 3


@pytest.mark.skipif(not AXE.exists(), reason="there is no axe-core: scripts/browser installs it")
def test_colours_can_be_read_on_each_tint(page: Page) -> None:
    for scheme in ("light", "dark"):
        page.emulate(prefers_color_scheme=scheme)
        page.js(
            "document.getElementById('all')?.remove();"
            "const b = document.createElement('pre');"
            "b.className = 'body code'; b.id = 'all'; b.tabIndex = 0;"
            "for (const s of ['target', 'model', 'head', 'copy', 'memory', 'grammar', 'oracle']) {"
            "  const e = document.createElement('span'); e.dataset.source = s;"
            "  for (const k of ['keyword', 'string', 'number', 'comment', 'name', 'type', 'meta']) {"
            "    const t = document.createElement('span');"
            "    t.className = `t-${k}`; t.textContent = k; e.append(t, ' '); }"
            "  b.append(e, '\\n'); }"
            "document.getElementById('log').append(b);"
        )
        assert page.violations() == []


def test_code_is_copied_and_wrapped(page: Page) -> None:
    made_up(page, "```python\nx = '" + "a" * 400 + "'\n```\n")
    wide = "const p = document.querySelector('.answer pre'); return p.scrollWidth > p.clientWidth"
    assert page.js(wide)
    page.press("Wrap the lines of python")
    assert not page.js(wide)
    assert page.get("button", "Wrap the lines of python").get_attribute("aria-pressed") == "true"


def test_the_source_of_an_answer(page: Page) -> None:
    text = "# Title\n\nSome **bold** \\(x^2\\).\n\n- item\n"
    made_up(page, text)
    shown_formulas(page)
    page.press("Source")
    assert page.js("return document.querySelector('.answer .body').textContent") == text
    assert page.js("return document.querySelectorAll('.answer .source-text [data-source=model]').length") > 2
    page.press("Source")
    assert page.js("return document.querySelector('.answer h1').textContent") == "Title"
    assert page.js("return document.querySelectorAll('.answer math').length") == 1


def test_words_in_tables_stay_whole(page: Page) -> None:
    """A table is wider than its place rather than that its words are broken."""
    row = "| " + " | ".join(["internationalisation"] * 6) + " |\n"
    for width in (390, 1600):
        page.resize(width)
        page.ready()
        made_up(page, row + "|" + "---|" * 6 + "\n" + row * 2)
        heights = page.js(
            "return [...document.querySelectorAll('.answer td')].map(d => {"
            "  const r = document.createRange(); r.selectNodeContents(d);"
            "  return new Set([...r.getClientRects()].map(b => Math.round(b.top))).size; })"
        )
        assert set(heights) == {1}
        assert page.js("return document.documentElement.scrollWidth") == width


def test_columns_are_aligned_and_lists_begin_where_they_say(page: Page) -> None:
    made_up(page, "| a | b | c |\n|:--|:-:|--:|\n| 1 | 2 | 3 |\n\n7. seven\n8. eight\n")
    aligned = "return [...document.querySelectorAll('.answer td')].map(d => getComputedStyle(d).textAlign)"
    assert page.js(aligned)[1:] == ["center", "right"]
    assert page.js("return document.querySelector('.answer ol').start") == 7


LONG = "/usr/share/" + "averylongfoldername" * 20 + ".txt"


@pytest.mark.parametrize("width", [390, 1024])
def test_long_lines_and_paths_are_seen_whole(page: Page, width: int) -> None:
    page.resize(width)
    page.ready()
    made_up(
        page,
        f"See {LONG} and `{LONG}`.\n\n# {LONG}\n\n- {LONG}\n\n| a |\n|---|\n| {LONG} |\n",
        f"Where is {LONG}?",
    )
    page.js(
        "(async () => (await import('/page/notice.js')).say(`The file ${arguments[0]} is missing.`))()", LONG
    )
    page.until(lambda: LONG in page.notice)
    cut = page.js(
        "return [...document.querySelectorAll('main *, header *, #panel *')].filter(e => {"
        "  const s = getComputedStyle(e); const b = e.getBoundingClientRect();"
        "  if (!b.width || s.clipPath !== 'none' || e.closest('select, .offscreen')) return false;"
        "  if (e.closest('.scroll, pre')) return false;"  # these scroll
        "  return e.scrollWidth > e.clientWidth + 1 && s.display !== 'inline' || b.right > innerWidth + 1; })"
        ".map(e => e.outerHTML.slice(0, 200))"
    )
    assert cut == []


def test_right_to_left(page: Page) -> None:
    made_up(
        page,
        "مرحبا بالعالم Python.\n\nEnglish.\n\n- عنصر\n- more\n\n```\nx\n```\n\n| عربي |\n|---|\n| x |\n",
        "سؤال بالعربية",
    )
    looks = page.js(
        "const d = (s) => { const s2 = getComputedStyle(document.querySelector(s)); return s2.direction; };"
        "return [d('.question .body'), d('.answer .body > p'), d('.answer .body > p + p'), d('.answer ul'),"
        "        d('.answer pre'), d('.answer table')]"
    )
    assert looks == ["rtl", "rtl", "ltr", "rtl", "ltr", "rtl"]
    field = page.get("textbox", "Message")
    field.send_keys("שלום")
    assert page.js("return getComputedStyle(arguments[0]).direction", field) == "rtl"


def test_a_long_question_is_folded(page: Page) -> None:
    text = "word " * 20_000 + "last."
    answer_with(page, "Yes.")
    page.write(text + "\n")
    page.until(lambda: page.answers == ["Yes."])
    shown = page.js("return document.querySelector('.question .body').textContent.length")
    assert shown < 2500
    page.press("Show all of it (97.7 KiB)")
    assert page.js("return document.querySelector('.question .body').textContent.includes('last.')")
    page.press("Show less")
    assert page.js("return document.querySelector('.question .body').textContent.length") == shown


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_an_answer_that_repeats_itself_can_be_stopped_there(page: Page, field: str) -> None:
    answer_with(page, "And again the same words. ", endless=True, pause=2, field=field)
    page.write("Anything")
    page.until(lambda: "The answer repeats itself" in page.text_of(".answer .repeats"))
    box = page.js(
        "const b = document.querySelector('.repeats').getBoundingClientRect(); return [b.top, b.bottom]"
    )
    log = page.js(
        "const b = document.getElementById('log').getBoundingClientRect(); return [b.top, b.bottom]"
    )
    assert log[0] <= box[0] < box[1] <= log[1]
    page.press("Stop the answer that repeats itself")
    page.until_done()
    assert "Stopped." in page.text_of(".answer")
    assert page.text_of(".answer .repeats") == ""


def test_what_repeats_itself(page: Page) -> None:
    found = page.driver.execute_async_script(
        "const done = arguments[1];"
        "const part = (f) => f ? f.part : null;"
        "import('/page/repeats.js').then((m) => done(arguments[0].map(t => part(m.repetition(t)))))",
        [
            "Some words first. " + "again " * 60,
            "".join(f"line {i} of a list\n" for i in range(200)),
            "x" * 300,
            "-" * 300,
            "a" + "-" * 2000,
            "The same sentence, which is longer than most are, is written. " * 4,
            "The same sentence, which is longer than most are, is written. " * 6,
        ],
    )
    assert found[0] == "again "
    assert found[1] is None
    assert found[2] == "x"
    assert found[3] is None, "a rule"
    assert found[4] == "-"
    assert found[5] is None, "a refrain"
    assert found[6] == "The same sentence, which is longer than most are, is written. "


def test_a_rule_is_a_line_and_no_black_square(page: Page) -> None:
    made_up(page, "A $\\rule{9999em}{9999em}$ and $a \\rule{3em}{0.1em} b$ end.")
    page.until(lambda: page.js("return document.querySelectorAll('.math.shown').length") == 2)
    assert page.js("return document.querySelectorAll('.math > math').length") == 1
    assert "\\rule{9999em}" in page.text_of(".answer .body")


SMALL = (
    "H<sub>2</sub>O, 5<sup>*th*</sup>, press <kbd>Ctrl</kbd>.<br>Next <b>line</b>[^1].\n\n"
    "| a | b |\n|---|---|\n| one<br>two | x<sup>2</sup> |\n\n"
    '<sub onclick="x">no</sub> <sup><img src=x></sup> <kbd>open\n\n'
    "[^1]: See [this](https://a.example) <i>book</i>.\n"
)


def test_small_tags_and_footnotes(page: Page) -> None:
    """Breaks, indices and keys are elements, in tables too; tags with attributes and others are text."""
    made_up(page, SMALL)
    html = page.js(
        "const body = document.querySelector('.answer .body').cloneNode(true);"
        "for (const one of body.querySelectorAll('span')) one.replaceWith(...one.childNodes);"
        "return [...body.querySelectorAll('p, td')].map(e => e.innerHTML)"
    )
    first, one, square, odd, note = html
    assert first == (
        "H<sub>2</sub>O, 5<sup><em>th</em></sup>, press <kbd>Ctrl</kbd>.<br>Next &lt;b&gt;line&lt;/b&gt;"
        "<sup>1</sup>."
    )
    assert (one, square) == ("one<br>two", "x<sup>2</sup>")
    assert odd.startswith('&lt;sub onclick="x"&gt;no&lt;/sub&gt; &lt;sup&gt;&lt;img')
    assert odd.endswith("&lt;kbd&gt;open")
    assert note.startswith("<sup>1</sup> See <a ")
    assert note.endswith("&lt;i&gt;book&lt;/i&gt;.")
    drafted = page.js("return document.querySelector('.answer sub').firstElementChild.dataset.source")
    assert drafted in ("model", "target"), "what is in them has its source"


def test_the_spaces_before_lines_of_code_have_no_tint(page: Page) -> None:
    """Whatever the pieces in which they come; the text stays, and its rounds."""
    made_up(page, "```py\ndef f():\n    if x:\n\t    return (1,  2)\n```\n", size=3)
    parts = page.js(
        "return [...document.querySelectorAll('pre [data-round]')].map(e => "
        "  [e.textContent, e.dataset.source ?? ''])"
    )
    assert "".join(text for text, _ in parts) == "def f():\n    if x:\n\t    return (1,  2)"
    line = ""
    for text, source in parts:
        blank = not text.strip(" \t") and not line.strip(" \t")
        assert bool(source) != blank, (line, text)
        line = (line + text).rpartition("\n")[2]
    assert page.js("return document.querySelector('pre').textContent") == "".join(text for text, _ in parts)
