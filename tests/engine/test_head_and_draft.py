"""A head inside the target and a draft model of another file, loaded together in the real llama.cpp."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from specllama.client import protocol as m
from specllama.client.stream import fold
from specllama.client.tune_messages import Configure
from specllama.config.load import ModelSettings
from specllama.core.interfaces import DecodeError
from specllama.core.policy.base import CHAINS, Draft, RoundLimits
from specllama.core.policy.fixed import Fixed
from specllama.drafters.head import HeadDrafter
from specllama.drafters.model import ModelDrafter
from specllama.gguf.header import read_model
from specllama.heads import read_head
from specllama.models.memory.plan import ROLLBACK, plan_load
from specllama.worker import draft as worker_head
from specllama.worker import loader
from specllama.worker.loader import Loaded
from tests.support import tinygguf, tinymtp
from tests.support.front import Front, SlowTarget

ADDS = {"mimo2": (0.0, 1.0), "qwen35": (0.0, 0.0, 0.0, 1.0), "step35": (0.0, 1.0)}
EXACT = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off", "n_threads": 1, "n_ctx": 512}
GRAMMAR = 'root ::= "the " ("sea " | "shore " | "sky ")+ [a-z ]*'
NOT_USED = "the head of the model is not used: "


class InTurn(Fixed):
    """The head drafts in one round, the draft model in the next."""

    def draft(
        self, max_draft_len: Mapping[int, int], seconds: float = inf, limits: RoundLimits = CHAINS
    ) -> dict[int, Draft]:
        self.drafters.reverse()
        return super().draft(max_draft_len, seconds, limits)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Targets whose heads are often right, and a draft model for each that is right now and then."""
    folder, paths = tmp_path_factory.mktemp("files"), {}
    for kind, adds in ADDS.items():
        make = getattr(tinymtp, kind)
        paths[kind] = make(folder / f"{kind}.gguf", adds=adds, copied=True, head_noise=0.2)
        paths[f"{kind} draft"] = make(folder / f"{kind}-draft.gguf", adds=adds, noise=0.1, part="trunk")
    paths["promise"] = tinymtp.mimo2(folder / "promise.gguf", adds=ADDS["mimo2"], part="promise")
    paths["sidecar"] = tinymtp.mimo2(folder / "mtp-mimo2.gguf", part="head")
    paths["other"] = tinygguf.llama(folder / "other.gguf", n_vocab=500)
    return paths


@pytest.fixture
def front(fronts: Callable[..., Front]) -> Callable[..., Front]:
    """Loads a target and a draft into an engine core."""

    def make(target: Path, draft: Path | None, **more: Any) -> Front:
        t, d = (ModelSettings(path=str(path), **EXACT) if path else None for path in (target, draft))
        return fronts(target=t, draft=d, memory=False, **more)

    return make


def loaded(front: Front) -> Loaded:
    assert front.core.loaded is not None
    return front.core.loaded


def notices(front: Front) -> list[str]:
    return [message.text for message in front.messages if isinstance(message, m.Notice)]


def ready(front: Front) -> m.LoadInfo:
    last = front.messages[-1]
    assert isinstance(last, m.Ready)
    return last.info


def generate(seed: int, temperature: float, **more: Any) -> m.Generate:
    params = {"max_tokens": 48, "temperature": temperature, "seed": seed, "ignore_eos": True}
    return m.Generate(seed, m.MixedInput([list(range(20 + seed, 50 + seed))]), {**params, **more})


def answers(front: Front, *requests: m.Generate) -> tuple[list[list[int]], Counter[str], Counter[str]]:
    """The ids of requests that run together, and by source the tokens drafted and the accepted ones."""
    front.messages.clear()
    for request in requests:
        front.core.handle(request)
    while front.core.busy:
        front.core.step()
    ids: dict[int, list[int]] = {request.id: [] for request in requests}
    for message in front.messages:
        if isinstance(message, m.Tokens):
            for item in message.items:
                ids[item.id] += item.ids
    done = [message for message in front.messages if isinstance(message, m.Done)]
    assert len(done) == len(requests), front.messages
    drafted, accepted = Counter[str](), Counter[str]()
    for one in done:
        drafted.update(one.stats.drafted_by)
        accepted.update({name: sum(n) for name, n in one.stats.accepted_by.items()})
    return [ids[request.id] for request in requests], drafted, accepted


def in_turn(front: Front) -> None:
    assert front.core.engine is not None
    models = [d for d in loaded(front).drafters if d.runs_model]
    front.core.engine.scheduler.policy = InTurn(models, 3)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ADDS)
