"""A conversation that goes on after a restart of the server has its prompt kept: the page says how much of it."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.browser import Page, browser, needs_chromium
from tests.support.serving import Server

pytestmark = needs_chromium()


def long_question(page: Page) -> None:
    page.js("document.getElementById('question').value = 'Read this. ' + 'shutil copies a tree of files. '.repeat(60)")


def test_kept_tokens_after_a_restart(tmp_path: Path) -> None:
    flags = ("-np", "1", "--cache-disk", "100M")
    with Server(tmp_path, *flags) as server, browser(server.url) as page:
        page.ready()
        long_question(page)
        assert page.ask(" What does it do?", grammar='root ::= "It copies."') == "It copies."
        assert "were kept" not in page.text_of(".about")
        server.stop(signal.SIGTERM)
        with Server(tmp_path, *flags, "--port", str(server.port)):
            page.until(lambda: server.answers())
            page.ask("And then?", grammar='root ::= "It ends."')
            page.until(lambda: page.answers[-1] == "It ends.")
            page.until_done()
            about = page.js("return [...document.querySelectorAll('.about')].at(-1).textContent")
            assert "tokens of the prompt were kept" in about
