"""The command with a home of its own, and a hub on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Command
from tests.support.hub import LocalHub, local_hub


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """One home for tests that leave nothing behind."""
    return Command(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as running:
        yield running
