"""The drafts of a load, checked against the target by their headers alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from specllama.client import protocol
from specllama.config.load import LoadSettings
from specllama.drafters import wants_draft_model
from specllama.errors import IncompatiblePairError, option
from specllama.gguf.header import Header, read_model
from specllama.heads import file_head
from specllama.heads.check import check_draft
from specllama.heads.kind import HeadInfo
from specllama.pair.check import PairVerdict, check_pair
from specllama.pair.head_check import HeadVerdict, check_head, own_head
from specllama.pair.overlap import overlap, translated
from specllama.pair.shared_tokens import Overlap


@dataclass(frozen=True, slots=True)
class CheckedDrafts:
    """The drafts that fit the target. model: a draft model, pair: the verdict on it, overlap: what its
    vocabulary shares with the target's where it has another one. head: the verdict on a
    head in a file of its own, or on the one inside the target, which a draft model can join. None: there is
    none.
    """

    model: Header | None = None
    pair: PairVerdict | None = None
    overlap: Overlap | None = None
    head: HeadVerdict | None = None

    @property
    def draft(self) -> Header | HeadInfo | None:
        """The draft as the memory plan names it: the draft model, without one the head."""
        return self.model or (self.head.head if self.head is not None else None)

    @property
    def own_head(self) -> HeadInfo | None:
        """The head inside the target."""
        return self.head.head if self.head is not None and not self.head.head.own_file else None

    @property
    def reads_target(self) -> bool:
        """Whether there is a head that reads the target's cache."""
        return self.head is not None and self.head.head.kind.shares_cache

    @property
    def second(self) -> HeadInfo | None:
        """The head inside the target, next to a draft model."""
        return self.own_head if self.model is not None else None

    @property
    def verdicts(self) -> tuple[PairVerdict | HeadVerdict, ...]:
        """On the draft model and on the head."""
        return tuple(one for one in (self.pair, self.head) if one is not None)

    def unchained(self) -> CheckedDrafts:
        """With a head whose first layer drafts all tokens."""
        assert self.head is not None
        return replace(self, head=replace(self.head, head=replace(self.head.head, n_chained=1)))

    def without_own_head(self) -> CheckedDrafts:
        return replace(self, head=None)


def checked_drafts(
    settings: LoadSettings, target: Header, send: Callable[[protocol.Message], None]
) -> CheckedDrafts:
    """The drafts that the settings ask for. A head inside the target is used where it is the draft, or where
    the draft is a model; it is left out with a notice where it cannot be used. Raises IncompatiblePairError
    for a file that does not fit, GGUFError.
    """
    if settings.draft is None or settings.draft_max == 0 or not wants_draft_model(settings.drafters):
        return CheckedDrafts()
    if settings.draft.path == settings.target.path:
        inside, reason = own_head(target)
        if inside is not None or reason:
            return CheckedDrafts(head=_noticed(inside, reason, send))
    header = read_model(settings.draft.path)
    check_draft(header)
    head = file_head(header)
    if head is not None:
        verdict = check_head(target, head)
        own = ""
        if settings.draft_vocab == "auto":
            own = f"; {option('draft_vocab')} is of no use to a head, which needs the target's own vocabulary"
        _refuse_unfit(verdict, "model and head", own)
        return CheckedDrafts(head=verdict)
    inside = _noticed(*own_head(target), send)
    pair, shared = check_pair(target, header), None
    if not pair.ok and settings.draft_vocab == "auto":
        shared, reason = overlap(target, header)
        if shared is None:
            send(protocol.Notice(f"the draft is not used: {reason}"))
            return CheckedDrafts(head=inside)
        pair = translated(pair, shared)
    _refuse_unfit(pair, "target and draft", _or_translate(target, header, pair))
    return CheckedDrafts(header, pair, shared, inside)


def _noticed(
    inside: HeadVerdict | None, reason: str, send: Callable[[protocol.Message], None]
) -> HeadVerdict | None:
    """The verdict, after a notice of the reason if there is one."""
    if reason:
        send(protocol.Notice(f"the head of the model is not used: {reason}"))
    return inside


def _refuse_unfit(verdict: PairVerdict | HeadVerdict, both: str, other: str = "") -> None:
    """Raises IncompatiblePairError for a pair that does not fit. other: other remedies, for the hint."""
    if not verdict.ok:
        hint = f"choose another draft, or {option('draft_model', 'none')}{other}"
        raise IncompatiblePairError(f"{both} do not fit together: {verdict.reason}", hint)


def _or_translate(target: Header, draft: Header, pair: PairVerdict) -> str:
    """The remedy for a draft model that does not fit."""
    shared = None if pair.ok else overlap(target, draft)[0]
    return f", or {option('draft_vocab', 'auto')}: {shared.label}" if shared is not None else ""
