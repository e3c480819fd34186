"""The line before an answer names what drafts."""

from __future__ import annotations

from typing import Any

import pytest

from specllama.bench.words import draft_name
from specllama.cli.readout import start_line
from specllama.client.model_info import ModelInfo
from tests.support.loads import TARGET, load_info

SMALL = ModelInfo("models/small.gguf", "small", 10**8, "Q8_0", 0)
MTP, OWN = "MTP, 1 layer", "head of the model (MTP, 1 layer)"
LOADS: dict[str, tuple[dict[str, Any], str]] = {
    "a draft model": ({"draft": SMALL}, "draft small Q8_0"),
    "the head of the model": ({"draft": TARGET, "head": MTP, "head_in_target": True}, OWN),
    "a head in a file": ({"draft": SMALL, "head": "EAGLE-3"}, "head small Q8_0 (EAGLE-3)"),
    "both": ({"draft": SMALL, "head": MTP, "head_in_target": True}, f"{OWN} + draft small Q8_0"),
}


@pytest.mark.parametrize("name", LOADS)
def test_heads_and_draft_models(name: str) -> None:
    changes, names = LOADS[name]
    info = load_info(**changes, verdict="identical", drafters=("grammar", "copy", "model"))
    vocabulary = " (vocabulary identical)" if info.has_draft_model else ""
    assert start_line(info) == f"speculation on: {names}{vocabulary} + copy, length auto"
    assert start_line(info, structured=True).endswith(f"{names}{vocabulary} + grammar + copy, length auto")
    about = {key: getattr(info, key) for key in ("head", "head_in_target")}
    models = {key: {"path": m.path, "name": m.name, "quant": m.quant} for key, m in _models(info)}
    assert draft_name({**about, **models}) == names


def _models(info: Any) -> list[tuple[str, ModelInfo]]:
    return [("target", info.target), ("draft", info.draft)]


def test_without_a_draft() -> None:
    assert start_line(load_info()) == "speculation on: copy, length auto"
    assert not load_info().has_draft_model
    assert draft_name({"draft": None}) == ""
