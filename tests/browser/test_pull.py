"""A known model that is not on this disk is downloaded from the page, with its progress, and used."""

from __future__ import annotations

from pathlib import Path

from selenium.webdriver.common.keys import Keys

from specllama.data import EMBEDDED_DRAFT
from tests.support.browser import browser, needs_chromium
from tests.support.hub import Repo, local_hub
from tests.support.serving import Server

pytestmark = needs_chromium()
CONTENT = EMBEDDED_DRAFT.read_bytes()


def test_a_model_is_downloaded_and_used(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[models.far-away]\nrepo = "me/far-away"\n')
    with local_hub() as hub:
        hub.repos["me/far-away"] = Repo({"far-away-Q4_0.gguf": CONTENT})
        hub.faults.rate, hub.faults.small_buffers = len(CONTENT) / 4, True
        environ = hub.environ(
            SPECLLAMA_MODELS=str(tmp_path / "models.toml"), HF_HUB_CACHE=str(tmp_path / "hub")
        )
        flags = "-np", "1", "-c", "512"
        with (
            Server(tmp_path, *flags, env={**environ, "SPECLLAMA_MODEL": None}) as server,
            browser(server.url) as page,
        ):
            page.ready()
            page.choose_model("far-away")
            page.until(lambda: page.notice == "far-away is not on this disk.")
            assert page.model == "pydoc-target"
            page.get("button", "Download it").send_keys(Keys.ENTER)
            page.until(lambda: " of " in page.notice and "Downloading far-away" in page.notice)
            said = page.notice
            page.until(lambda: page.notice != said)  # drawn again, and the focus is where it was
            assert page.driver.switch_to.active_element.accessible_name == "Stop the download"
            page.driver.switch_to.active_element.send_keys(Keys.ENTER)
            page.until(lambda: "far-away is not downloaded: the download was stopped" in page.notice)
            hub.faults.rate = 0.0
            page.press("Try again")
            page.until(lambda: page.notice == "far-away is on this disk now.")
            page.press("Use it")
            page.until(lambda: "of 512 tokens" in page.text_of("#context-text"))
            assert page.model == "me/far-away:Q4_0"
            assert page.ask("Anything", grammar='root ::= "Yes."') == "Yes."
