"""Processes that stand still for a while (Ctrl-Z, a frozen container, the sleep of a laptop) and go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from specllama.client import protocol
from tests.support.command import Command
from tests.support.paths import ROOT
from tests.support.processes import SOON, child_of
from tests.support.serving import QUESTION, Server, first_event, rest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")
LIMIT, PAUSE = 2.0, 4.5  # seconds; a pause counts as one second
# Imported by every Python process at its start: the limits of 30 s, for which no test could wait, are LIMIT.
LIMITS = f"""
import sys, threading, time

def limit():
    while True:
        child = sys.modules.get("specllama.client.child")
        core = sys.modules.get("specllama.worker.engine_core")
        if hasattr(child, "EngineProcess"):
            child._SILENCE_SECONDS = {LIMIT}
            return
        if hasattr(core, "EngineCore"):
            core.EngineCore.allowed_seconds = lambda _: {LIMIT}
            return
        time.sleep(0.01)

threading.Thread(target=limit, daemon=True).start()
"""
LONG = ("run", "-m", "pydoc", "-p", "zip", "--ignore-eos", "-n", "1500", "-c", "8192", "--seed", "1")
EVENTS = """
import asyncio, os, signal, time
from specllama.clock import run, running_time

async def main():
    loop = asyncio.get_running_loop()
    began, fired = loop.time(), asyncio.Event()
    by_system = time.monotonic()
    loop.call_later(1.8, fired.set)
    async with asyncio.timeout(2.6):  # counts from before the pause
        os.kill(os.getpid(), signal.SIGSTOP)
        await fired.wait()
    assert time.monotonic() - by_system > 4, "there was no pause"
    assert 1.7 < loop.time() - began < 3.5, loop.time() - began

run(main())
print("done")
"""

BLOCKED = """
import sys, threading, types
from specllama.client.protocol import Notice
from specllama.clock import running_time
from specllama.worker.main import _Pipes

pipes, seen = _Pipes(), []
pipes.core = types.SimpleNamespace(busy_since=running_time())
threading.Timer(0.5, lambda: seen.append(pipes.blocked)).start()
pipes.send(Notice("x" * 300_000))
assert seen == [True] and not pipes.blocked
sys.stderr.write(str(running_time() - pipes.core.busy_since))
"""


@pytest.fixture
def limited(command: Command) -> Command:
    """A command whose watchdogs have LIMIT seconds."""
    folder = command.home / "limits"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(LIMITS)
    command.env["PYTHONPATH"] = f"{folder}:{ROOT}"
    return command


def pause(*processes: psutil.Process) -> None:
    for process in processes:
        process.suspend()
    time.sleep(PAUSE)
    for process in reversed(processes):
        process.resume()


def front(command: Command, *args: str, **more: int) -> subprocess.Popen[bytes]:
    return command.start(*args, "--no-calibrate", "-md", "none", "--drafters", "none", **more)


def begun(fronts: Sequence[subprocess.Popen[bytes]]) -> list[bytes]:
    """The first output of each."""
    return [one.stdout.read(1) for one in fronts if one.stdout is not None]


def test_runs_and_a_chat_go_on(limited: Command) -> None:
    """`run` with both processes stopped, with the front alone stopped as by Ctrl-Z, and a chat between two of
    its turns.
    """
    both, alone = front(limited, *LONG), front(limited, *LONG)
    chat = front(limited, "chat", "-m", "pydoc", "-n", "8", "--seed", "1", stdin=subprocess.PIPE)
    assert chat.stdin is not None
    chat.stdin.write(b"zip\n")
    chat.stdin.flush()
    first = begun((both, alone, chat))
    pause(*(psutil.Process(p) for p in (both.pid, child_of(both.pid).pid, alone.pid, chat.pid)))
    out, err = chat.communicate(b"os.path\n", timeout=SOON)
    assert chat.returncode == 0, err
    assert (first[2] + out).count(b"\n") >= 2
    texts = []
    for process, start in ((both, first[0]), (alone, first[1])):
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert b"1500 tokens at " in err
        texts.append(start + out)
    assert texts[0] == texts[1]


def test_an_engine_that_stands_still_alone_is_still_ended(limited: Command) -> None:
    """That is no pause of the front, which waits: the watchdog's case."""
    process = front(limited, *LONG[:8], "-n", "200000", "-c", "65536")
    begun([process])
    engine = child_of(process.pid)
    engine.suspend()
    _, err = process.communicate(timeout=SOON)
    assert process.returncode == 9
    assert b"in which it used no processor time for" in err


def test_time_in_which_the_front_reads_nothing_is_no_hang_of_the_engine() -> None:
    """It stands still, and the pipe is full."""
    engine = subprocess.Popen(
        [sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    time.sleep(2.5)
    out, err = engine.communicate(timeout=SOON)
    assert (engine.returncode, len(out)) == (0, len(protocol.encode(protocol.Notice("x" * 300_000)))), err
    assert float(err) < 1.0


def test_a_servers_limits_leave_pauses_out(limited: Command, tmp_path: Path) -> None:
    """The limit of an answer, and of silence of the engine."""
    flags = ("--timeout", "5", "-np", "1", "-c", "8192")
    with Server(tmp_path, *flags, env=limited.env) as server:
        link = server.begin(
            "/v1/chat/completions", messages=QUESTION, max_tokens=500, ignore_eos=True, stream=True, seed=1
        )
        answer = first_event(link)
        pause(psutil.Process(server.process.pid), server.engine())
        assert rest(answer)[-1]["choices"][0]["finish_reason"] == "length"
        assert server.get("/health").status == 200


def test_timers_of_an_event_loop_leave_pauses_out() -> None:
    process = subprocess.Popen([sys.executable, "-c", EVENTS], stdout=subprocess.PIPE, cwd=ROOT)
    stopped = psutil.Process(process.pid)
    deadline = time.monotonic() + SOON
    while stopped.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(PAUSE)
    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate(timeout=SOON)
    assert (process.returncode, out) == (0, b"done\n")
