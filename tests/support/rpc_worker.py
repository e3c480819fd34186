"""RPC workers on loopback for tests: the installed command on a free port."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
from collections.abc import Iterator

import psutil

from tests.support.command import Command

READY_SECONDS = 90.0


class RpcWorker:
    """A running `specllama rpc-worker`. endpoint: its host:port. first: the first line of its output."""

    def __init__(self, command: Command, *args: str) -> None:
        self.front = command.start("rpc-worker", "--port", "0", "-t", "1", *args, fork=True)
        assert self.front.stdout is not None
        ready, _, _ = select.select([self.front.stdout], [], [], READY_SECONDS)
        self.first = self.front.stdout.readline().decode() if ready else ""
        if not self.first:
            _, stderr = self.end()
            raise AssertionError(f"no worker: {stderr}")
        self.endpoint = self.first.strip()

    @property
    def server(self) -> psutil.Process:
        """The engine process, in which ggml's server runs."""
        (found,) = psutil.Process(self.front.pid).children()
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End it with a signal, if it is running. Returns its exit code and stderr."""
        if self.front.poll() is None:
            self.front.send_signal(number)
        try:
            _, stderr = self.front.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.front.kill()
            _, stderr = self.front.communicate(timeout=30)
        return self.front.returncode, stderr.decode()


@contextlib.contextmanager
def rpc_worker(command: Command, *args: str) -> Iterator[RpcWorker]:
    """A context manager for a running worker."""
    worker = RpcWorker(command, *args)
    try:
        yield worker
    finally:
        worker.end()
