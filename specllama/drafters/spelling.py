"""What a draft with another vocabulary has drafted, as tokens of the target.

A token of the draft that the target has too is one of the target's, unless the target has a longer token that
begins with its text and that the draft lacks: then the next token of the draft decides. What the target
spells with other tokens is tokenised as its tokenizer does (SLEM, Timor et al., arXiv 2502.05202), except for
its last token, which may still grow. Knows no context.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from specllama.core.interfaces import Proposal
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
