"""The command with a home of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import Command


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """One home for tests that leave nothing behind."""
    return Command(tmp_path_factory.mktemp("shared"))
