"""The pictures of the page in docs/.

usage: python -m tests.browser.screenshots [-m MODEL]

Needs Chromium and its driver. The figures in the pictures are those of this machine: run nothing else on it.
"""

from __future__ import annotations

import base64
from pathlib import Path
from tempfile import TemporaryDirectory

from specllama.models.demo import DemoStore
from tests.support.browser import Page, browser
from tests.support.campaigns import command_parser
from tests.support.paths import ROOT
from tests.support.serving import Server

DOCS = ROOT / "docs"
QUESTION = """Add type hints to this function, and show the whole function:

```python
def word_count(text, lowest=1):
    counts = {}
    for word in text.lower().split():
        word = word.strip(".,;:!?")
        if word:
            counts[word] = counts.get(word, 0) + 1
    return {word: n for word, n in counts.items() if n >= lowest}
```"""
SECONDS = 300.0


def take(page: Page, name: str, width: int, height: int, scheme: str = "light") -> None:
    """Writes a picture of the page at this size."""
    page.emulate(prefers_color_scheme=scheme)
    page.resize(width, height)
    page.js("document.getElementById('log')?.scrollTo(0, 1e6)")
    picture = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    (DOCS / name).write_bytes(base64.b64decode(picture["data"]))
    print(DOCS / name)


def main() -> None:
    parser = command_parser("tests.browser.screenshots", __doc__)
    parser.add_argument("-m", "--model", default=None, help="default: the demo model")
    model = parser.parse_args().model or str(DemoStore().require())
    with TemporaryDirectory() as home, Server(Path(home), "-m", model) as server, browser(server.url) as page:
        page.resize(1600, 1000)
        page.ready()
        for _ in range(2):  # the first answer measures the machine
            page.press("New conversation")
            page.ask(QUESTION, temperature=0, max_tokens=256)
        take(page, "page.png", 1600, 1000)
        take(page, "page-dark.png", 1024, 800, "dark")
        take(page, "page-phone.png", 390, 844)
        page.resize(1024, 800)
        page.press("Race")
        page.add(temperature=0)  # the race has a length of its own
        field = page.get("textbox", "Prompt")
        page.js("arguments[0].value = arguments[1]", field, QUESTION)
        page.press("Start the race")
        page.until(lambda: "identical" in page.text_of("dialog[open]"), "the end of the race", SECONDS)
        take(page, "page-race.png", 1024, 800)


if __name__ == "__main__":
    main()
