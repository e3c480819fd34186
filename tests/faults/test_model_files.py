"""The file of a model that is being served changes: overwritten, cut off, touched, replaced."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from specllama.config.load import LoadSettings, ModelSettings
from specllama.data import EMBEDDED_TARGET
from specllama.server import supervisor
from specllama.server.supervisor import LoadedFiles, files_of
from tests.support.serving import START, Server

KEY = "secret-of-the-tests"
ASK = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@dataclass
class Serving:
    """A server of a copy of the embedded target."""

    server: Server
    path: Path

    def text(self) -> str:
        reply = self.server.complete(**ASK)
        assert reply.status == 200, reply.body
        return str(reply.json["choices"][0]["text"])

    def health(self, key: str = "") -> tuple[int, str]:
        reply = self.server.get("/health", headers={"authorization": f"Bearer {key}"} if key else {})
        return reply.status, reply.json.get("error", {}).get("message", "")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    path = tmp_path / "private-folder" / "mine.gguf"
    path.parent.mkdir()
    shutil.copyfile(EMBEDDED_TARGET, path)
    flags = ("-m", str(path), "-md", "none", "--drafters", "none", "-np", "1")
    with Server(tmp_path, *flags, env={"SPECLLAMA_API_KEY": KEY}) as server:
        yield Serving(server, path)


def other_weights() -> bytes:
    """A model of the same layout that writes other texts."""
    data = bytearray(EMBEDDED_TARGET.read_bytes())
    middle = len(data) * 3 // 4
    data[middle:-4096] = bytes(len(data) - 4096 - middle)
    return bytes(data)


@pytest.mark.skipif(sys.platform == "win32", reason="files in use cannot be written there")
def test_an_overwritten_file_is_loaded_again(serving: Serving) -> None:
    """What was replaced or touched is not: the weights in memory are the same."""
    serving.server.key = KEY
    before, engine = serving.text(), serving.server.engine().pid
    os.utime(serving.path)
    new = serving.path.with_name("new")
    shutil.copyfile(EMBEDDED_TARGET, new)
    new.replace(serving.path)  # as downloads do
    time.sleep(2.5)
    assert (serving.health()[0], serving.server.engine().pid) == (200, engine)
    assert serving.text() == before


@pytest.mark.skipif(sys.platform == "win32", reason="files in use cannot be written there")
def test_a_file_overwritten_in_place(serving: Serving) -> None:
    serving.server.key = KEY
    before, engine = serving.text(), serving.server.engine().pid
    with serving.path.open("r+b") as file:
        file.write(other_weights())
    assert "mine.gguf was overwritten while it was in use" in serving.server.wait_for("overwritten", 10)
    serving.server.until(lambda: serving.health()[0] == 200 and serving.server.engine().pid != engine, START)
    assert serving.text() != before


@pytest.mark.skipif(sys.platform == "win32", reason="files in use cannot be written there")
def test_health_quotes_nothing_of_the_operators(serving: Serving) -> None:
    """A file that was cut off cannot be loaded again: why, and where it is, is for who has a key."""
    with serving.path.open("r+b") as file:
        file.truncate(5000)
    serving.server.until(lambda: serving.health()[0] == 503, 10)
    serving.server.until(lambda: "mine.gguf" in serving.health(KEY)[1], 30)
    for path in ("/health", "/v1/health"):
        reply = serving.server.get(path)
        assert reply.status == 503
        assert reply.error["message"] in (
            "the engine ended; it is being started again",
            "the engine process ended",
            "the model is loading",
        )
        assert b"mine" not in reply.body
        assert b"private-folder" not in reply.body


def test_blocks_of_a_file_are_compared_where_it_was_written_to(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(300_000))
    files = LoadedFiles([str(path), str(tmp_path / "missing")])
    assert files.changed() is None
    os.utime(path, (1, 1))
    assert files.changed() is None
    with path.open("r+b") as file:
        file.write(b"x")
    assert files.changed() == str(path)
    files.close()
    for size in (0, 1, supervisor._BLOCK_BYTES, 300_001):
        path.write_bytes(bytes(300_000))
        files = LoadedFiles([str(path)])
        with path.open("r+b") as file:
            file.truncate(size)
        assert files.changed() == str(path)
        files.close()


def test_all_files_of_a_load_are_watched() -> None:
    target = ModelSettings(path="/m/big-00001-of-00003.gguf", lora=(("/m/lora.gguf", 1.0),))
    found = list(files_of(LoadSettings(target=target, draft=ModelSettings(path="/m/small.gguf"))))
    parts = [f"/m/big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert found == [*parts, "/m/lora.gguf", "/m/small.gguf"]
