"""The registry: a drafter is one file and one entry, and no other code compares its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import specllama
from specllama.core.interfaces import Drafter, Mask, Proposal
from specllama.core.policy.base import Policy
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.core.policy.fixed import Fixed
from specllama.core.policy.planner import Planner
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.core.sequence import Request
from specllama.drafters import (
    REGISTRY,
    DrafterEntry,
    DrafterInputs,
    copies,
    make_drafters,
    wants_draft_model,
    words,
    words_of,
)
from specllama.drafters.ngrams import RequestHistory
from specllama.testing import TableContext, table_row
from tests.support.scripted import TableHead
from tests.unit.core.test_engine_table import N_VOCAB, engine_over, plain, run

REQUEST = Request([5, 6, 7], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), 1)


ORACLE = DrafterEntry("oracle", lambda inputs: Oracle(), "an oracle", continues=True)  # noqa: ARG005


class Oracle(Drafter, like=ORACLE):
    """Proposes from the table of the target."""

    def __init__(self) -> None:
        self.histories: dict[int, list[int]] = {}

    def start(
        self,
        seq_id: int,
        prompt: Sequence[int],
        sampler: KeyedSampler,  # noqa: ARG002
        mask: Mask | None = None,  # noqa: ARG002
    ) -> None:
        self.histories[seq_id] = list(prompt)

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        rows = {seq: table_row([*self.histories[seq], *draft], N_VOCAB) for seq, draft in drafts.items()}
        return {seq: Proposal(int(row.argmax()), 0.999) for seq, row in rows.items()}

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:
        self.histories[seq_id].extend(tokens)

    def forget(self, seq_id: int) -> None:
        self.histories.pop(seq_id, None)


def measured() -> CostCurve:
    costs = CostCurve()
    for n in range(1, DEFAULT.max_rows + 1):
        for _ in range(DEFAULT.min_samples):
            costs.observe(n, 1 + 0.05 * n)
    return costs


@pytest.mark.parametrize("kind", ["planner", "fixed"])
@pytest.mark.parametrize("runs_model", [False, True])
def test_a_new_entry_drafts_and_is_counted(monkeypatch, kind: str, runs_model: bool) -> None:
    """Model-free or not, with either policy; the output is that of plain decoding."""
    monkeypatch.setitem(REGISTRY, "oracle", replace(ORACLE, runs_model=runs_model))
    monkeypatch.setattr(Oracle, "runs_model", runs_model)
    assert "oracle" in words()
    drafters = make_drafters(["oracle"], DrafterInputs(N_VOCAB))
    assert words_of(drafters) == ["oracle"]
    policy: Policy = Fixed(drafters, 4) if kind == "fixed" else Planner(drafters, lambda: 0.0, measured())
    done = run(engine_over(TableContext(N_VOCAB, 256), policy), REQUEST)[0]
    assert done.output == plain(REQUEST).output
    assert done.stats.drafted_by["oracle"] > 20
    assert done.stats.n_accept > 20
    assert bool(done.stats.n_modelled) is runs_model
    if isinstance(policy, Planner):
        assert policy.learnt.to_dict()["tables"]["oracle"]["seen"]


def test_forced_tokens_do_not_count_as_guesses(monkeypatch) -> None:
    monkeypatch.setattr(Oracle, "forces", True)
    monkeypatch.setattr(Oracle, "prior", (0.95,))
    stats = run(engine_over(TableContext(N_VOCAB, 256), Fixed([Oracle()], 4)), REQUEST)[0].stats
    assert stats.n_forced_accept > 20
    assert stats.n_drafted == 0
    assert stats.acceptance_rate is None
    assert stats.guessed_by == {}
    assert stats.forced_by == stats.drafted_by


def test_every_entry_makes_its_drafter() -> None:
    texts = {name: RequestHistory(8) for name in ("history", "corpus")}
    inputs = DrafterInputs(N_VOCAB, {3}, TableContext(N_VOCAB, 64), TableHead(N_VOCAB), **texts)
    made = make_drafters(words(), inputs)
    assert [d.name for d in made] == list(REGISTRY)
    for drafter in made:
        entry = REGISTRY[drafter.name]
        for name in ("runs_model", "continues", "forces", "prior", "n_positions", "reads_features"):
            assert getattr(drafter, name) == getattr(entry, name)
        reads = type(drafter).features_decoded is not Drafter.features_decoded
        assert drafter.reads_features == reads
        assert entry.label


def test_drafters_not_enabled_or_without_inputs_are_not_made() -> None:
    assert [d.name for d in make_drafters(["copy"], DrafterInputs(N_VOCAB))] == ["prediction", "copy"]
    assert make_drafters(["model"], DrafterInputs(N_VOCAB)) == []
    assert make_drafters([], DrafterInputs(N_VOCAB)) == []
    assert wants_draft_model(["copy", "model"])
    assert not wants_draft_model(["copy", "grammar"])
    assert copies(["copy"])
    assert not copies(["model", "grammar"])


NAMES = "|".join(REGISTRY)
COMPARED = re.compile(
    rf"""[!=]=\s*["']({NAMES})["']|["']({NAMES})["']\s*[!=]=|["']({NAMES})["']\s+(not\s+)?in\s+\S*drafter"""
    rf"""|drafted_by\[["']|["']({NAMES})["']\s+(not\s+)?in\s+\S*sources|remove_drafter\(["']"""
)


def test_no_code_compares_a_drafters_name() -> None:
    """Code outside drafters/ uses capabilities. `config/options.py` compares the option `model`."""
    root = Path(specllama.__file__).parent
    comparisons = [
        f"{file.relative_to(root)}: {line.strip()}"
        for file in sorted(root.rglob("*.py"))
        if root / "drafters" not in file.parents and file.name != "options.py"
        for line in file.read_text().splitlines()
        if COMPARED.search(line)
    ]
    assert comparisons == []
    assert COMPARED.search('if source != "grammar"')
    assert COMPARED.search('if "model" in settings.drafters:')
