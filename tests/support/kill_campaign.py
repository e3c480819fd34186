"""Engine processes on one directory of prompts, each killed with SIGKILL at a moment of some phase.

    python -m tests.support.kill_campaign N [SEED]

A moment of each phase is waited for in turn, or a random one: while a state is being written, right after one
got its name, after one was removed to make room, while one is read, at any time. Whatever was answered before
must be the text of an engine without a directory. At the end an engine answers everything again, and nothing
but whole states, within the budget, is in the directory. Prints how often each phase was met.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specllama.client.client import EngineClient
from specllama.client.stream import fold
from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import SpecllamaError
from specllama.prefix_disk.directory import StateDirectory, default_directory
from tests.support import tinygguf
from tests.support.generations import generate

PHASES = ("written", "renamed", "removed", "read", "any")
_BUDGET = 1_000_000  # bytes: about three of the texts
_MOST_SECONDS = 4.0  # to wait for a phase
_TEXT = "The machine sorts letters by their stamps, and keeps those without one. " * 9
TEXTS = tuple(
    f"{i} {word}: {_TEXT}" for i, word in enumerate(("Letters", "Stamps", "Boxes", "Roads", "Rain"))
)
_KNOWN = re.compile(r"secret|\.lock|index\.json|[0-9a-f]{32}\.state")


@dataclass
class Campaign:
    """path: of the model. texts: as an engine without a directory writes them. met: kills by phase. wrong:
    texts that were answered differently.
    """

    path: Path
    rng: random.Random
    texts: dict[str, str] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def settings(self, disk: int) -> LoadSettings:
        target = ModelSettings(path=str(self.path), n_threads=1, n_ctx=4096)
        return LoadSettings(
            target=target,
            n_slots=2,
            drafters=(),
            memory=False,
            calibrate=False,
            cache_disk=disk,
            kept_seconds=0.0,
            cache_ram=0,
        )

    def reference(self) -> None:
        """Note the texts of an engine that keeps none."""
        with EngineClient() as client:
            client.load(self.settings(0))
            self.texts = {text: _answer(client, text) for text in TEXTS}

    def kill_one(self, phase: str) -> None:
        """Start an engine, let it answer, and kill it in this phase."""
        client = EngineClient()
        try:
            client.load(self.settings(_BUDGET))
            order = self.rng.sample(TEXTS, len(TEXTS))
            asked = threading.Event()
            thread = threading.Thread(target=self._ask, args=(client, order, asked))
            thread.start()
            asked.wait(10)
            if self._wait(phase):
                self.met[phase] += 1
            time.sleep(self.rng.random() * 0.004)
            os.kill(client.pid, signal.SIGKILL)
            thread.join(20)
        finally:
            client.close()

    def _ask(self, client: EngineClient, order: Sequence[str], asked: threading.Event) -> None:
        with contextlib.suppress(SpecllamaError):
            for text in order:
                asked.set()
                if _answer(client, text) != self.texts[text]:
                    self.wrong.append(text)
                time.sleep(0.5)  # an idle engine writes

    def _wait(self, phase: str) -> bool:
        """Wait for a moment of the phase; whether it came."""
        if phase in ("any", "read"):
            time.sleep(self.rng.random() * (0.02 if phase == "read" else 2.0))
            return True
        before = _names()
        tests: dict[str, Callable[[set[str]], bool]] = {
            "written": lambda now: any(name.endswith(".tmp") and ".state." in name for name in now),
            "renamed": lambda now: any(name.endswith(".state") for name in now - before),
            "removed": lambda now: any(name.endswith(".state") for name in before - now),
        }
        until = time.monotonic() + _MOST_SECONDS
        while time.monotonic() < until:
            now = _names()
            if tests[phase](now):
                return True
            if phase == "removed":
                before |= now
            time.sleep(0.0005)
        return False

    def check(self) -> None:
        """No text was another one; an engine answers everything, and the directory is clean."""
        assert not self.wrong
        with EngineClient() as client:
            client.load(self.settings(_BUDGET))
            for text in TEXTS:
                assert _answer(client, text) == self.texts[text]
                time.sleep(0.5)
        names = _names()
        assert not [name for name in names if not _KNOWN.fullmatch(name)], names
        lines: list[str] = []
        directory = StateDirectory(default_directory(), lines.append)
        assert directory.open(create=False)
        sizes = directory.sizes()
        assert all(directory.state(name) is not None for name in sizes), lines
        assert sum(sizes.values()) <= _BUDGET


def _answer(client: EngineClient, text: str) -> str:
    params = {"max_tokens": 12, "seed": 3, "temperature": 0.8, "ignore_eos": True}
    return fold(list(client.generate(generate(client.next_id(), prompt=text, params=params)))).text


def _names() -> set[str]:
    with contextlib.suppress(OSError):
        return set(os.listdir(default_directory()))
    return set()


def run(n: int, seed: int, folder: Path) -> Counter[str]:
    """n kills; the directory of prompts is that of the environment. Raises AssertionError."""
    path = tinygguf.llama(folder / "model.gguf", n_ctx_train=4096, n_layer=6)
    campaign = Campaign(path, random.Random(seed))
    campaign.reference()
    for i in range(n):
        campaign.kill_one(PHASES[i % len(PHASES)])
    campaign.check()
    return campaign.met


def main() -> None:
    n, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPECLLAMA_CACHE"] = str(Path(folder) / "cache")
        sys.stdout.write(json.dumps(run(n, seed, Path(folder))) + "\n")


if __name__ == "__main__":
    main()
