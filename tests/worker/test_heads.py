"""Models with heads in the engine process: every request has the text of plain decoding, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama.client import protocol as m
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.gguf.header import read_header
from specllama.gguf.trimmed import read_trim
from specllama.heads import read_head
from specllama.llama.heads import BlockContext
from specllama.models.memory.plan import plan_load
from specllama.worker.draft import LoadedHead
from specllama.worker.loader import Loaded
from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.front import Front
from tests.support.generations import generate
from tests.support.trimming import N_VOCAB, trimmed

N_SLOTS, NOISE = 4, 0.2  # noise in what a head reads, so that it is right now and then
LAST = (0.0, 1.0)
Files = tuple[Path, Path]


def inside(build: Callable[..., Path], adds: tuple[float, ...]) -> Callable[[Path], Files]:
    def write(folder: Path) -> Files:
        path = build(folder / "model.gguf", adds=adds, copied=True, head_noise=NOISE)
        return path, path

    return write


def eagle3(folder: Path) -> Files:
    target = tinygguf.llama(folder / "model.gguf", adds=LAST)
    return target, tinyheads.eagle3(folder / "head.gguf", copy_of=target, head_noise=NOISE)


def assistant(folder: Path) -> Files:
    target = tinyheads.gemma4(folder / "model.gguf", adds=(0.0, 0.0))
    return target, tinyheads.gemma4_assistant(folder / "head.gguf", copy_of=target, head_noise=NOISE)


def blocks(top_k: int) -> Callable[[Path], Files]:
    def write(folder: Path) -> Files:
        return tinygguf.llama(folder / "model.gguf"), tinyheads.dflash(folder / "head.gguf", top_k=top_k)

    return write


def trimmed_sidecar(folder: Path) -> Files:
    path = tinymtp.mimo2(folder / "model.gguf", n_vocab=N_VOCAB, adds=LAST, copied=True, head_noise=NOISE)
    return path, trimmed(path, inside=True)


def trimmed_eagle3(folder: Path) -> Files:
    target = tinygguf.llama(folder / "model.gguf", n_vocab=N_VOCAB, adds=LAST)
    d2t = [*range(0, N_VOCAB, 2), *range(1, N_VOCAB, 2)]
    head = tinyheads.eagle3(folder / "head.gguf", n_vocab=N_VOCAB, copy_of=target, head_noise=NOISE, d2t=d2t)
    return target, trimmed(head)


def trimmed_blocks(**more: Any) -> Callable[[Path], Files]:
    def write(folder: Path) -> Files:
        target = tinygguf.llama(folder / "model.gguf", n_vocab=N_VOCAB)
        if more.get("markov"):
            more["copy_of"] = target
        head = tinyheads.dflash(folder / "head.gguf", n_vocab=N_VOCAB, own_embeddings=True, **more)
        return target, trimmed(head)

    return write


KINDS: dict[str, Callable[[Path], Files]] = {
    "mimo2": inside(tinymtp.mimo2, LAST),
    "qwen35": inside(tinymtp.qwen35, (0.0, 0.0, 0.0, 1.0)),
    "step35": inside(tinymtp.step35, LAST),
    "gemma4": assistant,
    "eagle3": eagle3,
    "dflash": blocks(0),
    "dflash 2": blocks(4),
    "trimmed mtp": trimmed_sidecar,
    "trimmed eagle3": trimmed_eagle3,
    "trimmed dflash": trimmed_blocks(),
    "trimmed dflash 2": trimmed_blocks(top_k=4),
    "trimmed dspark": trimmed_blocks(markov=True),
}


@pytest.fixture(scope="module", params=KINDS)
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A model with its head, three tokens drafted in each round."""
    folder = tmp_path_factory.mktemp(request.param)
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off", "n_threads": 1}
    target, draft = (
        ModelSettings(path=str(path), n_ctx=1024, **exact)  # type: ignore[arg-type]
        for path in KINDS[request.param](folder)
    )
    more = {"memory": False, "calibrate": False, "n_slots": N_SLOTS}
    settings = LoadSettings(target=target, draft=draft, draft_max=3, **more)  # type: ignore[arg-type]
    opened = Front(settings, Store(folder / "store"))
    assert isinstance(opened.messages[-1], m.Ready), opened.messages
    assert opened.messages[-1].info.head
    yield opened
    opened.close()


@cache
def asked(seed: int, temperature: float = 0.8, n: int = 60) -> dict[str, Any]:
    params = {"max_tokens": n, "seed": seed, "temperature": temperature, "ignore_eos": True}
    return {"prompt": f"{seed} once upon a time, in a land far away", "params": params}


