"""Products of weights that are packed for AMX: those of the kernels are llama.cpp's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specllama.llama.kernels import VARIABLE
from specllama.llama.library import KERNELS
from tests.support.paths import ROOT

TYPES, ROWS = "q8_0,q4_0,q4_1,q4_k,q5_k,q6_k,iq4_xs", "1,2,5,8,13,33,63,70"


@pytest.mark.skipif(not KERNELS.amx, reason="llama.cpp does not pack weights for AMX here")
def test_products_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """Which computes some numbers of rows of some types. Prompts are multiplied as BF16."""
    found = {}
    for kernels in ("on", "off"):
        file = tmp_path / f"{kernels}.npz"
        command = [sys.executable, "-m", "scripts.bench.kernels", "--types", TYPES, "--rows", ROWS, "-t", "2"]
        environ = os.environ | {VARIABLE: kernels}
        subprocess.run([*command, "--products", str(file)], cwd=ROOT, env=environ, check=True, timeout=300)
        found[kernels] = np.load(file)
    for name, ours in found["on"].items():
        theirs = found["off"][name]
        if len(ours) < 64:
            assert np.array_equal(ours, theirs), name
        else:
            assert not np.array_equal(ours, theirs), name
            assert np.sqrt(((ours - theirs) ** 2).mean()) < 0.01 * theirs.std(), name
