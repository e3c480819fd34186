"""The servers to compare, started on loopback one by one with the same files, slots and threads."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_START, _END = 120.0, 10.0  # seconds


@dataclass(frozen=True)
class Files:
    """Files and settings of a server. tools: directory with llama-server; n_ctx: of all slots together."""

    target: Path
    draft: Path | None
    n_slots: int
    n_threads: int
    n_ctx: int
    tools: Path


@dataclass(frozen=True)
class Way:
    """A server. draft: whether it uses the draft model; requests to specllama can switch that off."""

    name: str
    draft: bool

    def command(self, files: Files, port: int) -> list[str]:
        """The command line."""
        common = ["-m", str(files.target), "-c", str(files.n_ctx), "-np", str(files.n_slots)]
        common += ["-t", str(files.n_threads), "--host", "127.0.0.1", "--port", str(port)]
        drafts = self.draft and files.draft is not None
        if self == OURS:
            draft = ["-md", str(files.draft)] if drafts else ["-md", "none"]
            return [sys.executable, "-m", "specllama", "serve", *common, *draft]
        # -md alone does nothing there: --spec-type switches drafting on, with its default length
        draft = ["-md", str(files.draft), "-td", str(files.n_threads), "--spec-type", "draft-simple"]
        return [str(files.tools / "llama-server"), *common, "--no-ui", *(draft if drafts else [])]


OURS = Way("specllama", True)
PEER_DRAFT = Way("llama-server draft", True)
PEER_PLAIN = Way("llama-server plain", False)


@contextlib.contextmanager
def running(command: Sequence[str], port: int) -> Iterator[str]:
    """Runs a server while the block runs; yields its address once it is ready."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=os.environ
        )
        try:
            _wait(process, port)
            yield f"http://127.0.0.1:{port}"
            if process.poll() is not None:
                _fail(command, process, log.fileno())
        except TimeoutError:
            _fail(command, process, log.fileno())
        finally:
            process.terminate()
            try:
                process.wait(_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """A free port."""
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        return int(link.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline and process.poll() is None:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            link.request("GET", "/health")
            if link.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            link.close()
        time.sleep(0.05)
    raise TimeoutError


def _fail(command: Sequence[str], process: subprocess.Popen[bytes], log: int) -> None:
    """Raises SystemExit with the end of the server's log."""
    log_end = os.pread(log, 1 << 20, 0).decode("utf-8", "replace")[-2000:]
    state = "does not start" if process.poll() is None else f"ended with {process.returncode}"
    raise SystemExit(f"{Path(command[0]).name} {state}:\n{log_end}")
