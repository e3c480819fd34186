"""Batched rows are bit-equal to single rows for each kind of weights."""

from __future__ import annotations

import ctypes
import platform
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.interfaces import BatchRow
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.data import EMBEDDED_TARGET
from specllama.llama.context import LlamaContext
from specllama.llama.library import llama
from specllama.llama.model import LlamaModel
from specllama.worker.calibrate import WIDTHS, Calibration, measure

CPUINFO = Path("/proc/cpuinfo")
FLAGS = CPUINFO.read_text().split() if CPUINFO.exists() else []
TEXT = "def load(path):\n    with open(path) as file:\n        return json.load(file)\n\n\n" * 30
KINDS = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k"),
    *("iq4_nl", "iq4_xs", "f16", "bf16"),
)

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not {"avx2", "fma", "f16c"} <= set(FLAGS),
    reason="these kernels are for AVX2",
)


def quantized(kind: str, directory: Path) -> Path:
    """The embedded target, requantized to `kind`."""
    params = llama.llama_model_quantize_default_params()
    params.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    params.nthread, params.allow_requantize = 2, True
    out = directory / f"{kind}.gguf"
    source = str(EMBEDDED_TARGET).encode()
    assert llama.llama_model_quantize(source, str(out).encode(), ctypes.byref(params)) == 0
    return out


@pytest.mark.parametrize(
    ("kind", "n_threads"), [(kind, 2) for kind in KINDS] + [(kind, 1) for kind in ("q4_0", "q4_k_m", "f16")]
)
def test_rows_of_every_width_are_bit_equal_to_single_rows(kind: str, n_threads: int, tmp_path: Path) -> None:
    model = LlamaModel(
        ModelSettings(path=str(quantized(kind, tmp_path)), n_threads=n_threads, n_gpu_layers=0)
    )
    context = LlamaContext(model, 1024)
    try:
        engine = Engine(context, Fixed([], 0), end_ids=(), clock=time.perf_counter)
        ids = model.tokenize(TEXT, model.adds_bos, False)[:300]
        generation = engine.submit(Request(ids, SamplingParams(temperature=0, max_tokens=1), 0))
        while engine.busy:
            engine.step()
        calibration = Calibration()

        def clock() -> float:  # the time is up once all widths were compared
            done = calibration.equal_up_to == max(WIDTHS) or calibration.unlike is not None
            return time.perf_counter() + 60 * done

        measure(context, 0, generation.history[: len(ids)], 20.0, clock, calibration)
        assert (calibration.equal_up_to, calibration.unlike, calibration.epsilon) == (max(WIDTHS), None, 0.0)

        def last_row(*widths: int) -> NDArray[np.float32]:
            context.truncate(0, at := 0)
            for n in widths:
                rows = [BatchRow(ids[at + i], at + i, 0, i == n - 1) for i in range(n)]
                row, at = context.decode(rows)[0], at + n
            return row.copy()

        if not model.rounds_prompts:
            for widths in ((180,), (120, 60), (1, 60, 119)):
                assert (last_row(*widths) == last_row(90, 89, 1)).all(), widths
    finally:
        context.close()
        model.close()
