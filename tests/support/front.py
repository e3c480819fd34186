"""An engine core in this process, and the messages that it sent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specllama.client import protocol as m
from specllama.client.stream import fold
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.store import Store
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.worker.engine_core import EngineCore
from tests.support.generations import generate


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
        return self.core.loaded_engine.ids(generate(1, **request))  # type: ignore[arg-type]

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
