"""The text of a sequence as a draft with another vocabulary reads it, tokenised again as it grows.

The tokens of a text depend on what follows, so the end of the text is tokenised again with every change. What
is before a beginning of a word, some way back, is settled. Knows no context.
"""

from __future__ import annotations

from collections.abc import Sequence

from specllama.core.sequence import common_prefix
from specllama.core.translation import Translation

MIN_TAIL, MAX_TAIL = 8, 32  # tokens of the target at the end that are tokenised again
_LONGEST = 128  # without the beginning of a word, the text is cut anywhere
_CHUNK = 256  # tokens of a prompt that are settled at once


class RetokenizedText:
    """tokens: of the target. settled: the draft's tokens, by their ids in the shared space, of the first
    `n_settled` of them.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self.tokens: list[int] = []
        self.settled: list[int] = []
        self.n_settled = 0
        self._marks = [(0, 0)]  # lengths at which the text was settled: in tokens of the target, of the draft

    def restart(self, tokens: Sequence[int]) -> None:
        """Become another text; what both begin with is not tokenised again."""
        n = common_prefix(self.tokens, tokens)
        while self._marks[-1][0] > n:
            self._marks.pop()
        self.n_settled, n_own = self._marks[-1]
        del self.settled[n_own:]
        self.tokens = list(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def settle(self) -> None:
        """Settle what is not at the end."""
        while len(self.tokens) - self.n_settled > MAX_TAIL:
            low, high = self.n_settled + 1, min(len(self.tokens) - MIN_TAIL, self.n_settled + _CHUNK)
            at = next((i for i in range(high, low - 1, -1) if self._begins_word(i)), None)
            if at is None:
                if len(self.tokens) - self.n_settled < _LONGEST:
                    return
                at = high
            self.settled += self._translation.read(self.tokens[self.n_settled : at])
            self.n_settled = at
            self._marks.append((at, len(self.settled)))

    def tail(self, ahead: Sequence[int] = ()) -> list[int]:
        """The draft's tokens of what is not settled, and of further tokens of the target."""
        return self._translation.read([*self.tokens[self.n_settled :], *ahead])

    def _begins_word(self, i: int) -> bool:
        """Whether a word or a control token begins with this token of the target."""
        piece = self._translation.target.piece(self.tokens[i])
        return not piece or (piece[:1] == b" " and piece[1:2].isalpha())