def test_both_draft_and_the_text_is_that_of_plain_decoding(
    front: Callable[..., Front], files: dict[str, Path], kind: str, temperature: float
) -> None:
    one = front(files[kind], files[f"{kind} draft"], n_slots=3)
    assert [type(d) for d in loaded(one).drafters if d.runs_model] == [ModelDrafter, HeadDrafter]
    requests = [generate(seed, temperature) for seed in (1, 2, 3)]
    plain = [answers(one, replace(request, speculate=False))[0][0] for request in requests]
    planned, _, _ = answers(one, *requests)
    assert planned == plain
    in_turn(one)
    for together in ([requests[0]], requests):
        texts, drafted, accepted = answers(one, *together)
        assert texts == plain[: len(together)]
        assert drafted["head"] > 20
        assert drafted["model"] > 20
    assert accepted["head"] > 5
    assert accepted["model"] > 5


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ADDS)
def test_the_planner_uses_both(
    front: Callable[..., Front], files: dict[str, Path], kind: str, temperature: float
) -> None:
    one = front(files[kind], files[f"{kind} draft"], n_slots=3, calibrate=False)
    SlowTarget(one)
    requests = [generate(seed, temperature) for seed in range(1, 10)]
    masked = generate(10, temperature, grammar=GRAMMAR)
    plain = [answers(one, replace(request, speculate=False))[0][0] for request in (*requests, masked)]
    drafted, accepted = Counter[str](), Counter[str]()
    for n in (0, 3, 6):
        together = ([request] for request in requests[n : n + 3]) if n < 6 else [requests[n:]]
        for some in together:
            texts, more, right = answers(one, *some)
            assert texts == [plain[request.id - 1] for request in some]
            drafted += more
            accepted += right
    assert answers(one, masked)[0] == plain[-1:]
    assert min(drafted["head"], drafted["model"]) > 0, drafted
    assert accepted["head"] + accepted["model"] > 50
    state = loaded(one).profile.planner
    assert state is not None
    assert [state.learnt.models[name].steps.curve.count(1) > 0 for name in ("model", "head")] == [True] * 2


@pytest.mark.parametrize("kind", ADDS)
def test_with_a_grammar(front: Callable[..., Front], files: dict[str, Path], kind: str) -> None:
    one = front(files[kind], files[f"{kind} draft"])
    request = generate(4, 0.8, grammar=GRAMMAR, ignore_eos=False)
    plain = answers(one, replace(request, speculate=False))[0]
    assert fold(one.messages).text.startswith("the s")
    assert answers(one, request)[0] == plain
    in_turn(one)
    texts, drafted, _ = answers(one, request)
    assert texts == plain
    assert min(drafted["head"], drafted["model"]) > 0


def test_what_is_reported(front: Callable[..., Front], files: dict[str, Path]) -> None:
    one = front(files["mimo2"], files["mimo2 draft"])
    info = ready(one)
    assert info.draft is not None
    assert (info.draft.path, info.head, info.head_in_target) == (
        str(files["mimo2 draft"]), "MTP, 1 layer", True,
    )  # fmt: skip
    assert (info.has_draft_model, info.verdict, info.n_ctx_draft) == (True, "identical", 512)
    assert (info.drafters, info.model_based) == (("grammar", "copy", "model"), ("model",))
    assert notices(one) == []
    plan = loaded(one).plan
    assert plan.head is not None
    assert info.host_bytes == plan.host
    without = front(files["mimo2"], files["mimo2"]), front(files["promise"], files["mimo2 draft"])
    keys = [loaded(one).profile.pair for one in (one, *without)]
    assert keys[0]["draft"] == keys[2]["draft"]
    assert keys[0]["head"].items() < keys[1]["draft"].items()
    assert [set(key) for key in keys[1:]] == [{"draft", "drafters"}] * 2
    assert [ready(other).has_draft_model for other in without] == [False, True]
    assert [ready(other).head_in_target for other in without] == [True, False]


@pytest.mark.parametrize(
    ("settings", "draft"),
    [({"drafters": ("grammar", "copy")}, "mimo2 draft"), ({"draft_max": 0}, "mimo2 draft"), ({}, None)],
)
def test_switched_off(
    front: Callable[..., Front], files: dict[str, Path], settings: dict[str, Any], draft: str | None
) -> None:
    one = front(files["mimo2"], files[draft] if draft else None, **settings)
    assert (loaded(one).draft, loaded(one).head, ready(one).head, ready(one).draft) == (None, None, "", None)
    assert loaded(one).plan.head is None


def test_a_head_in_a_file_of_its_own_replaces_the_one_inside(
    front: Callable[..., Front], files: dict[str, Path]
) -> None:
    one = front(files["mimo2"], files["sidecar"])
    assert (loaded(one).draft, loaded(one).plan.head) == (None, None)
    head = loaded(one).head
    assert head is not None
    assert head.head.own_file
    assert (ready(one).head_in_target, ready(one).has_draft_model) == (False, False)


def test_a_draft_that_does_not_fit_is_an_error_although_there_is_a_head(
    front: Callable[..., Front], files: dict[str, Path]
) -> None:
    one = front(files["mimo2"], files["other"], fails=True)
    (failed,) = one.messages
    assert isinstance(failed, m.Failed)
    assert failed.error["kind"] == "IncompatiblePairError"
    assert "target and draft do not fit together" in failed.error["message"]


