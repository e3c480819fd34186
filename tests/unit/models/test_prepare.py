"""Models are checked from their headers before anything is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.errors import UsageError
from specllama.models.prepare import check
from specllama.models.progress import Listener
from specllama.models.resolve import Library
from tests.support.tinymtp import qwen35


class Warnings(Listener):
    """Collects warnings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warning(self, text: str) -> None:
        self.texts.append(text)


def test_a_head_by_itself_is_refused_and_with_force_that_is_a_warning(tmp_path: Path) -> None:
    warnings = Warnings()
    library = Library(warnings)
    model = library.find(str(qwen35(tmp_path / "mtp.gguf", part="head")), "-m")
    with pytest.raises(UsageError, match="a head without a model") as caught:
        check(library, [model], pair=False, force=False)
    assert warnings.texts == []
    check(library, [model], pair=False, force=True)
    assert warnings.texts == [caught.value.message]
