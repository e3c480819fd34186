"""Trained heads in the real llama.cpp: drafts do not change the text, a perfect head is always right, and
what a head was not fed it makes up for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow, HeadRow
from specllama.core.policy.base import Policy
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import Generation, Request
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.feature_drafter import BlockDrafter
from specllama.drafters.head import HeadDrafter
from specllama.llama.batches import LimitError
from specllama.llama.context import LlamaContext
from specllama.llama.heads import BlockContext, HeadContext, TargetFeatures, unsupported
from specllama.llama.library import llama
from specllama.llama.model import LlamaModel
from tests.support import tinygguf, tinyheads, tinymtp
from tests.support.command import Command
from tests.support.forks import BARE
from tests.support.headloop import N_DRAFT, PROMPT
from tests.support.scripted import TableMask

KINDS = ("mimo2", "qwen35", "step35", "gemma4", "eagle3", "dflash", "dflash2", "dspark")
PERFECT = ("mimo2", "qwen35", "step35", "gemma4", "eagle3")  # where a head can be made that knows the target
N_CTX, N_SLOTS, ROLLBACK = 512, 4, 8
MTP = ("mimo2", "qwen35", "step35")
LAST_ONLY = {
    **dict.fromkeys(("mimo2", "step35", "eagle3"), (0.0, 1.0)),
    "qwen35": (0.0, 0.0, 0.0, 1.0),
    "gemma4": (0.0, 0.0),
}
BLOCKS = ("dflash", "dflash2", "dspark")
TOP_K = {"dflash2": 4}
TARGET_LAYERS = {"eagle3": (0, 1, 1), **dict.fromkeys(BLOCKS, (0, 1))}
NOISE = 0.2  # in what a head reads, so that it is right now and then


def settings(path: Path) -> ModelSettings:
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off", "n_threads": 1}
    return ModelSettings(path=str(path), **exact)  # type: ignore[arg-type]


def write_pair(kind: str, folder: Path, noise: float) -> tuple[Path, Path]:
    """The files of a target and of a head that knows it but for the noise, or of a random one."""
    target, head, adds = folder / f"{kind}.gguf", folder / f"{kind}-head.gguf", LAST_ONLY.get(kind, ())
    if kind in MTP:
        make = getattr(tinymtp, kind)
        made = make(target, adds=adds, copied=True, head_noise=noise)
        return made, made
    if kind == "gemma4":
        tinyheads.gemma4(target, adds=adds)
        return target, tinyheads.gemma4_assistant(head, copy_of=target, head_noise=noise)
    tinygguf.llama(target, adds=adds)
    if kind == "eagle3":
        return target, tinyheads.eagle3(head, copy_of=target, head_noise=noise)
    dspark = kind == "dspark"
    return target, tinyheads.dflash(
        head, markov=dspark, top_k=TOP_K.get(kind, 0), block_size=N_DRAFT if dspark else N_DRAFT + 1
    )


class Pair:
    """A target without a head for plain decoding, and one whose features a head reads."""

    def __init__(self, kind: str, folder: Path, noise: float) -> None:
        target, head = write_pair(kind, folder, noise)
        self.model = LlamaModel(settings(target), with_head=target == head)
        self.head_model = self.model
        is_mtp = kind in (*MTP, "gemma4")
        if head != target:
            self.head_model = LlamaModel(settings(head), with_head=is_mtp, is_head=True)
        self.plain, self.target = (self._context() for _ in range(2))
        self.features = TargetFeatures(self.target, () if is_mtp else TARGET_LAYERS[kind])
        self.drafter: HeadDrafter | BlockDrafter
        self.context: HeadContext | BlockContext
        if kind in BLOCKS:
            self.context = BlockContext(
                self.head_model, self.target, N_CTX, n_draft=N_DRAFT, anchored=kind ==
                "dspark", causal=False, mask_id=tinyheads.MASK, n_features=self.features.width,
                top_k=TOP_K.get(kind, 0),
            )  # fmt: skip
            self.drafter = BlockDrafter(self.context, self.model.n_vocab)
        else:
            self.context = HeadContext(
                self.head_model, self.target, N_CTX, encodes=not is_mtp, n_features=self.features.width,
                reads_target=kind == "gemma4", n_layer=3 if kind == "step35" else 1,
            )  # fmt: skip
            self.drafter = HeadDrafter(self.context, self.model.n_vocab)
        self.features.reader, self.target.features = self.drafter, self.features

    def _context(self) -> LlamaContext:
        return LlamaContext(self.model, N_CTX, N_SLOTS, n_rs_seq=ROLLBACK if self.model.has_state else 0)

    def close(self) -> None:
        self.features.close()
        for one in (self.context, self.plain, self.target, self.model):
            one.close()
        if self.head_model is not self.model:
            self.head_model.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Pair]]:
    """Loads a pair by kind and noise, each once."""
    pairs: dict[tuple[str, float], Pair] = {}

    def load(kind: str, noise: float = NOISE) -> Pair:
        if (kind, noise) not in pairs:
            pairs[kind, noise] = Pair(kind, tmp_path_factory.mktemp(kind), noise)
        return pairs[kind, noise]

    yield load
    for one in pairs.values():
        one.close()


def test_this_build_has_what_heads_need() -> None:
    assert unsupported() == ""


def request(seed: int = 0, temperature: float = 0.8, n: int = 40, **more: Any) -> Request:
    params = SamplingParams(temperature=temperature, max_tokens=n, ignore_eos=True)
    return Request(list(range(20 + seed, 50 + seed)), params, 7 + seed, **more)


def run(
    context: LlamaContext, policy: Policy, *requests: Request, text_chunk: int | None = None
) -> list[Generation]:
    engine = Engine(context, policy, end_ids=(), clock=time.perf_counter, text_chunk=text_chunk)
    generations = [engine.submit(one) for one in requests]
    while engine.busy:
        engine.step()
    return generations


def plain(pair_: Pair, *requests: Request) -> list[list[int]]:
    return [run(pair_.plain, Fixed([], 0), one)[0].output for one in requests]


def always() -> CostCurve:
    """Costs with which drafts always pay."""
    costs = CostCurve()
    for n in range(1, DEFAULT.max_rows + 1):
        for _ in range(DEFAULT.min_samples):
            costs.observe(n, 1 + 0.01 * n)
    return costs


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_plain_decoding(pair, kind: str, temperature: float) -> None:
    """Alone, in several slots, with a policy that decides, after another text in the same slots."""
    one = pair(kind)
    requests = [request(seed, temperature) for seed in range(N_SLOTS)]
    expected = plain(one, *requests)
    assert run(one.target, Fixed([one.drafter], 3), requests[0])[0].output == expected[0]
    done = run(one.target, Fixed([one.drafter], 3), *requests)
    assert [g.output for g in done] == expected
    assert all(g.stats.drafted_by["head"] > 20 for g in done)
    if kind in PERFECT:
        assert sum(g.stats.n_accept for g in done) > 3
    planned = run(one.target, Planner([CopyDrafter(), one.drafter], time.perf_counter, always()), *requests)
    assert [g.output for g in planned] == expected


class Filled(Fixed):
    """Fills up the decodes of the target, where their width is held."""

    def text_width(self, greedy: bool) -> int:
        return super().text_width(greedy) + 3


@pytest.mark.parametrize("kind", KINDS)
def test_decodes_that_are_filled_up_change_neither_text_nor_drafts(pair, kind: str) -> None:
    one = pair(kind)
    requests = [request(seed, 0.8) for seed in range(3)]
    for asked in (requests[:1], requests):
        expected = run(one.target, Fixed([one.drafter], 3), *asked)
        got = run(one.target, Filled([one.drafter], 3), *asked, text_chunk=64)
        assert [g.output for g in got] == [g.output for g in expected]
        for g, other in zip(got, expected, strict=True):
            assert (g.stats.n_drafted, g.stats.n_accept) == (other.stats.n_drafted, other.stats.n_accept)
            if len(asked) == 1:
                assert set(g.stats.round_seconds) == {7}


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_llama_cpps_order_of_calls(kind: str, tmp_path: Path) -> None:
    files = write_pair(kind, tmp_path, 1.0)
    loop = {**dict.fromkeys(MTP, "mtp"), "step35": "chained", "gemma4": "assistant"}.get(kind, kind)
    done = Command(tmp_path).python("-m", "tests.support.headloop", loop, *files, imports=BARE)
    assert done.returncode == 0, done.stderr
    one = Pair(kind, tmp_path, 1.0)
    try:
        one.target.decode([BatchRow(t, i, 0, True) for i, t in enumerate(PROMPT[:-1])])
        one.drafter.start(0, PROMPT, KeyedSampler(SamplingParams(temperature=0), 0, one.model.n_vocab))
        drafted: list[int] = []
        while len(drafted) < N_DRAFT:
            drafted.append(one.drafter.step({0: drafted})[0].token)
        assert drafted == json.loads(done.stdout)["drafts"][0]
    finally:
        one.close()


@pytest.mark.parametrize("kind", PERFECT)
def test_a_head_that_knows_the_target_is_always_right(pair, kind: str) -> None:
    one = pair(kind, 0.0)
    done = run(one.target, Fixed([one.drafter], 5), request(temperature=0.0))[0]
    assert done.output == plain(one, request(temperature=0.0))[0]
    assert done.stats.n_drafted == done.stats.n_accept > 20


@pytest.mark.parametrize("kind", MTP)
def test_with_the_same_noise_it_is_right_at_a_temperature_too(pair, kind: str) -> None:
    one = pair(kind, 0.0)
    stats = run(one.target, Fixed([one.drafter], 3), request(temperature=0.8))[0].stats
    assert stats.n_accept == stats.n_drafted > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_grammar_and_a_conversation_that_goes_on(pair, kind: str) -> None:
    one = pair(kind)

    def even(out: object) -> set[int]:  # noqa: ARG001
        return set(range(0, one.model.n_vocab, 2))

    masked = [request(mask=TableMask(one.model.n_vocab, even)) for _ in range(2)]
    expected = plain(one, masked[0])[0]
    first = run(one.target, Fixed([one.drafter], 3), masked[1])[0]
    assert first.output == expected
    assert not any(token % 2 for token in expected)
    turn = Request([*first.history, 5, 6, 7], request().params, 3)
    assert run(one.target, Fixed([one.drafter], 3), turn)[0].output == plain(one, turn)[0]


@pytest.mark.parametrize("kind", ["mimo2", "step35", "eagle3", "dflash"])
def test_cells_whose_features_are_gone_are_left_out(pair, kind: str) -> None:
    """The head begins late where it was not used: its rows keep their positions."""
    one = pair(kind, 0.0)
    engine = Engine(one.target, Fixed([one.drafter], 0), end_ids=(), clock=time.perf_counter)
    generation = engine.submit(request(temperature=0.0, n=300))
    for _ in range(280):  # more than the features that are kept
        engine.step()
    assert one.drafter.cache_state(generation.seq_id).n_held == 0
    engine.scheduler.policy = Fixed([one.drafter], 3)
    while engine.busy:
        engine.step()
    assert generation.output == plain(one, request(temperature=0.0, n=300))[0]
    assert generation.stats.drafted_by["head"] > 5


def test_a_head_in_a_file_of_its_own_has_the_threads_of_its_settings(tmp_path: Path) -> None:
    target, head = write_pair("eagle3", tmp_path, NOISE)
    model = LlamaModel(settings(target))
    context = LlamaContext(model, N_CTX, N_SLOTS)
    context.set_threads(3, 4)
    for given, expected in (({}, (3, 4)), ({"n_threads": 2, "n_threads_batch": 2}, (2, 2))):
        own = LlamaModel(replace(settings(head), **given), is_head=True)
        opened = HeadContext(
            own, context, N_CTX, encodes=True, n_features=3 * llama.llama_model_n_embd(own.handle)
        )
        assert (llama.llama_n_threads(opened.handle), llama.llama_n_threads_batch(opened.handle)) == expected
        opened.close()
        own.close()
    context.close()
    model.close()


@pytest.mark.parametrize("kind", KINDS)
def test_rejects_rows_on_which_llama_cpp_would_abort(pair, kind: str) -> None:
    """In heads and block drafters as in the context of a model; all goes on after that."""
    one = pair(kind)
    context, width = one.context, one.features.width
    refused: list[Callable[[], object]] = [
        lambda: context.truncate(N_SLOTS, 0),
        lambda: context.truncate(-1, 0),
    ]
    if isinstance(context, BlockContext):
        hidden = np.zeros((2, width), np.float32)
        refused += [
            lambda: context.inject(N_SLOTS, 0, hidden),
            lambda: context.inject(0, 0, hidden[:, :-1]),
            lambda: context.draft({0: (context.n_vocab, 0)}),
            lambda: context.draft({-1: (5, 0)}),
        ]
    else:
        state = context.hidden(0, np.zeros((1, width), np.float32))[0]
        row = HeadRow(5, 0, 0, state, True)
        refused += [
            lambda: context.decode([]),
            lambda: context.decode([row._replace(pos=i, output=False) for i in range(context.n_batch + 1)]),
            lambda: context.decode([row._replace(token=context.n_vocab)]),
            lambda: context.decode([row._replace(token=-1)]),
            lambda: context.decode([row, row._replace(seq_id=N_SLOTS)]),
            lambda: context.decode([row._replace(hidden=state[:-1])]),
            lambda: context.hidden(N_SLOTS, np.zeros((1, width), np.float32)),
        ]
    for call in refused:
        with pytest.raises(LimitError):
            call()
    assert run(one.target, Fixed([one.drafter], 3), request())[0].output == plain(one, request())[0]


@pytest.mark.parametrize("kind", ["mimo2", "step35", "eagle3"])
def test_rows_of_four_texts_are_more_than_a_batch(pair, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text lacks as many rows as a batch has: they are decoded in parts."""
    one = pair(kind)
    requests = [request(seed) for seed in range(N_SLOTS)]
    decodes = []
    decode = one.context.decode

    def counted(rows: Any, n_rows: int = 0) -> Any:
        decodes.append(len(rows))
        return decode(rows, n_rows)

    monkeypatch.setattr(one.context, "n_batch", 5)
    monkeypatch.setattr(one.context, "decode", counted)
    assert [g.output for g in run(one.target, Fixed([one.drafter], 3), *requests)] == plain(one, *requests)
    assert max(decodes) == 5


def test_an_engine_without_the_head_goes_on_when_it_fails(pair, monkeypatch) -> None:
    from specllama.core.interfaces import DecodeError

    one = pair("mimo2")
    engine = Engine(one.target, Fixed([one.drafter], 3), end_ids=(), clock=time.perf_counter)
    generation = engine.submit(request())
    for _ in range(5):
        engine.step()

    def fail(rows: object, *filled: int) -> None:  # noqa: ARG001
        raise DecodeError("broken")

    monkeypatch.setattr(one.context, "decode", fail)
    while engine.busy:
        engine.step()
    assert engine.draft_failed
    assert engine.scheduler.policy.drafters == []
    assert generation.output == plain(one, request())[0]