def test_a_promised_head_is_left_out_with_one_line(
    front: Callable[..., Front], files: dict[str, Path]
) -> None:
    one = front(files["promise"], files["mimo2 draft"])
    assert notices(one) == [f"{NOT_USED}the header promises 1 MTP layer, which the file does not have"]
    assert loaded(one).draft is not None
    assert loaded(one).head is None


def test_a_head_that_cannot_be_opened_leaves_the_draft_model(
    front: Callable[..., Front], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_head, "unsupported", lambda: "it is missing")
    one = front(files["mimo2"], files["mimo2 draft"])
    assert notices(one) == ["the head cannot be used: it is missing"]
    info = ready(one)
    assert (info.head, info.head_in_target, info.has_draft_model, info.off_reason) == ("", False, True, "")


def test_a_draft_model_that_cannot_decode_leaves_the_head(
    front: Callable[..., Front], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specllama.worker import draft as worker_draft

    def fail(context: object) -> None:  # noqa: ARG001
        raise DecodeError("device lost")

    monkeypatch.setattr(worker_draft, "warm_up", fail)
    one = front(files["mimo2"], files["mimo2 draft"])
    assert notices(one) == ["the draft cannot be used: device lost"]
    info = ready(one)
    assert info.draft is not None
    assert (info.draft.path, info.head, info.has_draft_model) == (info.target.path, "MTP, 1 layer", False)
    assert "model" not in answers(one, generate(1, 0.0))[1]


@pytest.mark.parametrize("kind", ADDS)
def test_the_head_is_left_out_first_where_memory_is_short(
    front: Callable[..., Front], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    all_three = loaded(front(files[kind], files[f"{kind} draft"])).plan
    bare = getattr(tinymtp, kind)(files[kind].with_name(f"{kind}-bare.gguf"), adds=ADDS[kind], part="trunk")
    two = loaded(front(bare, files[f"{kind} draft"])).plan
    assert all_three.host > two.host
    monkeypatch.setattr(loader, "available_memory", lambda: two.host)
    one = front(files[kind], files[f"{kind} draft"])
    (only,) = notices(one)
    name = f"tiny-{kind}"
    assert only.startswith(f"{NOT_USED}not enough memory for {name}, {name} and the head of {name} with")
    assert loaded(one).plan.head is None
    assert loaded(one).head is None
    assert loaded(one).draft is not None
    assert (ready(one).head, ready(one).has_draft_model) == ("", True)
    if kind == "qwen35":
        assert loaded(one).context.max_rollback == ROLLBACK
        monkeypatch.setattr(loader, "available_memory", lambda: two.host - 1)
        fewer = front(files[kind], files[f"{kind} draft"])
        assert len(notices(fewer)) == 1
        assert loaded(fewer).head is None
        assert loaded(fewer).context.max_rollback == ROLLBACK // 2
    monkeypatch.setattr(loader, "available_memory", lambda: 10**5)
    failed = front(files[kind], files[f"{kind} draft"], fails=True).messages[-1]
    assert isinstance(failed, m.Failed)
    assert failed.error["kind"] == "ResourceError"


def test_the_first_of_several_layers_drafts_all_tokens_before_the_head_is_left_out(
    front: Callable[..., Front], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = front(files["step35"], files["step35 draft"])
    head = read_head(loaded(one).header)
    assert head is not None
    plan = plan_load(
        loaded(one).settings, loaded(one).header, read_model(str(files["step35 draft"])), 1 << 40, (),
        head=replace(head, n_chained=1),
    )  # fmt: skip
    assert plan.host < loaded(one).plan.host
    monkeypatch.setattr(loader, "available_memory", lambda: plan.host)
    less = front(files["step35"], files["step35 draft"])
    assert notices(less) == []
    heads = [loaded(each).head for each in (one, less)]
    assert [1 + len(each.context.following) if each else 0 for each in heads] == [3, 1]
    assert loaded(less).draft is not None


def test_after_a_failure_both_are_freed(
    front: Callable[..., Front], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = front(files["mimo2"], files["mimo2 draft"])
    plain = answers(one, replace(generate(1, 0.0), speculate=False))[0]
    in_turn(one)
    head, draft = loaded(one).head, loaded(one).draft
    assert head is not None
    assert draft is not None

    def fail(rows: object, *filled: int) -> None:  # noqa: ARG001
        raise DecodeError("device lost")

    monkeypatch.setattr(head.context, "decode", fail)
    assert answers(one, generate(1, 0.0))[0] == plain
    assert len(notices(one)) == 1
    assert (loaded(one).head, loaded(one).draft) == (None, None)
    assert head.context.handle is draft.context.handle is loaded(one).context.features is None
    one.core.handle(Configure(None))
    texts, drafted, _ = answers(one, generate(1, 0.0))
    assert texts == plain
    assert set(drafted) <= {"copy"}
