"""One server for tests that leave nothing behind: four slots, drafts whatever the clock says, and its own
model's names only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.serving import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), "--draft-max", "4", "--strict-model") as one:
        yield one
        assert not any("unexpected" in line or "Traceback" in line for line in one.lines)


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One slot, so that nothing shares a batch."""
    with Server(
        tmp_path_factory.mktemp("exact"), "--draft-max", "4", "-np", "1", "-c", "512", "--strict-model"
    ) as one:
        yield one


@pytest.fixture(scope="session")
def chat_openai() -> Callable[..., Any]:
    """LangChain's model for a server, with more arguments."""

    def make(server: Server, **more: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own dependencies
            from langchain_openai import ChatOpenAI

            url = f"{server.url}/v1"
            return ChatOpenAI(model="pydoc-target", base_url=url, api_key="unused", max_retries=0, **more)

    return make
