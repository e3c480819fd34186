"""The drafter `prediction`: copies from the text that a request says its answer will mostly be.

As OpenAI's predicted outputs: an editor that has a file rewritten sends the file. The copy begins with the
first token; how it follows edits is in copy.py. After a larger change, such as a deleted passage, it goes on
at the place with the longest match, of equal ones the first after the place where it was left.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from specllama.core.interfaces import Proposal
from specllama.drafters import PREDICTION
from specllama.drafters.copy import CopiedText, CopyDrafter, Divergence
from specllama.drafters.ngrams import N_CANDIDATES, N_GRAM, NO_TOKEN, Index

LEAST_CONFIDENCE = 0.3  # of a first token: with less, the prompt's own copies come first


class PredictionIndex(Index):
    """The prediction is the source. left: the position at which the last copy ended.

    The 3-grams of the source are sorted, equal ones by position: 12 bytes per token.
    """

    __slots__ = ("_grams", "_order", "left", "source", "tokens")

    def __init__(self, prediction: Sequence[int]) -> None:
        ids = np.array(prediction, np.int64)
        grams = _packed(ids[:-2], ids[1:-1], ids[2:])
        order = np.argsort(grams, kind="stable")
        self._grams, self._order = grams[order], order.astype(np.int32)
        self.source, self.tokens = array("i", [*prediction, NO_TOKEN]), array("i")
        self.left = 0

    def candidates(self) -> list[int]:
        """The positions after the last three tokens of the text; those after `left` first, then those before
        it, nearest first.
        """
        if len(self.tokens) < N_GRAM:
            return []
        a, b, c = self.tokens[-N_GRAM:]
        gram = _packed(a, b, c)
        first, end = np.searchsorted(self._grams, gram), np.searchsorted(self._grams, gram, "right")
        places = self._order[first:end]
        at = int(np.searchsorted(places, self.left - N_GRAM))
        near = [*places[at : at + N_CANDIDATES], *places[max(0, at - N_CANDIDATES) : at][::-1]]
        return [int(place) + N_GRAM for place in near[:N_CANDIDATES]]


def _packed(a: Any, b: Any, c: Any) -> Any:
    """Three ids in 63 bits."""
    return a << 42 | b << 21 | c


class PredictedText(CopiedText):
    """A text whose copy begins with the prediction."""

    def __init__(self, prediction: Sequence[int], output: Sequence[int]) -> None:
        self._index = PredictionIndex(prediction)
        super().__init__(self._index)
        self._started = True
        self._follow_from(0, N_GRAM)
        self.push(output)

    def _diverge(self, divergence: Divergence) -> None:
        self._index.left = divergence.source
        super()._diverge(divergence)


class PredictionDrafter(CopyDrafter, like=PREDICTION):
    """Drafts from the predictions of requests, for all sequences; see the module."""

    predicts = True

    def __init__(self) -> None:
        super().__init__()
        self._predictions: dict[int, tuple[Sequence[int], int]] = {}

    def set_prediction(self, seq_id: int, prediction: Sequence[int], n_output: int) -> None:
        self._predictions[seq_id] = prediction, n_output

    def _text(self, seq_id: int, prompt: Sequence[int]) -> CopiedText | None:
        """As in CopyDrafter; the last ids are output."""
        prediction, n_output = self._predictions.pop(seq_id, ((), 0))
        return PredictedText(prediction, prompt[len(prompt) - n_output :]) if prediction else None

    def propose(self, seq_id: int, limit: int) -> list[Proposal]:
        run = super().propose(seq_id, limit)
        return run if run and run[0].confidence >= LEAST_CONFIDENCE else []
