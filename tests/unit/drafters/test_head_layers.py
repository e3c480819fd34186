"""Heads with a layer for each place in a draft: what each is fed, as in llama.cpp's speculative.cpp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama.core.interfaces import BatchRow, DecodeError, HeadRow, Hidden, NoRoomError
from specllama.core.sampling.params import SamplingParams
from specllama.core.sampling.sampler import KeyedSampler
from specllama.drafters.head import N_BEHIND, HeadDrafter

N_VOCAB, N_LAYERS = 64, 3
SAMPLER = KeyedSampler(SamplingParams(temperature=0), 0, N_VOCAB)


class Layer:
    """Keeps the token and the hidden state of each cell; its own states are (layer, position, -1), those of
    the target (-1, position, token). It always proposes its number plus 40.
    """

    n_vocab, n_ctx, n_batch, n_seq_max, n_features, lag, reads_target = N_VOCAB, 512, 32, 2, 3, 0, False

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.following: list[Layer] = []
        self.cells: dict[int, dict[int, tuple[int, tuple[float, ...]]]] = {0: {}, 1: {}}
        self.decodes: list[list[int]] = []  # positions
        self.fails, self.n_left = False, -1  # decodes until there is no room

    def hidden(self, seq_id: int, features: Hidden) -> Hidden:  # noqa: ARG002
        return features

    def decode(self, rows: Sequence[HeadRow], *_: int) -> tuple[NDArray[np.float32], Hidden]:
        if self.fails:
            raise DecodeError("broken")
        if self.n_left == 0:
            raise NoRoomError
        self.n_left -= 1
        assert 0 < len(rows) <= self.n_batch, "llama.cpp aborts on more"
        for row in rows:
            cells = self.cells[row.seq_id]
            assert not cells or row.pos == max(cells) + 1
            cells[row.pos] = row.token, tuple(row.hidden.tolist())
        self.decodes.append([row.pos for row in rows])
        outputs = [row for row in rows if row.output]
        logits = np.zeros((len(outputs), N_VOCAB), np.float32)
        logits[:, 40 + self.layer] = 1
        hidden = [(self.layer, row.pos, -1) for row in outputs]
        return logits, np.array(hidden, np.float32).reshape(-1, 3)

    def truncate(self, seq_id: int, pos: int) -> None:
        self.cells[seq_id] = {p: cell for p, cell in self.cells[seq_id].items() if p < pos}


class Chain:
    """A drafter with layers, and the target's part of it."""

    def __init__(self, n_layers: int = N_LAYERS, n_batch: int = Layer.n_batch) -> None:
        self.layers = [Layer(i) for i in range(n_layers)]
        for layer in self.layers:
            layer.n_batch = n_batch
        self.layers[0].following = self.layers[1:]
        self.drafter = HeadDrafter(self.layers[0], N_VOCAB)
        self.history: dict[int, list[int]] = {}

    def verified(self, seq: int, first: int) -> None:
        """The target has decoded the tokens from `first` on but the last."""
        ids = self.history[seq]
        rows = [BatchRow(ids[i], i, seq, True) for i in range(first, len(ids) - 1)]
        features = np.array([(-1, i, ids[i]) for i in range(first, len(ids) - 1)], np.float32)
        if rows:
            self.drafter.features_decoded(rows, features)

    def start(self, ids: list[int], seq: int = 0) -> None:
        self.history[seq] = list(ids)
        self.verified(seq, 0)
        self.drafter.start(seq, ids, SAMPLER)

    def draft(self, n: int, seq: int = 0) -> list[int]:
        tokens: list[int] = []
        for _ in range(n):
            tokens.append(self.drafter.step({seq: tokens})[seq].token)
        return tokens

    def commit(self, tokens: list[int], seq: int = 0) -> None:
        n = len(self.history[seq])
        self.history[seq] += tokens
        self.verified(seq, n - 1)
        self.drafter.committed(seq, tokens)

    def expected(self, drafted: list[int], first: int = 0, seq: int = 0) -> dict:
        """What the cells of the layer of the last token hold: the text with the target's states of the
        tokens before, then the draft's tokens but the last with the states that they were drafted from.
        """
        ids = self.history[seq]
        cells = {i: (ids[i], (-1.0, i - 1.0, float(ids[i - 1]))) for i in range(max(first, 1), len(ids))}
        if first == 0:
            cells[0] = ids[0], (0.0, 0.0, 0.0)
        for i, token in enumerate(drafted[:-1]):
            at = min(i, len(self.layers) - 1)
            cells[len(ids) + i] = token, (float(at), len(ids) + i - 1.0, -1.0)
        return cells


TEXT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_each_layer_sees_the_text_and_the_draft_as_if_it_had_drafted_alone(n_layers: int) -> None:
    chain = Chain(n_layers)
    chain.start(TEXT)
    for n_draft, accepted in ((1, []), (5, [40]), (3, [40]), (0, []), (4, []), (2, [40]), (5, [])):
        drafted = chain.draft(n_draft)
        assert drafted == [40 + min(i, n_layers - 1) for i in range(n_draft)]
        if drafted:
            assert chain.layers[min(n_draft, n_layers) - 1].cells[0] == chain.expected(drafted)
        chain.commit([*accepted, 7])


