"""A LoadInfo as a front receives it, for tests that load no model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specllama.client.model_info import LoadInfo, ModelInfo
from specllama.core.sampling.params import SamplingParams

TARGET = ModelInfo("models/big.gguf", "big", 10**9, "Q4_0", 0)
_INFO = LoadInfo(
    target=TARGET,
    draft=None,
    verdict=None,
    n_ctx=4096,
    n_ctx_draft=0,
    n_vocab=1000,
    n_threads=4,
    drafters=("grammar", "copy"),
    memory=True,
    draft_max=None,
    longest_draft=64,
    notes=(),
    off_reason="",
    load_seconds=0.5,
    n_slots=1,
    n_ctx_train=8192,
    file_bytes=5 * 10**8,
    end_ids=(2,),
    sampling=SamplingParams(),
    template="",
    template_works=False,
    bos_token="<s>",
    eos_token="</s>",
    model_based=("model",),
    forced=("grammar",),
)


def load_info(**changes: Any) -> LoadInfo:
    """The description of a load, with some fields of it changed."""
    return replace(_INFO, **changes)
