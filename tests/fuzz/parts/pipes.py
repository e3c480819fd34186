"""The engine protocol in both directions, and the engine that receives it; the probe of RPC workers."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.client import protocol as m
from specllama.client.tune_messages import Calibrated, Heartbeat
from specllama.errors import NetworkError, UsageError
from tests.fuzz import mutate

if TYPE_CHECKING:
    from specllama.worker.engine_core import EngineCore

TO_ENGINE: tuple[m.Message, ...] = (
    m.Generate(1, m.TextInput("def f("), {"max_tokens": 2, "temperature": 0.5, "stop": ["x"], "logprobs": 1}),
    m.Generate(1, m.MixedInput([[1, 2, 3]]), {"max_tokens": 2, "json_schema": "{}"}, draft_max=2),
    m.Generate(1, m.ChatInput([{"role": "user", "content": "x"}], prefix="a"), {"max_tokens": 1}),
    m.Generate(1, m.MixedInput(["x", [1, 2]]), {"max_tokens": 1}),
    m.Generate(1, m.Infill("a", "b"), {"max_tokens": 1}),
    m.Generate(1, m.TextInput("x"), {"max_tokens": 2, "logit_bias": {"1": 0.5}}, forced="abc"),
    m.Tokenize(1, "some text"),
    m.Detokenize(1, [1, 2, 3]),
    m.Render(1, m.ChatInput([{"role": "user", "content": "x"}], {"tools": []})),
    m.CountTokens(1, m.ChatInput([{"role": "user", "content": "x"}], prefix="a")),
    m.GetSlots(1),
    m.Cancel(1),
)
FROM_ENGINE: tuple[m.Message, ...] = (
    m.Tokenized(1, [1, 2], [[1], [2]]),
    m.QueriedText(1, "x"),
    m.QueriedText(1, "x"),
    m.TokenCount(1, 5),
    m.Failed({"kind": "UsageError", "message": "x", "hint": "y"}, 1),
    m.Notice("x"),
    Calibrated(0.1, None, True),
    Heartbeat(0.5, 30.0),
)
LINE_TOKENS = (b"[", b"]", b"{", b"}", b'"', b"\n", b",", b"null", b"9" * 5000, b"[" * 90000, b'{"a":' * 9000)


def _line(rng: random.Random, samples: tuple[m.Message, ...]) -> bytes:
    line = m.encode(rng.choice(samples))
    if rng.random() < 0.3:
        return mutate.mutated(rng, line, LINE_TOKENS)
    message = json.loads(line)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        message = mutate.changed(rng, message)
    return json.dumps(message).encode()


class Lines:
    """Lines of the protocol: decoded, or refused by ValueError."""

    name, seconds, n_bytes, batch = "protocol", 2.0, 200 << 20, 5000

    def set_up(self) -> None:
        pass

    def make(self, rng: random.Random) -> bytes:
        return _line(rng, TO_ENGINE + FROM_ENGINE)

    def run(self, data: bytes) -> str:
        try:
            message = m.decode(data)
        except ValueError as error:
            assert len(str(error)) < 2000
            m.request_id(data)
            return "refused"
        with contextlib.suppress(ValueError):  # NaN is not equal to itself
            assert m.decode(m.encode(message)) == message or "NaN" in repr(message) or "nan" in repr(message)
        return "decoded"

    def close(self) -> None:
        pass


class Engine:
    """The engine with the embedded pair: every request that can be decoded is answered, or refused."""

    name, seconds, n_bytes, batch = "engine", 10.0, 600 << 20, 300

    def __init__(self) -> None:
        self._core: EngineCore | None = None
        self._messages: list[m.Message] = []

    def set_up(self) -> None:
        from specllama.llama import library  # noqa: F401
        from specllama.worker import engine_core  # noqa: F401

    def make(self, rng: random.Random) -> bytes:
        return _line(rng, TO_ENGINE)

    def run(self, data: bytes) -> str:
        try:
            message = m.decode(data)
        except ValueError:
            return "refused"
        if not isinstance(message, (m.Generate, m.Cancel, m.Tokenize, m.Detokenize, m.Render, m.GetSlots)):
            return "not a request"
        core = self._core = self._core or self._loaded()
        self._messages.clear()
        core.handle(message)
        steps = 0
        while core.busy:
            core.step()
            steps += 1
            if steps == 8:
                core.handle(m.Cancel(message.id))
        kinds = {type(found).__name__ for found in self._messages}
        core.handle(m.Tokenize(77, "x"))
        assert isinstance(self._messages[-1], m.Tokenized)
        assert isinstance(message, m.Cancel) or kinds, "no answer"
        return "refused" if "Failed" in kinds else "answered"

    def _loaded(self) -> EngineCore:
        from specllama.config.load import LoadSettings, ModelSettings
        from specllama.config.store import Store
        from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
        from specllama.worker.engine_core import EngineCore

        store = Store(Path(tempfile.gettempdir(), "specllama-fuzz-no-store"))
        core = EngineCore(self._messages.append, store)
        files = EMBEDDED_TARGET, EMBEDDED_DRAFT
        target, draft = (ModelSettings(path=str(path), n_threads=1, n_ctx=256) for path in files)
        core.handle(m.Load(LoadSettings(target=target, draft=draft, calibrate=False)))
        return core

    def close(self) -> None:
        pass


class Probe:
    """The probe of RPC workers against whatever listens there."""

    name, seconds, n_bytes, batch = "rpc", 2.0, 200 << 20, 500

    def set_up(self) -> None:
        from specllama.rpc import probe  # noqa: F401

    def make(self, rng: random.Random) -> bytes:
        hello = struct.pack("<Q", 28) + bytes((7, 0, rng.randrange(3))) + bytes(25)
        devices = struct.pack("<QI", 4, rng.choice((1, 1, 2, 0, 64, 65, 1 << 31)))
        memory = struct.pack("<QQQ", 16, rng.choice(mutate.INTEGERS) % (1 << 64), 1 << 40)
        data = hello + devices + memory * 2
        return (
            data if rng.random() < 0.2 else mutate.mutated(rng, data, (b"HTTP/1.1 400\r\n", b"<html>"))[:9000]
        )

    def run(self, data: bytes) -> str:
        from specllama.rpc import probe

        with _sending(data) as endpoint:
            try:
                worker = probe(endpoint, seconds=0.2)
            except (NetworkError, UsageError) as error:
                assert error.message.isprintable()
                assert error.hint
                return "refused"
        assert all(0 <= free < 1 << 64 and 0 <= total < 1 << 64 for free, total in worker.devices)
        return "found"

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _sending(data: bytes) -> Iterator[str]:
    """The address of a peer that sends these bytes and then nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        links: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = listener.accept()
                    links.append(link)
                    link.sendall(data)
                    link.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            for link in links:
                link.close()
