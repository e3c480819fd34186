"""The engine's messages: all of them arrive, in a thread or in an event loop, whatever the process does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.client import protocol as m
from specllama.client.child import EngineProcess
from specllama.client.client import EngineClient
from specllama.errors import EngineDiedError, SpecllamaError
from tests.faults.test_process import SETTINGS
from tests.support.generations import generate

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes that a loop watches")
SAYS = r"""#!/bin/sh
printf '["Notice",{"te'
sleep 0.1
printf 'xt":"one"}]\n["Notice",{"text":"two"}]\n%s'
exec cat >/dev/null
"""


class Process:
    """A Child that runs `SAYS` with a last line; notices: what was taken."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
        script = tmp_path / "engine"
        script.write_text(SAYS % last)
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        self.notices: list[str] = []
        self.changed, self.ended = threading.Event(), threading.Event()
        self.child = EngineProcess(self._take, self._end)

    def run(self, until: Callable[[], bool]) -> None:
        """Read until something is the case, which it is within 10 s."""
        self.child.start()
        while not until():
            assert self.changed.wait(10)
            self.changed.clear()
        self.child.close()

    def _take(self, message: m.Message) -> None:
        assert isinstance(message, m.Notice)
        self.notices.append(message.text)
        self.changed.set()

    def _end(self) -> None:
        self.ended.set()
        self.changed.set()


def test_lines_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path, monkeypatch, "")
    process.run(lambda: len(process.notices) == 2)
    assert process.notices == ["one", "two"]
    assert process.ended.is_set()


def test_an_invalid_message_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path, monkeypatch, r"nonsense\n")
    process.run(process.ended.is_set)
    assert process.notices == ["one", "two"]
    assert "sent an invalid message" in str(process.child.dead)


def test_bytes_of_a_partial_line_count_as_activity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specllama.client.child._SILENCE_SECONDS", 1.5)
    drips = r"""["Notice",{"text":"' ; for i in 1 2 3 4 5; do printf x; sleep 0.5; done; printf '"}]\n"""
    process = Process(tmp_path, monkeypatch, drips)
    process.run(lambda: len(process.notices) == 3 or process.ended.is_set())
    assert process.notices == ["one", "two", "x" * 5]


def test_a_signal_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path, monkeypatch, r"""' ; echo secret >&2 ; kill -40 $$ ; printf '""")
    process.run(process.ended.is_set)
    error = process.child.dead
    assert error is not None
    assert error.message == "the engine process was ended by signal 40"
    assert "secret" in error.hint


class Heard:
    """What was delivered of a request, and that it was in the loop's thread."""

    def __init__(self) -> None:
        self.delta: asyncio.Queue[m.Message | SpecllamaError] = asyncio.Queue()
        self.loop = threading.get_ident()

    def __call__(self, message: m.Message | SpecllamaError) -> None:
        assert threading.get_ident() == self.loop
        self.delta.put_nowait(message)

    async def text(self) -> str:
        heard = ""
        while True:
            message = await self.delta.get()
            if isinstance(message, SpecllamaError):
                raise message
            if isinstance(message, m.Tokens):
                heard += message.items[0].text
            if isinstance(message, m.Done):
                return heard + message.text


class TestClientOfALoop:
    REQUEST = generate(1, prompt="def f(", params={"max_tokens": 20, "ignore_eos": True, "seed": 1})

    async def loaded(self, ended: Callable[[], None]) -> EngineClient:
        client = EngineClient(None, None, ended, loop=asyncio.get_running_loop())
        await asyncio.to_thread(client.load, SETTINGS)
        return client

    def test_the_text_is_that_of_a_threaded_client(self) -> None:
        async def main() -> str:
            client, heard = await self.loaded(lambda: None), Heard()
            client.submit(self.REQUEST, heard)
            try:
                return await heard.text()
            finally:
                await asyncio.to_thread(client.close)

        with EngineClient() as client:
            client.load(SETTINGS)
            expected = ""
            for message in client.generate(self.REQUEST):
                if isinstance(message, m.Tokens):
                    expected += message.items[0].text
                elif isinstance(message, m.Done):
                    expected += message.text
        assert len(expected) > 10
        assert asyncio.run(main()) == expected

    def test_a_failing_delivery_affects_no_other_request(self) -> None:
        def fail(_message: m.Message | SpecllamaError) -> None:
            raise RuntimeError("a mistake of ours")

        async def main() -> tuple[str, int]:
            failed: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
            client, heard = await self.loaded(lambda: None), Heard()
            client.submit(generate(2, prompt="def g(", params={"max_tokens": 3}), fail)
            client.submit(self.REQUEST, heard)
            try:
                return await heard.text(), len(failed)
            finally:
                await asyncio.to_thread(client.close)

        text, n_failed = asyncio.run(main())
        assert text
        assert n_failed >= 2

    def test_a_killed_engine(self) -> None:
        async def main() -> None:
            ended = asyncio.Event()
            client, heard = await self.loaded(ended.set), Heard()
            client.submit(generate(1, prompt="x", params={"max_tokens": 2000, "ignore_eos": True}), heard)
            os.kill(client.pid, signal.SIGKILL)
            async with asyncio.timeout(5):
                with pytest.raises(EngineDiedError, match="SIGKILL"):
                    await heard.text()
                await ended.wait()
            assert client.dead is not None
            await asyncio.to_thread(client.close)

        asyncio.run(main())
