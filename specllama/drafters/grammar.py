"""The drafter `grammar`: proposes the text that a grammar forces, such as brackets, keys, separators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specllama.core.interfaces import Drafter, Mask, Proposal, Sampler
from specllama.drafters import GRAMMAR


class GrammarDrafter(Drafter, like=GRAMMAR):
    """Proposes the tokens of the text that the sequence's grammar forces after the draft so far.

    The text is certain and tokenized as usual; if the target prefers another legal tokenization, verification
    rejects the draft. No proposals for sequences without a grammar.
    """

    def __init__(self) -> None:
        self.masks: dict[int, Mask] = {}
        self._runs: dict[int, tuple[int, list[int]]] = {}  # (length of a draft, draft and forced tokens)

    def start(self, seq_id: int, prompt: Sequence[int], sampler: Sampler, mask: Mask | None = None) -> None:  # noqa: ARG002
        self.forget(seq_id)
        if mask is not None:
            self.masks[seq_id] = mask

    def step(self, drafts: Mapping[int, Sequence[int]]) -> dict[int, Proposal]:
        proposals = {}
        for seq_id, draft in drafts.items():
            mask = self.masks.get(seq_id)
            if mask is None:
                continue
            n, run = self._runs.get(seq_id, (0, []))
            if not n <= len(draft) < len(run) or run[: len(draft)] != list(draft):
                run = [*draft, *mask.forced(draft)]
                self._runs[seq_id] = len(draft), run
            if len(run) > len(draft):
                proposals[seq_id] = Proposal(run[len(draft)], 1.0)
        return proposals

    def committed(self, seq_id: int, tokens: Sequence[int]) -> None:  # noqa: ARG002
        """The sequence continued; the engine has updated the mask, so forced tokens are computed again."""
        self._runs.pop(seq_id, None)

    def forget(self, seq_id: int) -> None:
        self.masks.pop(seq_id, None)
        self._runs.pop(seq_id, None)