def drafted(front: Front) -> int:
    """Tokens that the head drafted for the last request."""
    done = next(message for message in reversed(front.messages) if isinstance(message, m.Done))
    return done.stats.drafted_by.get("head", 0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_four_requests_at_once(front: Front, temperature: float) -> None:
    requests = [asked(seed, temperature) for seed in range(N_SLOTS)]
    plain = [front.ids(**one, speculate=False) for one in requests]
    assert front.ids_at_once(requests) == plain
    done = [message for message in front.messages if isinstance(message, m.Done)]
    assert sum(one.stats.drafted_by.get("head", 0) for one in done) > 20


def test_a_stop_string_ends_the_same_text(front: Front) -> None:
    plain = front.text(**asked(5), speculate=False)
    starts = range(len(plain) // 2, len(plain) - 1)
    stop = next(plain[i : i + 2] for i in starts if plain.index(plain[i : i + 2]) == i)
    params = {**asked(5)["params"], "stop": [stop]}
    expected = front.text(prompt=asked(5)["prompt"], params=params, speculate=False)
    assert front.text(prompt=asked(5)["prompt"], params=params) == expected == plain[: plain.index(stop)]
    assert drafted(front) > 3


def test_a_grammar_allows_the_same_text(front: Front, request: pytest.FixtureRequest) -> None:
    params = {**asked(6)["params"], "grammar": "root ::= [a-f0-9]{30} | [x-z]{20}"}
    expected = front.text(prompt="hex", params=params, speculate=False)
    assert front.text(prompt="hex", params=params) == expected
    assert len(expected) in (20, 30)
    few_candidates = request.node.callspec.params["front"].endswith("dflash 2")
    assert drafted(front) > 3 or few_candidates  # none of which may be legal


def test_a_conversation_goes_on_after_it_was_cancelled(front: Front) -> None:
    one = asked(7, n=120)
    whole = front.ids(**one, speculate=False)
    front.messages.clear()
    front.core.handle(generate(1, **one))
    for _ in range(12):
        front.core.step()
    front.core.handle(m.Cancel(1))
    assert not front.core.busy
    begun = [t for message in front.messages if isinstance(message, m.Tokens) for t in message.items[0].ids]
    assert 0 < len(begun) < len(whole)
    assert begun == whole[: len(begun)]
    prompt = [*front.prompt_ids(**one), *begun[:-1]]
    turn = {"ids": [*prompt, 40, 41, 42], "params": asked(8)["params"]}
    front.ids(**turn)
    reused, spoken = _reused(front), front.ids(**turn)
    assert reused > len(prompt) - 8
    assert spoken == front.ids(**turn, speculate=False)
    assert front.ids(**one) == whole


def _reused(front: Front) -> int:
    done = front.messages[-1]
    assert isinstance(done, m.Done)
    return done.stats.n_reused


@pytest.mark.parametrize("more", [{}, {"markov": True}, {"top_k": 4}], ids=["dflash", "dspark", "dflash 2"])
def test_a_trimmed_block_drafter_has_its_sources_logits(tmp_path: Path, more: dict[str, Any]) -> None:
    """Of the tokens that it kept, bit for bit; it has none of others."""
    target = tinygguf.llama(tmp_path / "model.gguf", n_vocab=N_VOCAB)
    head = tinyheads.dflash(tmp_path / "head.gguf", n_vocab=N_VOCAB, own_embeddings=True, **more)
    copy = trimmed(head)
    trim = read_trim(read_header(copy))
    assert trim is not None
    kept = set(trim.ids.tolist())
    n_compared = 0
    rows = [_block_logits(target, path, tmp_path / path.stem) for path in (head, copy)]
    for whole, ours in zip(*rows, strict=True):
        said = set(np.flatnonzero(np.isfinite(ours)).tolist())
        assert said <= kept
        assert said == kept or "top_k" in more
        both = sorted(said & set(np.flatnonzero(np.isfinite(whole)).tolist()))
        assert np.array_equal(ours[both], whole[both])
        n_compared += len(both)
    assert n_compared > 4  # DFlash 2 has four candidates a token


def _block_logits(target: Path, head: Path, folder: Path) -> list[NDArray[np.float32]]:
    """The logits of the first token of blocks after random features: those of further ones depend on it."""
    settings = [ModelSettings(path=str(path), n_ctx=256, n_threads=1) for path in (target, head)]
    front = Front(LoadSettings(target=settings[0], draft=settings[1], memory=False), Store(folder))
    try:
        loaded = front.core.loaded
        assert loaded is not None
        assert loaded.head is not None
        blocks, rng = loaded.head.drafting, np.random.default_rng(0)
        assert isinstance(blocks, BlockContext)
        rows = []
        for token in (270, 40, 599):
            blocks.inject(0, 0, rng.standard_normal((4, blocks.n_features)).astype(np.float32))
            row = blocks.draft({0: (token, 4)})[0].logits([])
            assert row is not None
            rows.append(row.copy())
            blocks.truncate(0, 0)
        return rows
    finally:
        front.close()


# A model with several MTP layers, loaded as the engine process loads it.


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
    sent: list[m.Message] = []
    loaded = Loaded(settings, sent.append, Store(tmp_path / "store"))
    try:
        assert isinstance(loaded.head, LoadedHead)
        assert 1 + len(loaded.head.context.following) == n_contexts
        assert not [one for one in sent if isinstance(one, m.Notice)]
    finally:
        loaded.drop_draft(None)
        loaded.context.close()
        loaded.model.close()
