"""How tests are shared out to the cores: a file stays with one process, files that share a server too."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SLOWEST_FIRST = ("faults", "server", "cli", "worker", "api", "engine", "scripts", "unit")


def _rank(item: pytest.Item) -> int:
    folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
    return SLOWEST_FIRST.index(folder) if folder in SLOWEST_FIRST else len(SLOWEST_FIRST)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long folders first, so that no core is left alone with one at the end; without a group of its own, a
    test is in that of its file.
    """
    items.sort(key=_rank)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(HERE))))
