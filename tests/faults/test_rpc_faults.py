"""RPC workers that are absent, busy, something else, or die: one clear error, and the front survives."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from specllama import LLM, SamplingParams
from specllama.errors import EngineDiedError
from tests.support.command import Command
from tests.support.rpc_worker import RpcWorker, rpc_worker

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")
LONG = ("run", "-p", "zip", "--ignore-eos", "-n", "200000", "-c", "65536", "--seed", "1", "--no-calibrate")
SOON = 30.0  # seconds; normally some tenths


@pytest.fixture
def workers(command: Command) -> Iterator[tuple[RpcWorker, RpcWorker]]:
    with rpc_worker(command) as first, rpc_worker(command) as second:
        yield first, second


def errors(stderr: bytes) -> list[str]:
    """The error line and the lines after it."""
    lines = stderr.decode().splitlines()
    assert "Traceback" not in stderr.decode()
    return lines[next(i for i, line in enumerate(lines) if line.startswith("error: ")) :]


@pytest.mark.parametrize("how", ["server killed", "front killed", "Ctrl-C", "SIGTERM"])
def test_a_worker_lost_during_a_run_is_named(
    command: Command, workers: tuple[RpcWorker, RpcWorker], how: str
) -> None:
    _, second = workers
    front = command.start(*LONG, "--rpc", ",".join(w.endpoint for w in workers), fork=True)
    assert front.stdout is not None
    first = front.stdout.read(1)
    if how == "server killed":
        second.server.kill()
    else:
        numbers = {"front killed": signal.SIGKILL, "Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM}
        code, worker_stderr = second.end(numbers[how])
        assert code == {"front killed": -9, "Ctrl-C": 130, "SIGTERM": 143}[how]
        assert "Traceback" not in worker_stderr
    rest, stderr = front.communicate(timeout=SOON)
    assert front.returncode == 9
    assert len(first + rest) > 0
    error, hint = errors(stderr)
    assert error.startswith(f"error: the connection to the RPC worker {second.endpoint} was lost")
    assert hint == "check it, then run the command again"


def test_the_other_worker_keeps_serving(command: Command, workers: tuple[RpcWorker, RpcWorker]) -> None:
    first, second = workers
    front = command.start(*LONG, "--rpc", f"{first.endpoint},{second.endpoint}", fork=True)
    assert front.stdout is not None
    front.stdout.read(1)
    second.server.kill()
    front.communicate(timeout=SOON)
    assert second.front.wait(SOON) == 9  # before `end`, whose SIGTERM would change the exit code
    _, worker_stderr = second.end()
    assert "error: the engine process was ended by SIGKILL" in worker_stderr
    assert command.generate("-p", "zip", "-n", "8", "--rpc", first.endpoint).out


def test_a_worker_lost_during_the_load_is_named(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=dies_when_used, args=(listener,), daemon=True)
        thread.start()
        done = command("run", "-p", "zip", "--rpc", endpoint)
        thread.join(5)
    assert (done.code, done.raw) == (9, b"")
    assert f"the connection to the RPC worker {endpoint} was lost" in errors(done.err.encode())[0]


def dies_when_used(listener: socket.socket) -> None:
    """Answers the probe, then ggml's count of devices; closes the third connection after the greeting."""
    answers = {14: bytes([7]) + bytes(27), 15: (1).to_bytes(4, "little"), 11: b"\0\0\0\0\1\0\0\0" * 2}
    for n in range(3):
        connection, _ = listener.accept()
        with connection:
            while head := connection.recv(9, socket.MSG_WAITALL):
                connection.recv(int.from_bytes(head[1:], "little"), socket.MSG_WAITALL)
                if n == 2 and head[0] != 14:
                    return
                answer = answers[head[0]]
                connection.sendall(len(answer).to_bytes(8, "little") + answer)


def test_a_busy_worker_is_an_error(command: Command) -> None:
    with rpc_worker(command) as worker:
        front = command.start(*LONG, "--rpc", worker.endpoint, fork=True)
        assert front.stdout is not None
        front.stdout.read(1)
        started = time.monotonic()
        done = command("run", "-p", "zip", "--rpc", worker.endpoint)
        assert time.monotonic() - started < 30
        assert (done.code, done.raw) == (5, b"")
        error, hint = errors(done.err.encode())
        assert f"the RPC worker {worker.endpoint} accepts the connection and does not answer" in error
        assert "one client at a time" in hint
        front.send_signal(signal.SIGINT)
        front.communicate(timeout=SOON)
        assert command.generate("-p", "zip", "-n", "8", "--rpc", worker.endpoint).out


def test_a_web_server_is_an_error(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while b"\n" not in connection.recv(100):
                    pass
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        done = command("run", "-p", "zip", "--rpc", endpoint)
    assert (done.code, done.raw) == (5, b"")
    assert (
        errors(done.err.encode())[0] == f"error: {endpoint} is not an RPC worker: it answers as a web server"
    )


def test_python_survives_a_lost_worker_and_can_use_another(command: Command) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    with rpc_worker(command) as worker, LLM(rpc=worker.endpoint, calibrate=False, n_threads=1) as llm:
        texts = llm.stream("zip", {"ignore_eos": True, "max_tokens": 100_000})
        next(texts)
        worker.server.kill()
        with pytest.raises(EngineDiedError, match=f"RPC worker {worker.endpoint} was lost"):
            for _ in texts:
                pass
        with pytest.raises(EngineDiedError, match="RPC worker"):
            llm.generate("zip", params)
    with rpc_worker(command) as other, LLM(rpc=other.endpoint, calibrate=False, n_threads=1) as llm:
        assert llm.generate("zip", params)[0].outputs[0].text
