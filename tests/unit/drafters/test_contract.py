"""The contract of `Drafter`, for every drafter: valid proposals, unchanged inputs, any accept pattern."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specllama.core.interfaces import BatchRow, BlockRows, Drafter, Proposal
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters.copy import CopyDrafter
from specllama.drafters.feature_drafter import BlockDrafter
from specllama.drafters.foreign import ForeignDrafter
from specllama.drafters.grammar import GrammarDrafter
from specllama.drafters.head import HeadDrafter
from specllama.drafters.history import HistoryDrafter
from specllama.drafters.model import ModelDrafter
from specllama.drafters.ngrams import RequestHistory
from specllama.drafters.prediction import PredictionDrafter
from specllama.testing import N_FEATURES, TableContext, table_row
from tests.support.scripted import TableHead, TableMask
from tests.support.spellers import letters

N_VOCAB = 32  # of every drafter here
SEQUENCES = (0, 1)
SAMPLER = KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB)


class CountingGrammar(GrammarDrafter):
    """After an id below 4 the next higher one is forced, whatever the sequence."""

    def start(self, seq_id, prompt, sampler, mask=None) -> None:
        last = [prompt[-1]]
        mask = TableMask(N_VOCAB, lambda out: {x + 1} if (x := [*last, *out][-1]) < 4 else {0, 1})
        super().start(seq_id, prompt, sampler, mask)

    def committed(self, seq_id, tokens) -> None:
        self.masks[seq_id].output.extend(tokens)  # as the engine does
        super().committed(seq_id, tokens)


def with_history() -> HistoryDrafter:
    """A drafter whose history has most of the 3-grams that these tests use."""
    history, rng = RequestHistory(), random.Random(1)
    for _ in range(20):
        history.keep("", rng.choices(range(7), k=30), 5)
    return HistoryDrafter(history)


class Blocks:
    """A block head whose logits depend on the last token and the place. Asserts that cells are in order."""

    def __init__(self) -> None:
        self.n_ctx, self.n_vocab, self.n_seq_max, self.n_features, self.n_draft = (
            512,
            N_VOCAB,
            2,
            N_FEATURES,
            3,
        )
        self.cells: dict[int, list[int]] = {0: [], 1: []}

    def inject(self, seq_id, first, features) -> None:
        cells = self.cells[seq_id]
        assert not cells or first == cells[-1] + 1
        cells.extend(range(first, first + len(features)))

    def draft(self, last) -> dict[int, BlockRows]:
        for seq_id, (_, pos) in last.items():
            assert self.cells[seq_id][-1] == pos - 1
        return {
            seq_id: BlockRows(np.stack([table_row([token, i], N_VOCAB) for i in range(self.n_draft)]))
            for seq_id, (token, _) in last.items()
        }

    def truncate(self, seq_id, pos) -> None:
        self.cells[seq_id] = [p for p in self.cells[seq_id] if p < pos]


class Featured:
    """Gives a drafter the features of every token at once, as if the target had decoded it."""

    def start(self, seq_id, prompt, sampler, mask=None) -> None:
        self._decoded(seq_id, prompt, 0)
        super().start(seq_id, prompt, sampler, mask)

    def committed(self, seq_id, tokens) -> None:
        super().committed(seq_id, tokens)
        self._decoded(seq_id, self.states[seq_id].history, len(self.states[seq_id].history) - len(tokens))

    def _decoded(self, seq_id: int, ids: list[int], first: int) -> None:
        target = TableContext(N_VOCAB, 512, 2)
        target.cells[seq_id] = ids[:first]
        target.reader = self
        if batch := [BatchRow(token, first + i, seq_id, True) for i, token in enumerate(ids[first:])]:
            target.decode(batch)


class WithFeatures(Featured, HeadDrafter):
    pass


def layered(n: int) -> HeadDrafter:
    """A drafter whose head has `n` - 1 following ones."""
    head = TableHead(N_VOCAB, 512, 2)
    head.following = [TableHead(N_VOCAB, 512, 2) for _ in range(n - 1)]
    return WithFeatures(head, N_VOCAB)


class BlockWithFeatures(Featured, BlockDrafter):
    pass


def with_predictions() -> PredictionDrafter:
    """A drafter whose sequences are predicted to have most of the 3-grams that these tests use."""
    drafter, rng = PredictionDrafter(), random.Random(2)
    for seq_id in SEQUENCES:
        drafter.set_prediction(seq_id, rng.choices(range(7), k=300), 1)
    drafter._predictions = Kept(drafter._predictions)
    return drafter


class Kept(dict):
    """Predictions that every text of a sequence has."""

    def pop(self, key, default=None) -> object:
        return self.get(key, default)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "copy": CopyDrafter,
    "prediction": with_predictions,
    "no prediction": PredictionDrafter,
    "memory": with_history,
    "empty memory": lambda: HistoryDrafter(RequestHistory()),
    "grammar": CountingGrammar,
    "no grammar": GrammarDrafter,
    "model": lambda: ModelDrafter(TableContext(N_VOCAB, 512, 2), N_VOCAB),
    "head": lambda: WithFeatures(TableHead(N_VOCAB, 512, 2), N_VOCAB),
    "head, lagging": lambda: WithFeatures(TableHead(N_VOCAB, 512, 2, lag=1), N_VOCAB),
    "head, no cache": lambda: WithFeatures(TableHead(N_VOCAB, 512, 2, reads_target=True), N_VOCAB),
    "head, two layers": lambda: layered(2),
    "head, four layers": lambda: layered(4),
    "block": lambda: BlockWithFeatures(Blocks(), N_VOCAB),
    "model, other vocabulary": lambda: ForeignDrafter(
        TableContext(letters().ids.n_vocab, 512, 2), letters(), end_ids={0}
    ),
    "model, recurrent": lambda: ModelDrafter(TableContext(N_VOCAB, 512, 2, "checkpoint"), N_VOCAB),
}

tokens = st.integers(0, 6)
prompts = st.lists(tokens, min_size=1, max_size=24)
rounds = st.lists(  # per round: tokens drafted at most, of them accepted at most, the target's next token
    st.tuples(st.integers(0, 4), st.integers(0, 4), tokens), max_size=8
)

pytestmark = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)


def started(make: Callable[[], Drafter], *histories: list[int]) -> Drafter:
    drafter = make()
    for seq_id, history in enumerate(histories):
        drafter.start(seq_id, history, SAMPLER)
    return drafter


def draft(drafter: Drafter, limits: dict[int, int]) -> dict[int, list[Proposal]]:
    """Step all sequences together until each has its limit or runs out."""
    runs: dict[int, list[Proposal]] = {seq_id: [] for seq_id in limits}
    open_ = {seq_id for seq_id, limit in limits.items() if limit}
    while open_:
        proposals = drafter.step({seq_id: [p.token for p in runs[seq_id]] for seq_id in open_})
        assert proposals.keys() <= open_, "a proposal for another sequence"
        for seq_id, proposal in proposals.items():
            runs[seq_id].append(proposal)
        open_ = {seq_id for seq_id in proposals if len(runs[seq_id]) < limits[seq_id]}
    return runs


def play(
    drafter: Drafter, histories: list[list[int]], played: list[tuple[int, int, int]]
) -> list[dict[int, list[Proposal]]]:
    """Rounds of drafting and accepting; sequence n accepts n tokens less than sequence 0."""
    drafts = []
    for n_draft, n_accept, token in played:
        runs = draft(drafter, dict.fromkeys(SEQUENCES, n_draft))
        drafts.append(runs)
        for seq_id, run in runs.items():
            emitted = [*(p.token for p in run[: max(0, n_accept - seq_id)]), token]
            histories[seq_id] += emitted
            drafter.committed(seq_id, emitted)
    return drafts


@given(prompts, prompts, rounds)
def test_proposals_are_valid_ids_and_probabilities(make, first, second, played) -> None:
    for runs in play(started(make, first, second), [first[:], second[:]], played):
        for proposal in (p for run in runs.values() for p in run):
            assert 0 <= proposal.token < N_VOCAB
            assert 0 <= proposal.confidence <= 1


@given(prompts, prompts, rounds)
def test_the_same_rounds_give_the_same_drafts(make, first, second, played) -> None:
    once, again = (play(started(make, first, second), [first[:], second[:]], played) for _ in range(2))
    assert tokens_of(once) == tokens_of(again)


@given(prompts, prompts, rounds)
def test_any_accept_pattern_leaves_the_state_of_a_fresh_drafter(make, first, second, played) -> None:
    drafter, histories = started(make, first, second), [first[:], second[:]]
    play(drafter, histories, played)
    fresh = started(make, first, second)
    for seq_id, (history, prompt) in enumerate(zip(histories, (first, second), strict=True)):
        fresh.committed(seq_id, history[len(prompt) :])
    limits = dict.fromkeys(SEQUENCES, 4)
    assert tokens_of([draft(drafter, limits)]) == tokens_of([draft(fresh, limits)])


@given(prompts, rounds)
def test_prompt_and_commits_are_not_changed(make, prompt, played) -> None:
    given_prompt, drafter = prompt[:], make()
    drafter.start(0, given_prompt, SAMPLER)
    for n_draft, _, token in played:
        emitted = [*(p.token for p in draft(drafter, {0: n_draft})[0]), token]
        drafter.committed(0, emitted)
        assert emitted[-1] == token
        assert given_prompt == prompt


@given(prompts, rounds)
def test_a_discarded_draft_has_no_effect(make, prompt, played) -> None:
    drafter = started(make, prompt)
    for n_draft, _, token in played:
        before = draft(drafter, {0: n_draft})
        assert tokens_of([draft(drafter, {0: n_draft})]) == tokens_of([before])
        drafter.committed(0, [token])


@given(prompts, prompts, rounds)
def test_a_forgotten_sequence_leaves_no_state(make, first, second, played) -> None:
    drafter = started(make, first, first)
    play(drafter, [first[:], first[:]], played)
    drafter.forget(0)
    assert draft(drafter, {1: 2}).keys() == {1}
    drafter.start(0, second, SAMPLER)
    fresh = started(make, second)
    assert tokens_of([draft(drafter, {0: 4})]) == tokens_of([draft(fresh, {0: 4})])


other_drafts = st.lists(tokens, max_size=5)


@given(
    prompts,
    rounds,
    st.lists(st.tuples(other_drafts, other_drafts, st.integers(0, 3)), max_size=4),
)
@example([0], [(0, 0, 1)], [([], [0], 0), ([], [4], 0)])  # a part of a character after a token that may grow
def test_continues_after_the_draft_of_another_drafter(make, prompt, played, others) -> None:
    """The proposals are those of a fresh drafter with the same history and draft."""
    drafter = started(make, prompt, prompt)
    if not drafter.continues:
        return
    histories = [prompt[:], prompt[:]]
    play(drafter, histories, played)
    for discarded, draft_, more in others:
        drafter.step({0: discarded})
        fresh = started(make, prompt)
        fresh.committed(0, histories[0][len(prompt) :])
        for _ in range(more + 1):
            got, expected = drafter.step({0: draft_}), fresh.step({0: draft_})
            assert got == expected
            if not got:
                break
            draft_ = [*draft_, got[0].token]
        drafter.committed(0, draft_)
        histories[0] += draft_


def test_without_sequences_nothing_is_proposed(make) -> None:
    assert started(make, [1, 2, 3]).step({}) == {}


def test_a_sequence_may_end_before_its_first_draft(make) -> None:
    drafter = started(make, [1, 2, 3], [1, 2, 3])
    drafter.committed(0, [4])
    drafter.forget(0)
    drafter.forget(1)
    assert drafter.step({}) == {}


def tokens_of(drafts: list[dict[int, list[Proposal]]]) -> list[dict[int, list[int]]]:
    return [{seq_id: [p.token for p in run] for seq_id, run in runs.items()} for runs in drafts]
