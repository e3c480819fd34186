"""What a draft with another vocabulary has drafted, as tokens of the target.

A token of the draft that the target has too is one of the target's, unless the target has a longer
token that begins with its text and that the draft lacks: then the next token of the draft decides. What
the target spells with other tokens is tokenised as its tokenizer does (SLEM, Timor et al., arXiv
2502.05202), except for its last token, which may still grow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from specllama.core.interfaces import Proposal
from specllama.core.sequence import common_prefix
from specllama.core.translation import Translation, whole_characters

MAX_PENDING = 64  # bytes that spell no token of the target
_LONGEST_PIECE = 4096  # bytes of a token of the draft; a longer one ends the draft


class Spelling:
    """end_ids: of the target, with which its generation ends.

    certain: the tokens that are settled, each with the product of the draft's probabilities of the tokens
    that spell it. ended: the draft ends here. pending: tokens of the target that the rest would be.
    """

    def __init__(self, translation: Translation, end_ids: Collection[int]) -> None:
        self._translation, self._end_ids = translation, end_ids
        self.certain: list[Proposal] = []
        self.ended = False
        self.pending: list[int] = []
        self._rest = b""
        self._parts: list[tuple[int, float]] = []  # of the rest: where a token begins, and its probability

    @property
    def tokens(self) -> list[int]:
        return [proposal.token for proposal in self.certain]

    def add(self, token: int, probability: float) -> None:
        """The draft has drafted a token, by its id in the shared space."""
        t = self._translation
        piece = t.piece(token)
        if not piece:
            self._finish()
            self.ended = token >= t.n_target or token in self._end_ids
            if token < t.n_target:
                self.certain.append(Proposal(token, probability))
        elif not self._rest and token < t.n_target and (not t.may_grow[token] or _continues(piece)):
            self.certain.append(Proposal(token, probability))
        elif len(piece) > _LONGEST_PIECE:
            self.ended = True
        else:
            self._parts.append((len(self._rest), probability))
            self._rest += piece
            self._spell()

    def _finish(self) -> None:
        """What is pending is certain, since no text follows."""
        for token in self.pending:
            self._emit(token)
        self.pending, self._rest, self._parts = [], b"", []

    def _spell(self) -> None:
        """Tokenise the rest up to an incomplete character; the draft ends where the tokens spell another
        text.
        """
        n = whole_characters(self._rest)
        try:
            tokens = self._translation.target.tokenize(self._rest[:n].decode()) if n else []
        except UnicodeDecodeError:
            tokens = []  # which do not spell the rest
        pieces = [self._translation.target.piece(token) for token in tokens]
        if b"".join(pieces) != self._rest[:n]:
            self.ended = True
            tokens = []
        grows = n == len(self._rest) and bool(tokens) and bool(self._translation.may_grow[tokens[-1]])
        certain = tokens[:-1] if grows else tokens
        for token in certain:
            self._emit(token)
        self.pending = tokens[len(certain) :]
        self.ended = self.ended or len(self._rest) > MAX_PENDING

    def _emit(self, token: int) -> None:
        """The rest begins with this token."""
        n = len(self._translation.target.piece(token))
        probability = math.prod(p for at, p in self._parts if at < n)
        self._parts = [(at - n, p) for at, p in self._parts if at >= n]
        self._rest = self._rest[n:]
        self.certain.append(Proposal(token, probability))


def _continues(piece: bytes) -> bool:
    """Whether a piece begins within a character: its text has no tokens of its own."""
    return 0x80 <= piece[0] < 0xC0


# The text of a sequence as a draft with another vocabulary reads it, tokenised again as it grows.
#
# The tokens of a text depend on what follows, so the end of the text is tokenised again with every change.
# What is before a beginning of a word, some way back, is settled.


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
