"""`specllama ps` and `specllama stop`: the servers that run, whatever keys they have, and their ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from specllama.cli.servers import _chosen
from specllama.clock import sleep, wait_until
from specllama.errors import NotFoundError, UsageError
from specllama.server.running import ModelInMemory, RunningServer
from tests.support.command import Command
from tests.support.serving import Server


def folder(command: Command) -> Path:
    return command.cache / "servers"


def test_a_server_is_listed_and_stopped(command: Command) -> None:
    assert command("ps").out == "no server runs; specllama serve starts one\n"
    assert "no server runs" in command("stop").err
    with Server(command.home, "--api-key", "secret") as server:
        record = folder(command) / f"{server.process.pid}.json"
        assert wait_until(lambda seconds: sleep(seconds) or '"loaded"' in record.read_text(), 5.0)
        (listed,) = command("ps", "--json").json["servers"]
        (model,) = listed["models"]
        assert (listed["url"], listed["pid"]) == (server.url, server.process.pid)
        assert (model["name"], model["state"], model["n_ctx"]) == ("pydoc-target", "loaded", 2048)
        assert "secret" not in record.read_text()
        assert record.stat().st_mode & 0o077 == 0
        shown = command("ps", env={"COLUMNS": "80"}).out.splitlines()
        assert shown[1].split() == [server.url, str(server.process.pid), "pydoc-target"]
        other = command("stop", "8")
        assert other.code == 3
        assert f"there is {server.url}" in other.err
        stopped = command("stop", str(server.port))
        assert (stopped.code, stopped.out) == (0, f"stopped {server.url}\n")
        assert server.process.wait(10) == 128 + signal.SIGTERM
    assert command("ps", "--json").json["servers"] == []
    assert list(folder(command).iterdir()) == []


def test_stop_now_ends_requests_and_a_killed_server_leaves_no_record(command: Command) -> None:
    with Server(command.home) as server:
        link = server.begin(prompt="def read(", max_tokens=100_000, ignore_eos=True, stream=True)
        assert link.getresponse().status == 200
        assert command("stop", "--all", "--now", timeout=15).code == 0
        assert server.process.wait(10) >= 128
    with Server(command.home) as server:
        server.process.kill()
        server.process.wait()
        assert command("ps", "--json").json["servers"] == []
        assert list(folder(command).iterdir()) == []


def test_a_cache_that_cannot_be_written_does_not_keep_a_server_from_running(command: Command) -> None:
    command.cache.mkdir(exist_ok=True)
    folder(command).write_bytes(b"")
    with Server(command.home) as server:
        assert server.answers()
        assert command("ps").out.startswith("no server runs")


def test_names_by_which_a_server_is_found() -> None:
    one = RunningServer(7, "http://127.0.0.1:80", 30.0, (ModelInMemory("a", "/m/a.gguf", "loaded"),))
    two = RunningServer(8, "http://[::1]:81", 30.0, (ModelInMemory("a", "/m/a.gguf", "loaded"),))
    for name in ("7", "80", "127.0.0.1:80", "http://127.0.0.1:80"):
        assert _chosen([one, two], name, all_=False) == [one]
    assert _chosen([one, two], "[::1]:81", all_=False) == [two]
    assert _chosen([one], "/m/a.gguf", all_=False) == _chosen([one], None, all_=False) == [one]
    assert _chosen([one, two], None, all_=True) == [one, two]
    with pytest.raises(UsageError, match="2 servers run"):
        _chosen([one, two], None, all_=False)
    with pytest.raises(UsageError, match="several servers have a in memory"):
        _chosen([one, two], "a", all_=False)
    with pytest.raises(NotFoundError, match="no server b runs"):
        _chosen([one], "b", all_=False)
    with pytest.raises(NotFoundError):
        _chosen([], None, all_=False)
    assert _chosen([], None, all_=True) == []
