"""The first decodes of the contexts of a load, so that no answer is slowed down by page faults, allocations
and the loading of kernels. They also measure what decodes take, so that no answer has to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from specllama.core.head_interfaces import HeadRow
from specllama.core.interfaces import BatchRow, Context, DecodeError, Drafter, NoRoomError
from specllama.core.policy.config import DEFAULT
from specllama.core.policy.cost_curve import CostCurve
from specllama.drafters import HEAD, MODEL
from specllama.llama.context import LlamaContext
from specllama.llama.heads.context import HeadContext
from specllama.other_work import OtherWork
from specllama.worker.calibrate import measure_change, measure_load, measure_steps
from specllama.worker.draft import LoadedDraft
from specllama.worker.head import LoadedHead
from specllama.worker.profile import ModelProfile


def warm_up_target(
    context: LlamaContext, token: int, profile: ModelProfile, clock: Callable[[], float]
) -> None:
    """Decode in an empty context, with logits of all rows: the scale of the stored curve, and what is missing
    of it, as far as that takes about half a second. token: any id.
    """

    def decode(n: int) -> float:
        return _seconds(context, [BatchRow(token, i, 0, True) for i in range(n)], clock)

    curve, known = profile.curves.at(0), profile.change_is_sure
    most = min(DEFAULT.max_rows, context.n_outputs_max, context.n_batch, context.n_ctx)
    others = OtherWork(context.n_threads_batch)
    before = curve.to_dict() if curve.known else None
    change = measure_load(curve, decode, most, known)
    if change == 0 and profile.change_seconds:  # then it is to be seen twice
        change = measure_change(decode, curve.predict(1)) and profile.change_seconds
    if others.disturbs:  # what was measured counts in this process, if at all
        profile.curves.put(0, CostCurve.from_dict(before, curve.config))
        profile.curves.at(0).set_scale(1, curve.predict(1))
        return
    profile.observe_load(curve.predict(1))
    if change is not None:
        profile.observe_change(change)


def warm_up_drafts(
    profile: ModelProfile,
    drafters: Sequence[Drafter],
    draft: LoadedDraft | None,
    head: LoadedHead | None,
    clock: Callable[[], float],
) -> None:
    """Measure the steps of draft and head. Contexts that read the target's cache are left out. A draft that
    cannot be decoded so is found out when it is used.
    """
    learnt = profile.planner_of(drafters).learnt.priced
    if draft is not None and MODEL.name in learnt:
        context, token = draft.context, draft.context.any_token

        def decode(n: int) -> float:
            return _seconds(context, [BatchRow(token, i, 0, i == n - 1) for i in range(n)], clock)

        with suppress(DecodeError, NoRoomError):
            most = min(DEFAULT.max_rows, context.n_batch, context.n_ctx)
            measure_steps(learnt[MODEL.name].steps, decode, most)
    if head is not None and HEAD.name in learnt and isinstance(head.context, HeadContext):
        layer = head.context
        if not layer.reads_target:
            with suppress(DecodeError, NoRoomError):
                steps, most = learnt[HEAD.name].steps, min(DEFAULT.max_rows, layer.n_batch, layer.n_ctx)
                measure_steps(steps, lambda n: _head_seconds(layer, n, clock), most)


def _seconds(context: Context, rows: Sequence[BatchRow], clock: Callable[[], float]) -> float:
    began = clock()
    context.decode(rows)
    seconds = clock() - began
    context.truncate(0, 0)
    return seconds


def _head_seconds(context: HeadContext, n: int, clock: Callable[[], float]) -> float:
    hidden = context.hidden(0, np.zeros((n, context.n_features), np.float32))
    rows = [HeadRow(0, i, 0, row, i == n - 1) for i, row in enumerate(hidden)]
    began = clock()
    context.decode(rows)
    seconds = clock() - began
    context.truncate(0, 0)
    return seconds
