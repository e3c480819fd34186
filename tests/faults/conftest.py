"""The command with a home of its own, and a hub on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Command
from tests.support.hub import LocalHub, local_hub
from tests.support.serving import Server


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """One home for tests that leave nothing behind."""
    return Command(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one slot, two places to wait and a context beyond the model's training."""
    flags = ("-np", "1", "--queue", "2", "-c", "65536", "--draft-max", "0")
    with Server(tmp_path_factory.mktemp("small"), *flags) as one:
        yield one
        assert not any("unexpected" in line for line in one.lines)


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as running:
        yield running
