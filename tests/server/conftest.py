"""One server for tests that leave nothing behind: four slots, drafts whatever the clock says, and its own
model's names only.
"""

from __future__ import annotations

from collections.abc import Iterator

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
