"""An engine process that is killed loses at most what was not yet written."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.client.stream import fold
from specllama.config.load import LoadSettings, ModelSettings
from specllama.prefix_disk.directory import default_directory
from tests.support import tinygguf, tinymtp
from tests.support.generations import generate

TEXT = "The machine sorts letters by their stamps, and keeps those without one. " * 20


def ask(client: EngineClient, text: str, temperature: float) -> tuple[m.Done, str]:
    params = {"max_tokens": 30, "seed": 3, "temperature": temperature, "ignore_eos": True}
    events = list(client.generate(generate(0, prompt=text, params=params)))
    done = events[-1]
    assert isinstance(done, m.Done)
    return done, fold(events).text


@pytest.mark.parametrize(("kind", "build"), [("llama", tinygguf.llama), ("qwen35", tinymtp.qwen35)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_next_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, build, temperature: float
) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    path = build(tmp_path / f"{kind}.gguf", n_ctx_train=4096)
    settings = LoadSettings(
        target=ModelSettings(path=str(path), n_threads=1, n_ctx=4096),
        drafters=(),
        memory=False,
        calibrate=False,
        cache_disk=10**9,
        kept_seconds=0.0,
    )
    first = EngineClient()
    try:
        first.load(settings)
        done, text = ask(first, TEXT, temperature)
        assert done.stats.n_reused == 0
        until = time.monotonic() + 20
        while not list(default_directory().glob("*.state")):
            assert time.monotonic() < until
            time.sleep(0.05)
        os.kill(first.pid, signal.SIGKILL)
    finally:
        first.close()
    with EngineClient() as second:
        second.load(settings)
        done, again = ask(second, TEXT, temperature)
    assert again == text
    assert done.stats.n_evaluated <= 200
    assert done.stats.n_reused > 500