def test_a_layer_that_is_not_used_costs_nothing() -> None:
    chain = Chain()
    chain.start(TEXT)
    for _ in range(4):
        chain.draft(1)
        chain.commit([7])
    assert [len(layer.decodes) for layer in chain.layers] == [4, 0, 0]
    assert chain.layers[0].decodes == [[*range(8)], [8], [9], [10]]
    chain.draft(3)
    assert chain.layers[0].decodes[4:] == [[11]]
    assert chain.layers[1].decodes == [[*range(13)]]
    chain.commit([40, 41, 42, 7])
    chain.draft(2)  # the first layer lacks the accepted tokens, the second one of them and its own draft
    assert chain.layers[0].decodes[5:] == [[12, 13, 14, 15]]
    assert chain.layers[1].decodes[1:] == [[12, 13, 14, 15, 16]]


def test_a_layer_far_behind_begins_again_near_the_end() -> None:
    chain = Chain()
    chain.start([*range(1, 41)] * 4)
    chain.draft(1)
    chain.draft(2)
    n = len(chain.history[0])
    assert min(chain.layers[0].cells[0]) == 0
    assert chain.layers[1].cells[0] == chain.expected([40, 41], n - N_BEHIND)


def test_sequences_of_different_lengths_are_fed_together() -> None:
    chain = Chain()
    chain.start(TEXT)
    chain.start(TEXT[2:], 1)
    ahead = chain.draft(2)
    proposals = chain.drafter.step({0: ahead, 1: []})
    assert (proposals[0].token, proposals[1].token) == (42, 40)
    assert chain.layers[2].cells[0] == chain.expected([*ahead, 42])
    assert chain.layers[0].cells[1] == chain.expected([40], seq=1)


@pytest.mark.parametrize("n_batch", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("n_layers", [1, 3])
def test_decodes_of_several_sequences_are_no_larger_than_a_batch(n_layers: int, n_batch: int) -> None:
    """Rows of two texts and of drafts longer than a batch; the cells are those of large batches."""
    large, small = Chain(n_layers), Chain(n_layers, n_batch)
    for chain in (large, small):
        chain.start(TEXT)
        chain.start(TEXT[3:] * 2, 1)
        first = chain.drafter.step({0: [], 1: []})
        assert [first[seq].token for seq in (0, 1)] == [40, 40]
        both = {0: [40, 8, 8, 8], 1: [40, 9]}
        assert set(chain.drafter.step(both)) == {0, 1}
        chain.commit([40, 8, 7])
        chain.commit([7], 1)
        assert set(chain.drafter.step({0: [], 1: []})) == {0, 1}
    for one, other in zip(large.layers, small.layers, strict=True):
        assert one.cells == other.cells


def test_without_room_for_the_second_part_no_rows_of_the_first_stay() -> None:
    chain = Chain(1, n_batch=5)
    chain.start(TEXT)
    chain.start(TEXT[3:], 1)
    chain.layers[0].n_left = 1
    assert chain.drafter.step({0: [], 1: []}) == {}
    assert chain.layers[0].cells == {0: {}, 1: {}}
    chain.layers[0].n_left = -1
    assert set(chain.drafter.step({0: [], 1: []})) == {0, 1}
    assert chain.layers[0].cells[0] == chain.expected([40])


def test_tokens_of_another_drafter_are_fed_to_the_layers_of_their_places() -> None:
    chain = Chain()
    chain.start(TEXT)
    assert chain.drafter.step({0: [8, 8]})[0].token == 42
    assert chain.layers[2].cells[0] == chain.expected([8, 8, 42])
    assert chain.drafter.step({0: [8, 9]})[0].token == 42
    assert chain.layers[2].cells[0] == chain.expected([8, 9, 42])


def test_a_new_text_keeps_the_cells_of_its_prefix_in_every_layer() -> None:
    chain = Chain()
    chain.start(TEXT)
    chain.draft(3)
    chain.drafter.forget(0)
    chain.start([*TEXT[:5], 11, 12])
    chain.draft(3)
    for i, layer in enumerate(chain.layers):
        assert layer.decodes[1] == [*range(5, 7 + i)]
    assert chain.layers[2].cells[0] == chain.expected([40, 41, 42])


def test_a_layer_that_fails_leaves_no_cells_that_are_not_there() -> None:
    chain = Chain()
    chain.start(TEXT)
    chain.layers[1].fails = True
    with pytest.raises(DecodeError):
        chain.draft(2)
    chain.layers[1].fails = False
    assert not chain.layers[0].cells[0]
    chain.draft(3)
    assert chain.layers[2].cells[0] == chain.expected([40, 41, 42])
