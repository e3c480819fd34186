"""Rows of a verification are single rows, bit for bit, for each kind of weights in scripts/llama_rows.h, and
in llama_tiles.h where there is AMX.
"""

from __future__ import annotations

import ctypes
import importlib
import platform
import sys
import time
from pathlib import Path

import pytest

from specllama.calibrate import WIDTHS, measure
from specllama.core.engine import Engine
from specllama.core.fixed import Fixed
from specllama.core.params import SamplingParams
from specllama.core.sequence import Request
from specllama.data import EMBEDDED_TARGET
from specllama.llama import Context, Model
from specllama.settings import ModelSettings

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
CPUINFO = Path("/proc/cpuinfo")
FLAGS = CPUINFO.read_text().split() if CPUINFO.exists() else []
TEXT = "def load(path):\n    with open(path) as file:\n        return json.load(file)\n\n\n" * 30
KINDS = ["q4_0", "q4_k_m", "q8_0", "q6_k", "f16", *(["q5_k_m"] if "amx_tile" in FLAGS else [])]

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not {"avx2", "fma", "f16c"} <= set(FLAGS),
    reason="llama_rows.h is for AVX2",
)


def quantized(kind: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The embedded target, its weights as `kind`."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    llm = importlib.import_module("demo_pair.llm")
    params = llm.lc.llama_model_quantize_default_params()
    params.ftype = getattr(llm.lc, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    params.nthread, params.allow_requantize = 2, True
    out = directory / f"{kind}.gguf"
    source = str(EMBEDDED_TARGET).encode()
    assert llm.lc.llama_model_quantize(source, str(out).encode(), ctypes.byref(params)) == 0
    for name in [name for name in sys.modules if name.split(".")[0] == "demo_pair"]:
        monkeypatch.delitem(sys.modules, name)
    return out


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_width_is_single_rows(
    kind: str, n_threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(ModelSettings(path=str(quantized(kind, tmp_path, monkeypatch)), n_threads=n_threads))
    context = Context(model, 1024)
    try:
        engine = Engine(context, Fixed([], 0), end_ids=(), clock=time.perf_counter)
        ids = model.tokenize(TEXT, model.adds_bos, False)[:300]
        generation = engine.submit(Request(ids, SamplingParams(temperature=0, max_tokens=1), 0))
        while engine.busy:
            engine.step()
        found = measure(context, 0, generation.history[: len(ids)], 3.0, time.perf_counter)
        assert (found.alike, found.unlike, found.epsilon) == (max(WIDTHS), None, 0.0)
    finally:
        context.close()
        model.close()
