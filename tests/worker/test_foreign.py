"""Draft models of another vocabulary in the engine process: the text of plain decoding, and the drafts of the
same model with the target's vocabulary where only the ids differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama.client import protocol as m
from specllama.client.tune_messages import Tune, Tuned
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import WIDTHS, CostCurve
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.llama.draft_contexts import ForeignContext
from specllama.models.foreign_drafts import MeasuredDrafts
from specllama.worker.drafting_gain import store_answers
from specllama.worker.tuning import tuner
from tests.support import tinygguf
from tests.support.foreign import permuted
from tests.support.front import Front
from tests.support.generations import generate

N_SLOTS = 4
EXACT: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off", "n_threads": 1}
PROMPTS = ("import os\n\ndef walk(path):\n    ", "class Counter(dict):\n    def update(self")
KINDS: dict[str, dict[str, Any]] = {"ids": {}, "merges": {"every": 4}, "tokens": {"every": 4, "drop": True}}


def loaded_with(draft: Path, folder: Path, vocab: str = "auto", target: Path = EMBEDDED_TARGET) -> Front:
    settings = [ModelSettings(path=str(path), n_ctx=1024, **EXACT) for path in (target, draft)]
    load = LoadSettings(
        target=settings[0],
        draft=settings[1],
        draft_max=3,
        draft_vocab=vocab,
        memory=False,
        calibrate=False,
        n_slots=N_SLOTS,
        drafters=("model",),
    )
    return Front(load, Store(folder / "store"))


def asked(i: int, temperature: float, n: int = 60) -> dict[str, Any]:
    params = {"max_tokens": n, "seed": i, "temperature": temperature, "ignore_eos": True}
    return {"prompt": PROMPTS[i % 2], "params": params}


def drafted(front: Front, temperature: float) -> list[tuple[int, int]]:
    """Drafted and accepted tokens of each request, whose text is that of plain decoding."""
    counts = []
    for i in range(2):
        ids = front.ids(**asked(i, temperature))
        done = front.messages[-1]
        assert isinstance(done, m.Done)
        counts.append((done.stats.n_drafted, done.stats.n_accept))
        assert ids == front.ids(**asked(i, temperature), speculate=False)
    return counts


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """With the draft of the target's own vocabulary."""
    front = loaded_with(Path(EMBEDDED_DRAFT), tmp_path_factory.mktemp("same"))
    yield front
    front.close()


@pytest.fixture(scope="module", params=KINDS)
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp(request.param)
    opened = loaded_with(
        permuted(Path(EMBEDDED_DRAFT), folder / "draft.gguf", **KINDS[request.param]), folder
    )
    assert isinstance(opened.messages[-1], m.Ready), opened.messages
    assert opened.core.loaded is not None
    assert opened.core.loaded.draft is not None
    assert isinstance(opened.core.loaded.draft.context, ForeignContext)
    opened.kind = request.param  # type: ignore[attr-defined]
    yield opened
    opened.close()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_drafts_what_the_same_model_drafts_with_the_targets_ids(
    front: Front, same: Front, temperature: float
) -> None:
    ours, theirs = drafted(front, temperature), drafted(same, temperature)
    if front.kind == "ids":  # type: ignore[attr-defined]
        assert ours == theirs
    assert sum(accepted for _, accepted in ours) >= 0.7 * sum(accepted for _, accepted in theirs) > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_four_requests_at_once(front: Front, temperature: float) -> None:
    requests = [asked(i, temperature, 40) for i in range(N_SLOTS)]
    plain = [front.ids(**one, speculate=False) for one in requests]
    front.messages.clear()
    for id_, one in enumerate(requests, 1):
        front.core.handle(generate(id_, **one))
    while front.core.busy:
        front.core.step()
    items = [i for message in front.messages if isinstance(message, m.Tokens) for i in message.items]
    assert [[t for i in items if i.id == id_ for t in i.ids] for id_ in range(1, N_SLOTS + 1)] == plain


def test_grammars_stop_strings_and_biases_leave_the_same_text(front: Front) -> None:
    plain = front.text(**asked(1, 0.8), speculate=False)
    ids = front.ids(**asked(1, 0.8), speculate=False)
    for more in (
        {"stop": [plain[20:23]]},
        {"grammar": "root ::= [a-z ]{30} | [0-9]{20}"},
        {"json_schema": '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}'},
        {"logit_bias": {ids[0]: -3.0, ids[5]: 2.0}, "repeat_penalty": 1.3},
        {"top_k": 3},
    ):
        request = {**asked(1, 0.8), "params": {**asked(1, 0.8)["params"], **more}}
        assert front.text(**request) == front.text(**request, speculate=False)


def test_a_prefix_is_used_again_after_a_change_of_the_text(front: Front) -> None:
    prompt = list(front.prompt_ids(**asked(0, 0.0)))
    for tail in ([400, 401, 598, 42], [400, 597], [400, 401, 598, 43], [1, 400, 2]):
        request = {"ids": [*prompt, *tail], "params": asked(0, 0.0, 20)["params"]}
        assert front.ids(**request) == front.ids(**request, speculate=False)


def test_text_beyond_ascii_and_split_characters(front: Front) -> None:
    for prompt in ("# größer — „naïve“ 日本語\n", "emoji = '😀😀"):
        ids = list(front.prompt_ids(prompt=prompt, params=asked(0, 0.0)["params"]))
        for n in (len(ids), len(ids) - 1, len(ids) - 2):
            request = {"ids": ids[:n], "params": asked(0, 0.8, 20)["params"]}
            assert front.ids(**request) == front.ids(**request, speculate=False)


