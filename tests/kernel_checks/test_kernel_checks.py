"""All checks of the kernels, with sanitizers, for the instruction sets of this processor."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(platform.system() != "Linux", reason="the kernels are for Linux")
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")
def test_every_kernel_computes_what_it_should() -> None:
    command = [sys.executable, "-m", "tests.kernel_checks"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=3500, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
