"""The settings of clients for a server, and files that they read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specllama.cli.launch.client import CLIENTS, ModelServer, merged
from specllama.cli.options import write_file
from specllama.errors import ResourceError


@pytest.mark.parametrize(
    ("n_ctx", "expected"), [(0, None), (32768, None), (65536, "65536"), (131072, "131072")]
)
def test_claude_code_knows_a_context_in_which_its_own_reserve_leaves_room(
    n_ctx: int, expected: str | None
) -> None:
    settings = CLIENTS["claude"].settings(ModelServer("http://127.0.0.1:1", "main", n_ctx=n_ctx), {})
    assert settings.variables.get("CLAUDE_CODE_MAX_CONTEXT_TOKENS") == expected


@pytest.mark.parametrize("vision", [False, True])
def test_clients_that_ask_whether_the_model_reads_images_are_answered(vision: bool) -> None:
    server = ModelServer("http://127.0.0.1:1", "main", vision=vision)
    config = json.loads(CLIENTS["opencode"].settings(server, {}).variables["OPENCODE_CONFIG_CONTENT"])
    model = config["provider"]["specllama"]["models"]["main"]
    modalities = {"input": ["text", "image"], "output": ["text"]} if vision else None
    assert (model.get("attachment", False), model.get("modalities")) == (vision, modalities)
    ((model,),) = (
        json.loads(text)["models"] for text in CLIENTS["continue"].settings(server, {}).files.values()
    )
    assert ("image_input" in model["capabilities"]) is vision
    ((model,),) = (json.loads(text) for text in CLIENTS["llm"].settings(server, {}).files.values())
    assert model["vision"] is vision


def test_objects_are_merged() -> None:
    old = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert merged(old, {"a": {"c": 3}, "d": {"e": 4}}) == {"a": {"b": 1, "c": 3}, "d": {"e": 4}}
    assert old == {"a": {"b": 1, "c": [1]}, "d": 2}


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    own = tmp_path / "new" / "own"
    for text in ("1", "2"):
        write_file(own, text, 0o600)
        assert own.read_text("utf-8") == text
    assert own.stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["new", "own"]
    with pytest.raises(ResourceError, match="cannot be written"):
        write_file(own / "below", "", 0o600)
