"""An engine core in this process, and the messages that it sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.client import protocol as m
from specllama.client.stream import fold
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.core.interfaces import BatchRow
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.worker.engine_core import EngineCore
from tests.support.generations import generate

KEPT: dict[str, Any] = {
    "memory": False,
    "calibrate": False,
    "kept_seconds": 0.0,
    "cache_disk": 10**9,
}
"""Fields of LoadSettings with which every prompt is kept on disk."""


class Front:
    """Sends messages to an EngineCore of this process, as a client does through pipes."""

    def __init__(
        self, settings: LoadSettings, store: Store, measure_when_idle: bool = False, open_draft: bool = True
    ) -> None:
        self.messages: list[m.Message] = []
        self.settings = settings
        self.core = EngineCore(self.messages.append, store)
        self.core.handle(m.Load(settings, measure_when_idle=measure_when_idle, open_draft=open_draft))

    @classmethod
    def of_pair(cls, store: Path, draft_max: int | None = None) -> Front:
        """With the embedded pair, one thread each, and without request history: tests ask for the same text
        again.
        """
        paths = EMBEDDED_TARGET, EMBEDDED_DRAFT
        target, draft = (ModelSettings(path=str(path), n_threads=1, n_ctx=512) for path in paths)
        settings = LoadSettings(target=target, draft=draft, draft_max=draft_max, memory=False)
        front = cls(settings, Store(store))
        assert isinstance(front.messages[-1], m.Ready)
        return front

    def ask(self, id_: int = 1, **request: object) -> list[m.Message]:
        """All messages about one request."""
        self.messages.clear()
        self.core.handle(generate(id_, **request))  # type: ignore[arg-type]
        while self.core.busy:
            self.core.step()
        return list(self.messages)

    def items(self, **request: object) -> list[m.SequenceDelta]:
        """The tokens of a request, round by round."""
        messages = self.ask(**request)  # type: ignore[arg-type]
        assert isinstance(messages[-1], m.Done), messages
        return [message.items[0] for message in messages if isinstance(message, m.Tokens)]

    def ids(self, **request: object) -> list[int]:
        return [i for item in self.items(**request) for i in item.ids]

    def ids_at_once(self, requests: Sequence[dict[str, Any]]) -> list[list[int]]:
        """The ids of several requests that are answered at once."""
        self.messages.clear()
        for id_, one in enumerate(requests, 1):
            self.core.handle(generate(id_, **one))
        while self.core.busy:
            self.core.step()
        items = [i for message in self.messages if isinstance(message, m.Tokens) for i in message.items]
        return [[t for i in items if i.id == id_ for t in i.ids] for id_ in range(1, len(requests) + 1)]

    def text(self, **request: object) -> str:
        self.items(**request)
        return fold(self.messages).text

    def prompt_ids(self, **request: object) -> Sequence[int]:
        """The ids of the prompt."""
        return self.core.loaded_engine.intake.prompts.prompt(generate(1, **request)).ids  # type: ignore[arg-type]

    def fails(self, **request: object) -> str:
        (only,) = self.ask(**request)  # type: ignore[arg-type]
        assert isinstance(only, m.Failed)
        assert only.id == 1
        return str(only.error["message"])

    def close(self) -> None:
        loaded = self.core.loaded
        if loaded is not None:
            for one in (loaded.draft, loaded.head, loaded.context, loaded.model):
                if one is not None:
                    one.close()

    def end(self) -> None:
        """End the engine as a front that leaves does."""
        self.core.shut_down()
        self.core.loaded_engine.persister = None


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """An engine core that has loaded the embedded pair, shared by the tests of a module."""
    front = Front.of_pair(tmp_path_factory.mktemp("store"))
    yield front
    front.close()


@pytest.fixture
def fronts(tmp_path: Path) -> Iterator[Callable[..., Front]]:
    """Makes engine cores with one store from fields of LoadSettings, and closes them. fails: the load may."""
    made: list[Front] = []

    def make(fails: bool = False, open_draft: bool = True, **fields: Any) -> Front:
        made.append(Front(LoadSettings(**fields), Store(tmp_path / "store"), open_draft=open_draft))
        assert fails or isinstance(made[-1].messages[-1], m.Ready), made[-1].messages
        return made[-1]

    yield make
    for one in made:
        one.close()


class SlowTarget:
    """A clock by which a decode of the target takes 0.1 s and all else nothing, so that drafts pay."""

    def __init__(self, front: Front) -> None:
        core, self.now = front.core, 0.0
        assert core.engine is not None
        assert core.loaded is not None
        core.engine.scheduler.clock = self
        if (planner := core.loaded.profile.planner) is not None:
            planner.clock = self
            for model in planner._models:
                model.clock = self
        self.decode = core.loaded.context.decode
        core.loaded.context.decode = self.decode_slowly  # type: ignore[method-assign]

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now

    def decode_slowly(self, batch: Sequence[BatchRow], *others: Any) -> np.ndarray:
        self.now += 0.1 + 0.001 * len(batch)
        return self.decode(batch, *others)