def planned(folder: Path) -> Front:
    """With a draft whose ids alone differ, by the planner."""
    draft = permuted(Path(EMBEDDED_DRAFT), folder / "draft.gguf")
    settings = [ModelSettings(path=str(path), n_ctx=1024, **EXACT) for path in (EMBEDDED_TARGET, draft)]
    load = LoadSettings(target=settings[0], draft=settings[1], draft_vocab="auto", memory=False)
    return Front(load, Store(folder / "store"))


def test_a_planner_drafts_with_it(tmp_path: Path) -> None:
    front = planned(tmp_path)
    try:
        loaded = front.core.loaded
        assert loaded is not None
        assert loaded.draft is not None
        assert loaded.draft.key["draft_vocab"] == "auto"
        assert loaded.verdicts[0].verdict == "translated"
        assert front.ids(**asked(0, 0.0, 120)) == front.ids(**asked(0, 0.0, 120), speculate=False)
    finally:
        front.close()


def test_a_strict_load_refuses_it_and_says_what_helps(tmp_path: Path) -> None:
    draft = permuted(Path(EMBEDDED_DRAFT), tmp_path / "draft.gguf")
    (failed,) = (x for x in loaded_with(draft, tmp_path, "strict").messages if isinstance(x, m.Failed))
    assert "do not fit together: " in failed.error["message"]
    assert "100 % of tokens shared" in failed.error["hint"]


def test_a_tokenizer_that_is_not_understood_is_left_out_with_a_line(tmp_path: Path) -> None:
    draft = permuted(Path(EMBEDDED_DRAFT), tmp_path / "draft.gguf", prefix="~~")
    front = loaded_with(draft, tmp_path)
    try:
        notices = [x.text for x in front.messages if isinstance(x, m.Notice)]
        assert any("the vocabularies share 0 of the draft" in text for text in notices)
        assert isinstance(front.messages[-1], m.Ready)
        assert front.core.loaded is not None
        assert front.core.loaded.draft is None
        assert front.ids(**asked(0, 0.0, 8))
    finally:
        front.close()


def test_a_random_model_with_other_tokens(tmp_path: Path) -> None:
    """Few tokens in common, and a target whose tokens the draft has to spell."""
    target = tinygguf.llama(tmp_path / "target.gguf", n_vocab=600)
    front = loaded_with(Path(EMBEDDED_DRAFT), tmp_path, target=target)
    try:
        assert isinstance(front.messages[-1], m.Ready), front.messages
        for temperature in (0.0, 0.8):
            assert front.ids(**asked(1, temperature)) == front.ids(**asked(1, temperature), speculate=False)
    finally:
        front.close()


def test_what_tune_predicts_is_kept_for_later_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (tuner, "CURVE_SECONDS"),
        (tuner, "THREAD_SECONDS"),
        (tuner, "STEP_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(tuner, "_MIN_COMPARE_SECONDS", 0.1)
    draft = permuted(Path(EMBEDDED_DRAFT), tmp_path / "draft.gguf")
    settings = [ModelSettings(path=str(path), n_ctx=512, **EXACT) for path in (EMBEDDED_TARGET, draft)]
    load = LoadSettings(target=settings[0], draft_vocab="auto", memory=False)
    front = Front(load, Store(tmp_path / "store"), open_draft=False)
    try:
        front.core.handle(Tune(7, [("a", PROMPTS[0])], settings[1:], 24, raw=True, ignore_load=True))
        while front.core.busy:
            front.core.step()
        assert isinstance(front.messages[-1], Tuned)
        assert front.core.loaded is not None
        (kept,) = measured_drafts(front, tmp_path).all()
    finally:
        front.close()
    assert (kept.path, kept.source) == (str(draft), "tune")
    assert 0 < kept.n_tokens <= 24
    assert kept.speedup > 0
    assert kept.without >= 1
    assert kept.acceptance is not None


def test_answers_are_kept_once_there_are_enough(tmp_path: Path) -> None:
    front = planned(tmp_path)
    try:
        loaded = front.core.loaded
        assert loaded is not None
        assert loaded.profile.planner is not None
        planner = loaded.profile.planner
        learnt = planner.learnt
        store_answers(loaded)
        assert measured_drafts(front, tmp_path).all() == []
        for i in range(40):
            learnt.tables["model"].observe(9, i % 4 > 0)
        costs = CostCurve()
        for n in WIDTHS * DEFAULT.min_samples:
            costs.observe(n, 1 + 0.01 * n)
        planner.use_costs(costs)
        learnt.models["model"].steps.curve = CostCurve.from_dict({"widths": [[1, 0.01, DEFAULT.min_samples]]})
        speedup = planner.expected_speedup("model")
        assert speedup is not None
        assert speedup > 1.3
        front.core.shut_down()
        (kept,) = measured_drafts(front, tmp_path).all()
        assert (kept.source, kept.without, kept.pays) == ("answers", 1.0, True)
        assert kept.speedup == pytest.approx(speedup, abs=1e-4)
        assert kept.acceptance == pytest.approx(0.75, abs=0.01)
    finally:
        front.close()


def measured_drafts(front: Front, folder: Path) -> MeasuredDrafts:
    """What was stored next to a profile in `folder`."""
    assert front.core.loaded is not None
    return MeasuredDrafts(front.core.loaded.header, Store(folder / "drafts"))
