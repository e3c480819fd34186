"""A server and a browser for the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Page, browser
from tests.support.serving import Server


@pytest.fixture(scope="session")
def chat_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("page"), "--draft-max", "4", "-np", "2") as one:
        yield one
        assert not any("unexpected" in line or "Traceback" in line for line in one.lines)


@pytest.fixture(scope="session")
def shared_browser(chat_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(chat_server.url, tmp_path_factory.mktemp("downloads")) as one:
        yield one


@pytest.fixture
def page(shared_browser: Page) -> Iterator[Page]:
    """The page, with nothing stored; it must have worked without complaints."""
    shared_browser.open("/page/icon.svg")
    shared_browser.forget()
    shared_browser.resize(1600)
    shared_browser.emulate(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    shared_browser.ready()
    assert shared_browser.complaints is not None  # of what was before: the icon has no icon of its own
    yield shared_browser
    assert shared_browser.complaints == []
