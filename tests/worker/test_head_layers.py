"""A model with several MTP layers, loaded as the engine process loads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specllama.client import protocol
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.gguf.header import read_header
from specllama.heads import read_head
from specllama.models.memory.plan import plan_load
from specllama.worker.draft import LoadedHead
from specllama.worker.loader import Loaded, load
from tests.support import tinymtp


@pytest.mark.parametrize(("room_for", "n_contexts"), [(3, 3), (2, 1), (1, 1)])
def test_layers_are_left_out_before_the_head_is(
    room_for: int, n_contexts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tinymtp.step35(tmp_path / "model.gguf")
    model = ModelSettings(path=str(path), n_ctx=2048, n_threads=1)
    settings = LoadSettings(target=model, draft=model)
    header, head = read_header(path), read_head(read_header(path))
    assert head is not None
    needed = plan_load(settings, header, replace(head, n_chained=room_for), 1 << 40, ()).host
    monkeypatch.setattr("specllama.worker.loader.available_memory", lambda: needed)
    sent: list[protocol.Message] = []
    loaded = load(settings, sent.append, Store(tmp_path / "store"))
    try:
        assert _n_contexts(loaded) == n_contexts
        assert not [m for m in sent if isinstance(m, protocol.Notice)]
    finally:
        loaded.drop_draft(None)
        loaded.context.close()
        loaded.model.close()


def _n_contexts(loaded: Loaded) -> int:
    assert isinstance(loaded.head, LoadedHead)
    return 1 + len(loaded.head.context.following)
