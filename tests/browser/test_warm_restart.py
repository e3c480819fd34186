"""A conversation that goes on after a restart of the server: the page says how much of it was kept."""

from __future__ import annotations

import signal
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.support.browser import browser, needs_chromium
from tests.support.serving import Server

pytestmark = needs_chromium()


def test_kept_tokens_after_a_restart(tmp_path: Path, demo: dict[str, str | None]) -> None:
    flags = ("-np", "1", "-c", "4096", "--cache-disk", "1G")
    with Server(tmp_path, *flags, env=demo) as server, browser(server.url) as page:
        page.ready()
        text = "Read this. " + "".join(f"Line {i}: shutil copies a tree of files. " for i in range(150))
        page.js("document.getElementById('question').value = arguments[0]", text)
        page.add(grammar='root ::= "It copies."')
        page.get("textbox", "Message").send_keys(Keys.ENTER)
        page.until(lambda: page.answers == ["It copies."])
        page.until_done()
        assert "were kept" not in page.text_of(".about")
        server.stop(signal.SIGTERM)
        with Server(tmp_path, *flags, "--port", str(server.port), env=demo):
            page.ask("And then?", grammar='root ::= "It ends."')
            page.until(lambda: page.answers[-1] == "It ends.")
            page.until_done()
            about = page.js("return [...document.querySelectorAll('.about')].at(-1).textContent")
            assert "tokens of the prompt were kept" in about
            kept, of = (int(part.replace(",", "")) for part in about.split(" · ")[-1].split()[:3:2])
            assert 0.8 * of < kept < of
