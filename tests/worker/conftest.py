"""An engine core that has loaded the embedded pair, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.front import Front


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    front = Front.of_pair(tmp_path_factory.mktemp("store"))
    yield front
    front.close()
