"""Whatever a model writes is shown, and never executed or loaded."""

from __future__ import annotations

import json

import pytest

from tests.support.browser import Page, needs_chromium

pytestmark = needs_chromium()
HOSTILE = {
    "a script": "<script>window.hacked = 1</script>",
    "a handler": '<img src=x onerror="window.hacked = 1">',
    "a handler in Markdown": '![x](x "y\\" onerror=\\"window.hacked = 1")',
    "a remote image": "![x](http://127.0.0.2:9/x.png)",
    "a remote image in a link": "[![x](http://127.0.0.2:9/x.png)](http://127.0.0.2:9/)",
    "a link that runs": "[press](javascript:window.hacked=1)",
    "a link that runs, hidden": "[press](java&#10;script:window.hacked=1) [or](&#x6A;avascript:hacked=1)",
    "data": "[press](data:text/html,<script>window.hacked=1</script>)",
    "a link by reference": "[press][a]\n\n[a]: javascript:window.hacked=1\n",
    "an address in brackets": "<javascript:window.hacked=1> <http://127.0.0.2:9/>",
    "a frame": '<iframe srcdoc="<script>parent.hacked = 1</script>"></iframe>',
    "an svg": "<svg><animate onbegin=window.hacked=1 attributeName=x></svg>",
    "a style": "<style>body { display: none }</style>",
    "a form": '<form action="http://127.0.0.2:9/"><button id="send">Send</button></form>',
    "a base": '<base href="http://127.0.0.2:9/">',
    "a meta": '<meta http-equiv="refresh" content="0;url=http://127.0.0.2:9/">',
    "in code": '```html"><script>hacked = 1</script>\n</code></pre><script>hacked = 1</script>\n```',
    "in a table": "| <b onclick=window.hacked=1>a</b> |\n|---|\n| <img src=x onerror=window.hacked=1> |",
    "template syntax": "${window.hacked = 1} {{constructor.constructor('window.hacked=1')()}}",
    "names of our elements": '<div id="log"></div><p id="question">x</p>',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_it_is_shown_and_nothing_else(page: Page, text: str) -> None:
    page.ask(text, grammar=f"root ::= {json.dumps(text)}")
    for link in page.js("return [...document.querySelectorAll('.body a')].map(a => a.href)"):
        assert link.startswith(("http://127.0.0.2:9/", "mailto:"))
    page.js(
        "document.querySelectorAll('.body b, .body button:not(.code-head button)').forEach(e => e.click())"
    )
    assert page.js("return window.hacked") is None
    icons = "svg:not(.tools svg)"  # those of the page's own buttons
    forbidden = (
        f"script, img, iframe, {icons}, style, form, base, meta, link, object, embed, [id], [style], [src]"
    )
    assert page.js(f"return document.querySelectorAll('.message :is({forbidden})').length") == 0
    handlers = "[...e.attributes].some(a => a.name.startsWith('on'))"
    assert page.js(f"return [...document.querySelectorAll('.message *')].some(e => {handlers})") is False
    loaded = page.js("return performance.getEntriesByType('resource').map(e => e.name)")
    assert all(name.startswith(page.url) for name in loaded), loaded
    # As a question, of this and of a stored conversation, it is text too.
    assert page.questions[0].split() == text.split()
    page.ready()
    page.js("document.querySelector('.choose').click()")
    page.until(lambda: page.answers)
    assert page.js("return window.hacked") is None
    assert page.js(f"return document.querySelectorAll('.message :is({forbidden})').length") == 0


def test_the_policy_would_refuse_it(page: Page) -> None:
    """Even from code of our own: markup, inline code and what other hosts have."""
    refused = page.js(
        "try { document.body.innerHTML = '<b>x</b>'; return ''; } catch (error) { return error.name; }"
    )
    assert refused == "TypeError"
    page.js(
        "const add = (tag, more) => document.body.append(Object.assign(document.createElement(tag), more));"
        "add('img', {src: 'http://127.0.0.2:9/x'});"
        "const b = document.createElement('b');"
        "try { b.setAttribute('onclick', 'window.hacked = 1'); } catch {} document.body.append(b); b.click();"
    )
    lines: list[str] = []

    def all_refused() -> bool:
        lines.extend(page.complaints)
        text = " ".join(lines)
        return "img-src" in text and "TrustedHTML" in text

    page.until(all_refused)
    assert page.js("return window.hacked") is None
