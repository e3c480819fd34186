"""Trimmed draft models in the engine process: the text of plain decoding, with more drafts accepted than by
chance, whatever tokens the text has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.client import protocol as m
from specllama.client.tune_messages import Loading, Trim
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.interfaces import BatchRow
from specllama.errors import IntegrityError, UsageError
from specllama.gguf.header import read_header
from specllama.gguf.trimmed import read_trim
from specllama.llama.draft_contexts import TrimmedContext
from specllama.worker.trim import VERIFYING, WRITING, trim
from tests.support import tinygguf
from tests.support.front import Front
from tests.support.trimming import N_VOCAB, trim_file, trimmed

N_SLOTS = 4
MAKE: dict[str, Callable[..., Path]] = {"llama": tinygguf.llama, "gemma3": tinygguf.gemma3}
EXACT: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off", "n_threads": 1}


@pytest.fixture(scope="module", params=MAKE)
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A model that drafts for itself, trimmed; three tokens are drafted in each round."""
    folder = tmp_path_factory.mktemp(request.param)
    target = MAKE[request.param](folder / "model.gguf", n_vocab=N_VOCAB)
    paths = target, trimmed(target)
    settings = [ModelSettings(path=str(path), n_ctx=1024, swa_full=True, **EXACT) for path in paths]
    more: dict[str, Any] = {"memory": False, "calibrate": False, "n_slots": N_SLOTS, "drafters": ("model",)}
    load = LoadSettings(target=settings[0], draft=settings[1], draft_max=3, **more)
    opened = Front(load, Store(folder / "store"))
    assert isinstance(opened.messages[-1], m.Ready), opened.messages
    yield opened
    opened.close()


def asked(seed: int, temperature: float) -> dict[str, Any]:
    params = {"max_tokens": 60, "seed": seed, "temperature": temperature, "ignore_eos": True}
    return {"prompt": f"{seed} once upon a time, in a land far away", "params": params}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_proposes_what_its_source_would_of_the_kept_tokens(front: Front, temperature: float) -> None:
    """The draft is the target: of kept tokens, all that it drafts after a right one is right."""
    kept = set(_context(front).kept.ids.tolist())
    n_kept = n_right = 0
    for seed in range(3):
        items = front.items(**asked(seed, temperature))
        ids = [token for item in items for token in item.ids]
        assert ids == front.ids(**asked(seed, temperature), speculate=False)
        n_kept += sum(token in kept for token in ids)
        front.items(**asked(seed, temperature))
        done = front.messages[-1]
        assert isinstance(done, m.Done)
        n_right += done.stats.n_accept
        assert done.stats.drafted_by["model"] > 0
        assert len(kept) < N_VOCAB
        assert any(token not in kept for token in ids)
    assert n_right > 0.4 * n_kept


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_four_requests_at_once(front: Front, temperature: float) -> None:
    requests = [asked(seed, temperature) for seed in range(N_SLOTS)]
    plain = [front.ids(**one, speculate=False) for one in requests]
    assert front.ids_at_once(requests) == plain


def test_grammars_stop_strings_and_biases_leave_the_same_text(front: Front) -> None:
    plain = front.text(**asked(5, 0.8), speculate=False)
    ids = front.ids(**asked(5, 0.8), speculate=False)
    for more in (
        {"stop": [plain[20:23]]},
        {"grammar": "root ::= [a-z ]{30} | [0-9]{20}"},
        {"logit_bias": {ids[0]: -3.0, ids[5]: 2.0}, "repeat_penalty": 1.3},
        {"top_k": 3},
    ):
        request = {**asked(5, 0.8), "params": {**asked(5, 0.8)["params"], **more}}
        assert front.text(**request) == front.text(**request, speculate=False)


def test_a_prefix_is_used_again_after_a_change_of_the_text(front: Front) -> None:
    prompt = list(front.prompt_ids(**asked(8, 0.0)))
    for tail in ([40, 41, 598, 42], [40, 597], [40, 41, 598, 43]):
        request = {"ids": [*prompt, *tail], "params": asked(8, 0.0)["params"]}
        assert front.ids(**request) == front.ids(**request, speculate=False)


def test_rows_are_those_of_the_source_whatever_tokens_the_text_has(front: Front) -> None:
    loaded = front.core.loaded
    assert loaded is not None
    draft, target = _context(front), loaded.context
    ids = [5, 598, 40, 597, 599, 300, 41]
    rows = [BatchRow(token, i, 0, True) for i, token in enumerate(ids)]
    for context in (draft, target):
        context.truncate(0, 0)
    theirs, ours = target.decode(rows).copy(), draft.decode(rows).copy()
    kept = draft.kept.ids
    # The contexts are of different sizes; gemma3's GELU is a table.
    assert np.allclose(ours[:, kept], theirs[:, kept], atol=2e-2)
    lacking = np.setdiff1d(np.arange(N_VOCAB), kept)
    assert (ours[:, lacking] == -np.inf).all()
    assert {draft.random_token() for _ in range(50)} <= set(kept.tolist())
    for context in (draft, target):
        context.truncate(0, 0)


def _context(front: Front) -> TrimmedContext:
    loaded = front.core.loaded
    assert loaded is not None
    assert loaded.draft is not None
    assert isinstance(loaded.draft.context, TrimmedContext)
    return loaded.draft.context


def test_a_draft_without_the_other_embeddings_drafts_with_stand_ins(tmp_path: Path) -> None:
    from specllama.models.trim import set_embeddings

    target = tinygguf.llama(tmp_path / "model.gguf", n_vocab=N_VOCAB)
    draft = trimmed(target)
    whole = read_trim(read_header(draft))
    assert whole is not None
    size = draft.stat().st_size
    set_embeddings(draft, 0, 1.0)
    assert draft.stat().st_size < size
    settings = [ModelSettings(path=str(path), n_ctx=512, **EXACT) for path in (target, draft)]
    load = LoadSettings(target=settings[0], draft=settings[1], draft_max=3, memory=False, drafters=("model",))
    front = Front(load, Store(tmp_path / "store"))
    try:
        assert front.ids(**asked(1, 0.0)) == front.ids(**asked(1, 0.0), speculate=False)
        kept = _context(front).kept
        text = read_header(target).token_texts
        (lacking,) = [t for t in range(N_VOCAB) if kept.own[t] < 0][:1]
        assert text[kept.ids[kept.own_ids([lacking])[0]]] == text[lacking][-1:]
    finally:
        front.close()


def test_the_draft_itself_is_never_overwritten(tmp_path: Path) -> None:
    draft = tinygguf.llama(tmp_path / "draft.gguf", n_vocab=N_VOCAB)
    before = draft.read_bytes()
    with pytest.raises(UsageError, match="a part of the draft"):
        trim_file(draft, draft)
    assert (draft.read_bytes(), list(tmp_path.iterdir())) == (before, [draft])


@pytest.mark.parametrize("at", [WRITING, VERIFYING])
def test_a_draft_that_changes_meanwhile_is_not_trimmed(tmp_path: Path, at: str) -> None:
    draft = tinygguf.llama(tmp_path / "draft.gguf", n_vocab=N_VOCAB)

    def change(message: m.Message) -> None:
        if isinstance(message, Loading) and message.model == at:
            os.utime(draft, (1, 1))

    out = tmp_path / "out.gguf"
    with pytest.raises(IntegrityError, match="was changed while it was trimmed"):
        trim(Trim(str(draft), str(out), f"{out}.tmp", keep=320, n_threads=1), change)
    assert list(tmp_path.iterdir()) == [draft]
