"""Texts: with any drafts, and among others, each is what plain decoding writes for it alone."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from specllama.core.engine import Engine
    from specllama.core.interfaces import Context, Drafter
    from specllama.core.policy.cost_curve import CostCurve
    from specllama.core.sequence import Generation, Request
    from specllama.llama.model import LlamaModel

MEMORIES = ("full", "window", "rollback", "checkpoint")  # of `TableContext`, everywhere
MODELS = ("llama", "gemma3", "pydoc", "eagle3", "gemma4", "mimo2", "lfm2", "jamba", "mamba", "qwen35")
HEADS = ("eagle3", "gemma4", "mimo2", "qwen35")
N_VOCAB = 32  # of tables
ROLLBACK = 8  # states that recurrent models keep
WIDEST = 63  # rows of a decode that round like a single one
N_STEPS = 20_000
# Parameters that are not sampling steps, or need a tokenizer, have their own values or none.
ELSEWHERE = ("n", "max_tokens", "seed", "stop", "json_schema", "grammar", "logit_bias", "logprobs",
             "samplers", "dry_sequence_breakers", "mirostat", "adaptive_target")  # fmt: skip


@dataclass
class Opened:
    """A target context and what drafts for it. closing: called at the end, the last first."""

    target: Context
    drafters: dict[str, Drafter] = field(default_factory=dict)
    closing: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        while self.closing:
            self.closing.pop()()


class Source(Protocol):
    """Where contexts come from. n_vocab: ids of prompts are smaller. end_ids: end a text."""

    n_vocab: int
    end_ids: Sequence[int]

    def open(self, n_ctx: int, n_slots: int, drafts: bool) -> Opened:
        """A target for `n_slots` texts, with all drafters that fit it if `drafts`."""


class Table:
    """Logits that are a function of the ids before."""

    n_vocab, end_ids = N_VOCAB, (3,)

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def open(self, n_ctx: int, n_slots: int, drafts: bool) -> Opened:
        from specllama.drafters.head import HeadDrafter
        from specllama.drafters.model import ModelDrafter
        from specllama.testing import TableContext, table_row
        from tests.support.scripted import TableHead

        target = TableContext(N_VOCAB, n_ctx, n_slots, self._memory)
        opened = Opened(target)
        if drafts:
            rows = lambda ids: table_row(ids, N_VOCAB) + table_row(ids, N_VOCAB, 1) * 0.5  # noqa: E731
            opened.drafters["model"] = ModelDrafter(TableContext(N_VOCAB, n_ctx, n_slots, rows=rows), N_VOCAB)
            head = HeadDrafter(TableHead(N_VOCAB, n_ctx, n_slots), N_VOCAB)
            opened.drafters["head"] = target.reader = head
        return opened


class Real:
    """A model in llama.cpp with weights and a cache of 16-bit floats, for which the kernels round every row
    alike, and its draft model or head.
    """

    end_ids = (1, 2)

    def __init__(self, kind: str, folder: Path) -> None:
        target, other = _files(kind, folder)
        self._kind, self._mtp = kind, kind in ("mimo2", "qwen35", "gemma4")
        self._model = _loaded(target, with_head=self._mtp and target == other)
        self._other = self._model if target == other else None
        if self._other is None:
            is_head = kind in HEADS
            self._other = _loaded(other, with_head=self._mtp, is_head=is_head)
        self.n_vocab = self._model.n_vocab

    def open(self, n_ctx: int, n_slots: int, drafts: bool) -> Opened:
        from specllama.drafters.head import HeadDrafter
        from specllama.drafters.model import ModelDrafter
        from specllama.llama.context import LlamaContext
        from specllama.llama.heads import HeadContext, TargetFeatures

        n_states = ROLLBACK if self._model.has_state else 0
        target = LlamaContext(self._model, n_ctx, n_slots, n_rs_seq=n_states)
        opened = Opened(target, closing=[target.close])
        assert self._other is not None
        if not drafts:
            return opened
        if self._kind not in HEADS:
            draft = LlamaContext(self._other, n_ctx, n_slots)
            opened.closing.append(draft.close)
            opened.drafters["model"] = ModelDrafter(draft, self.n_vocab)
            return opened
        features = TargetFeatures(target, () if self._mtp else (0, 1, 1))
        head = HeadContext(
            self._other, target, n_ctx, encodes=not self._mtp, n_features=features.width,
            reads_target=self._kind == "gemma4", n_layer=1,
        )  # fmt: skip
        drafter = HeadDrafter(head, self.n_vocab)
        features.reader, target.features = drafter, features
        opened.closing += [head.close, features.close]
        opened.drafters["head"] = drafter
        return opened


class Lossless:
    """Several texts at random moments, with random sampling and drafts; each against itself alone."""

    name, seconds, n_bytes, batch = "lossless", 30.0, 1 << 30, 100

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def set_up(self) -> None:
        from specllama.llama.library import KERNELS

        self._sources = {f"table, {memory}": Table(memory) for memory in MEMORIES}
        if KERNELS.level:  # without them rows of wider decodes are rounded differently
            self._folder = tempfile.TemporaryDirectory(prefix="specllama-fuzz-")
            folder = Path(self._folder.name)
            self._sources |= {kind: Real(kind, folder) for kind in MODELS}

    def make(self, rng: random.Random) -> bytes:
        name = rng.choice([*self._sources])
        source, table = self._sources[name], name.startswith("table")
        longest = rng.choice((10, 40, 120) if not table else (4, 12, 20))
        starts = [_ids(rng, source, rng.randrange(1, longest)) for _ in range(2)]
        texts = []
        for _ in range(rng.choice((1, 2, 4, 7))):
            start = rng.choice(([], *starts))
            prompt = [*start[: rng.randrange(len(start) + 1)], *_ids(rng, source, rng.randrange(1, longest))]
            texts.append(
                {"prompt": prompt, "seed": rng.randrange(2**64), "at": rng.choice((0, 0, rng.randrange(60))),
                 "params": params(rng, source.n_vocab)}
            )  # fmt: skip
        case = {
            "source": name, "slots": rng.choice((1, 4)),
            "n_ctx": rng.choice((64, 400) if table else (256, 2048)),
            "drafters": rng.choice((["copy"], ["model", "head"], ["copy", "model", "head"])),
            "n_draft": rng.choice((0, 1, 3, 7, None, None)), "texts": texts,
        }  # fmt: skip
        return json.dumps(case).encode()

    def run(self, data: bytes) -> str:
        case = json.loads(data)
        source = self._sources[case["source"]]
        requests = [_request(text) for text in case["texts"]]
        expected = [_alone(source, request) for request in requests]
        opened = source.open(case["n_ctx"], case["slots"], bool(case["drafters"]))
        try:
            engine = _engine(opened, source, case["drafters"], case["n_draft"])
            got = _run(engine, requests, [text["at"] for text in case["texts"]])
        finally:
            opened.close()
        for i, (found, plain) in enumerate(zip(got, expected, strict=True)):
            _compare(f"text {i}", found, plain)
        if any(g.stats.n_accept for g in got):
            return "accepted"
        return "rejected" if any(g.stats.n_drafted for g in got) else "not drafted"

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def params(rng: random.Random, n_vocab: int) -> dict[str, Any]:
    """Sampling parameters: each step that exists is off, at its default, or anywhere in its range; half of
    the time in any order.
    """
    from specllama.core.sampling.params import PARAMETERS, STEP_NAMES

    found: dict[str, Any] = {
        "temperature": rng.choice((0, 0, 0.3, 0.8, 1.0, 1.5, rng.uniform(0, 1.5))),
        "max_tokens": rng.choice((1, 7, 25, 40, 60)), "logprobs": rng.choice((None, 0, 3)),
    }  # fmt: skip
    for name, entry in PARAMETERS.items():
        if name in ELSEWHERE or name in found or rng.random() < 0.6:
            continue
        if entry.kind is bool:
            found[name] = rng.random() < 0.5
        elif entry.kind is int and entry.many:
            found[name] = [rng.randrange(n_vocab) for _ in range(rng.randint(1, 3))]
        elif entry.kind is int:
            found[name] = rng.randint(int(entry.low), int(min(entry.high, 100)))
        elif entry.kind is float:
            found[name] = rng.uniform(entry.low, entry.high) if entry.high <= 1 else rng.uniform(0.5, 1.5)
    if rng.random() < 0.5:
        found["samplers"] = rng.choices([*STEP_NAMES.values()], k=rng.randint(0, 12))
        found["adaptive_target"] = rng.uniform(-0.5, 1)
        found["mirostat"] = rng.choice((0, 0, 0, 1, 2))
    if "min_tokens" in found:
        found["min_tokens"] = min(found["min_tokens"], found["max_tokens"])
    if rng.random() < 0.2:
        found["logit_bias"] = {str(rng.randrange(n_vocab)): rng.uniform(-5, 5) for _ in range(3)}
    return found


def _ids(rng: random.Random, source: Source, n: int) -> list[int]:
    few = [rng.randrange(4, source.n_vocab) for _ in range(5)]  # repeated, so that something can be copied
    return [rng.choice(few) if rng.random() < 0.7 else rng.randrange(4, source.n_vocab) for _ in range(n)]


def _request(text: dict[str, Any]) -> Request:
    from specllama.core.sampling.params import SamplingParams
    from specllama.core.sequence import Request

    values = dict(text["params"])
    if "logit_bias" in values:
        values["logit_bias"] = {int(token): bias for token, bias in values["logit_bias"].items()}
    breakers = {text["prompt"][0]: [(), (5, 6)]}
    return Request(text["prompt"], SamplingParams(**values), text["seed"], breakers=breakers)


def _alone(source: Source, request: Request) -> Generation:
    opened = source.open(2048, 1, drafts=False)
    try:
        return _run(_engine(opened, source, [], 0), [request], [0])[0]
    finally:
        opened.close()


def _engine(opened: Opened, source: Source, names: Sequence[str], n_draft: int | None) -> Engine:
    from specllama.core.engine import Engine
    from specllama.core.policy.base import Policy
    from specllama.core.policy.fixed import Fixed
    from specllama.core.policy.planner import Planner
    from specllama.drafters.copy import CopyDrafter

    drafters: list[Drafter] = [CopyDrafter()] if "copy" in names else []
    drafters += [drafter for name, drafter in opened.drafters.items() if name in names]
    policy: Policy = (
        Planner(drafters, time.perf_counter, _cheap()) if n_draft is None else Fixed(drafters, n_draft)
    )
    return Engine(opened.target, policy, end_ids=source.end_ids, clock=time.perf_counter, max_rows=WIDEST)


def _cheap() -> CostCurve:
    """Costs of decodes with which drafts pay."""
    from specllama.core.policy.config import DEFAULT
    from specllama.core.policy.cost_curve import CostCurve

    found = CostCurve()
    for n in range(1, DEFAULT.max_rows + 1):
        for _ in range(DEFAULT.min_samples):
            found.observe(n, 1 + 0.01 * n)
    return found


def _run(engine: Engine, requests: Sequence[Request], at: Sequence[int]) -> list[Generation]:
    """at: the step before which each request is submitted."""
    found: dict[int, Generation] = {}
    for step in range(N_STEPS):
        for i, request in enumerate(requests):
            if i not in found and (at[i] <= step):
                found[i] = engine.submit(request)
        engine.step()
        if len(found) == len(requests) and not engine.busy:
            return [found[i] for i in range(len(requests))]
    raise AssertionError(f"not finished after {N_STEPS} steps")


def _compare(name: str, got: Generation, plain: Generation) -> None:
    n = len(got.output) if got.finish_reason == "context" else len(plain.output)  # the context may be full
    assert got.output == plain.output[:n], (
        f"{name}: token {_first(got.output, plain.output)} of {len(plain.output)} differs from plain decoding"
    )
    if n == len(plain.output):
        assert got.finish_reason == plain.finish_reason, f"{name}: {got.finish_reason}, {plain.finish_reason}"
    at = _first(got.logprobs, plain.logprobs[:n])
    assert at is None, f"{name}: log probability of token {at} differs from plain decoding"


def _first(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    """The first place where they differ."""
    if len(a) != len(b) and a[: min(len(a), len(b))] == b[: min(len(a), len(b))]:
        return min(len(a), len(b))
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def _files(kind: str, folder: Path) -> tuple[Path, Path]:
    """The files of a target, and of its draft model or head."""
    from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
    from tests.support import tinygguf, tinyheads, tinymtp

    if kind == "pydoc":
        return Path(EMBEDDED_TARGET), Path(EMBEDDED_DRAFT)
    full, other = folder / f"{kind}.gguf", folder / f"{kind}-other.gguf"
    if kind in ("mimo2", "qwen35"):
        adds = (0.0, 1.0) if kind == "mimo2" else (0.0, 0.0, 0.0, 1.0)
        getattr(tinymtp, kind)(full, adds=adds, copied=True, head_noise=0.2)
        half = _half(full)
        return half, half
    if kind == "eagle3":
        tinygguf.llama(full, adds=(0.0, 1.0))
        tinyheads.eagle3(other, copy_of=full, head_noise=0.2)
    elif kind == "gemma4":
        tinyheads.gemma4(full, adds=(0.0, 0.0))
        tinyheads.gemma4_assistant(other, copy_of=full, head_noise=0.2)
    else:
        getattr(tinygguf, kind)(full)
        getattr(tinygguf, kind)(other, noise=0.1)
    return _half(full), other


def _half(path: Path) -> Path:
    """The model with weights of 16-bit floats."""
    import ctypes

    from specllama.llama.library import llama

    params, out = llama.llama_model_quantize_default_params(), path.with_suffix(".f16.gguf")
    params.ftype, params.nthread = llama.LLAMA_FTYPE_MOSTLY_F16, 1
    done = llama.llama_model_quantize(str(path).encode(), str(out).encode(), ctypes.byref(params))
    assert done == 0, f"{path} cannot be converted"
    return out


def _loaded(path: Path, with_head: bool, is_head: bool = False) -> LlamaModel:
    from specllama.config.load import ModelSettings
    from specllama.llama.model import LlamaModel

    return LlamaModel(ModelSettings(path=str(path), n_threads=1), with_head=with_head, is_head=is_head)
