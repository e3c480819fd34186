"""A server with few resources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.serving import Server


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one slot, a queue of two, and a context larger than the model was trained on."""
    flags = ("-np", "1", "--queue", "2", "-c", "65536", "--draft-max", "0")
    with Server(tmp_path_factory.mktemp("small"), *flags) as one:
        yield one
        assert not any("unexpected" in line for line in one.lines)
