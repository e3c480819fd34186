"""What drafts of other vocabularies gained for a target on this machine: `-md auto` uses only those that were
measured to pay. `tune` predicts the gain from its measurements, and answers with such a draft measure it.

One small file a target, in the cache. Loads no model.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from specllama.config.store import Store, cache_dir
from specllama.gguf.header import Header
from specllama.gguf.identity import identity
from specllama.models.memory.available import physical_cores

PAYS = 1.05  # times as fast as without it: less is not worth the memory and the time of loading
FOLDER = "drafts"  # of the cache
_MAX_DRAFTS = 16  # of a target: those measured last
_MAX_SPEEDUP = 1000.0
Source = Literal["tune", "answers"]


@dataclass(frozen=True, slots=True)
class DraftRecord:
    """path: absolute. model: the draft's `identity`. speedup: predicted by "tune" over plain decoding,
    without: the same without the draft, from what the text repeats. Of "answers": of their rounds with the
    draft over such without it, which is 1. n_tokens: that this rests on. acceptance: share of the drafted
    tokens that were right; needed: from which drafts pay; None where that is not known.
    """

    path: str
    model: list[str | int]
    source: Source
    speedup: float
    without: float
    n_tokens: int
    acceptance: float | None = None
    needed: float | None = None

    @property
    def gain(self) -> float:
        """How many times as fast the text is as without this draft."""
        return self.speedup / max(1.0, self.without)

    @property
    def pays(self) -> bool:
        return self.gain >= PAYS

    @property
    def label(self) -> str:
        """What was measured, for people."""
        if self.source == "answers":
            return f"in answers here, rounds with it were {self.speedup:.2f} x as fast as without it"
        return (
            f"specllama tune predicted {self.speedup:.2f} x plain decoding, {self.without:.2f} x without it"
        )


class MeasuredDrafts:
    """The file of one target. target: its header. store: that in the cache by default."""

    def __init__(self, target: Header, store: Store | None = None) -> None:
        self._store = store or Store(cache_dir() / FOLDER)
        machine = [platform.machine(), platform.processor(), physical_cores()]
        self._key = {"target": identity(target), "machine": machine}

    def all(self) -> list[DraftRecord]:
        """All drafts that were measured, those that gain most first; what is malformed is left out."""
        return sorted(self._read(), key=lambda draft: -draft.gain)

    def of(self, draft: Header) -> DraftRecord | None:
        """What was measured with this draft, wherever its file is."""
        return next((record for record in self.all() if record.model == identity(draft)), None)

    def put(self, record: DraftRecord) -> None:
        """Store it in place of what was measured with this draft before."""
        with self._store.lock():
            kept = [one for one in self._read() if one.model != record.model]
            drafts = [asdict(one) for one in (*kept, record)][-_MAX_DRAFTS:]
            self._store.write(self._key, {"drafts": drafts})

    def _read(self) -> Iterator[DraftRecord]:
        stored = self._store.read(self._key).get("drafts")
        for data in stored if isinstance(stored, list) else ():
            if isinstance(data, Mapping) and (record := _parsed(data)) is not None:
                yield record


def _parsed(data: Mapping[str, Any]) -> DraftRecord | None:
    names = [field.name for field in fields(DraftRecord)]
    shares = (data.get("acceptance"), data.get("needed"))
    if (
        set(data) != set(names)
        or not isinstance(data["path"], str)
        or not isinstance(data["model"], list)
        or data["source"] not in ("tune", "answers")
        or not all(_is_number(data[name], _MAX_SPEEDUP) for name in ("speedup", "without"))
        or not isinstance(data["n_tokens"], int)
        or not all(share is None or _is_number(share, 1.0) for share in shares)
    ):
        return None
    return DraftRecord(**{name: data[name] for name in names})


def _is_number(value: object, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most
