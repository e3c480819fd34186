"""Stores what a draft of another vocabulary gains for its target, for later choices by `-md auto`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from specllama.client.tune_messages import MeasuredDraft
from specllama.config.store import Store
from specllama.core.replay.break_even import easiest
from specllama.drafters import MODEL
from specllama.gguf.header import Header, identity
from specllama.models.foreign_drafts import FOLDER, DraftRecord, MeasuredDrafts
from specllama.worker.loader import Loaded


def store_tuned(
    loaded: Loaded, draft: Header, measured: MeasuredDraft, copying: Sequence[MeasuredDraft]
) -> None:
    """Store what `tune` predicts for a draft. copying: the same without one, empty if copying is off."""
    if measured.forecast is None or measured.forecast.speedup is None or not loaded.settings.calibrate:
        return
    without = [one.forecast.speedup for one in copying if one.forecast is not None]
    need = easiest(measured.break_even)
    _measured_drafts(loaded).put(
        DraftRecord(
            os.path.abspath(draft.path),
            identity(draft),
            "tune",
            round(measured.forecast.speedup, 4),
            round(max([1.0, *(one for one in without if one is not None)]), 4),
            measured.forecast.tokens,
            measured.forecast.acceptance,
            need.acceptance if need is not None else None,
        )
    )


def store_answers(loaded: Loaded) -> None:
    """Store what the answers since the load say about a draft of another vocabulary, with those that were
    stored for the pair before. Nothing is stored without enough of them.
    """
    draft, planner = loaded.draft, loaded.profile.planner
    if draft is None or draft.translation is None or planner is None or not loaded.settings.calibrate:
        return
    speedup = planner.expected_speedup(MODEL.name)
    if speedup is None:
        return
    table = planner.learnt.tables[MODEL.name]
    _measured_drafts(loaded).put(
        DraftRecord(
            os.path.abspath(draft.header.path),
            identity(draft.header),
            "answers",
            round(speedup, 4),
            1.0,
            round(table.n_seen),
            table.rate,
        )
    )


def _measured_drafts(loaded: Loaded) -> MeasuredDrafts:
    """Those of the target, next to its profile."""
    return MeasuredDrafts(loaded.header, Store(loaded.profile.store.root.with_name(FOLDER)))
