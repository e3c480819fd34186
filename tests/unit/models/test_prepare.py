"""Models are checked from their headers before anything is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import UsageError
from specllama.models.prepare import check, known_draft
from specllama.models.resolve import Library
from tests.support.demo import Notes
from tests.support.hub_cache import put
from tests.support.tinymtp import qwen35

PAIR = """
[models.big]
repo = "me/big"

[models.small]
repo = "me/small"

[[pairs]]
target = "big"
drafts = ["small"]
"""


def test_a_head_by_itself_is_refused_and_with_force_that_is_a_warning(tmp_path: Path) -> None:
    warnings = Notes()
    library = Library(warnings)
    model = library.find(str(qwen35(tmp_path / "mtp.gguf", part="head")), "-m")
    with pytest.raises(UsageError, match="a head without a model") as caught:
        check(library, [model], pair=False, force=False)
    assert warnings.notes == []
    check(library, [model], pair=False, force=True)
    assert warnings.notes == [f"warning: {caught.value.message}"]


def test_a_known_draft_that_is_damaged_is_left_out(tmp_path: Path) -> None:
    """The model answers without it; a line says why."""
    (tmp_path / "models.toml").write_text(PAIR)
    environ = {"HF_HUB_CACHE": str(tmp_path), "SPECLLAMA_MODELS": str(tmp_path / "models.toml")}
    put(tmp_path, "me/big", "big-Q4_K_M.gguf", EMBEDDED_TARGET.read_bytes())
    whole = EMBEDDED_DRAFT.read_bytes()
    for commit, content in zip("abc", (b"<html>", whole[:500_000], whole), strict=True):
        put(tmp_path, "me/small", "small-Q4_K_M.gguf", content, commit * 40)
        library = Library(listener := Notes(), environ)
        draft = known_draft(library, library.find("big", "-m"))
        said = [note for note in listener.notes if "small is known as a draft and cannot be used: " in note]
        assert (draft is not None, len(said)) == ((True, 0) if content is whole else (False, 1))
