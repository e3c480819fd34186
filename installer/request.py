"""What setup.sh asks the installation for, and the files that it reads and writes."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import USAGE, InstallError
from .ready_made import PACKAGE

CMAKE_OPTIONS = {
    "cpu": (),
    "cuda": ("-DGGML_CUDA=ON",),
    "vulkan": ("-DGGML_VULKAN=ON",),
    "metal": ("-DGGML_METAL=ON",),
    "hip": ("-DGGML_HIP=ON",),
    "sycl": ("-DGGML_SYCL=ON",),
}


@dataclass(frozen=True)
class Request:
    """What to install into root/.venv.

    kind: "", or "dev" with the packages of the tests. device: the backend that llama.cpp is compiled for.
    changes: checksum of the files that say how llama.cpp is compiled. amx: whether the processor has AMX.
    stamp: names the files that tell setup.sh what is installed.
    """

    root: Path
    kind: str
    device: str
    changes: str
    amx: bool
    stamp: str
    environ: Mapping[str, str]
    version: str

    @staticmethod
    def parse(arguments: Sequence[str], root: Path, environ: Mapping[str, str] = os.environ) -> Request:
        """The request in the arguments of install.py. Raises InstallError for an unknown backend."""
        parser = argparse.ArgumentParser(prog="install.py", allow_abbrev=False)
        parser.add_argument("--kind", choices=("", "dev"), default="")
        parser.add_argument("--device", required=True)
        parser.add_argument("--changes", required=True)
        parser.add_argument("--amx", choices=("0", "1"), default="0")
        parser.add_argument("--stamp", required=True)
        given = parser.parse_args(arguments)
        if given.device not in CMAKE_OPTIONS:
            names = ", ".join(CMAKE_OPTIONS)
            raise InstallError(
                f"SPECLLAMA_BACKEND is '{given.device}', which is not one of {names}", "unset it", USAGE
            )
        amx = given.amx == "1"
        version = pinned_version(root)
        return Request(root, given.kind, given.device, given.changes, amx, given.stamp, environ, version)

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def native(self) -> Path:
        """The files that are compiled, or say how llama.cpp is."""
        return self.root / "specllama" / "llama" / "native"

    @property
    def build(self) -> str:
        """What a compiled llama.cpp was made from."""
        return f"{self.version}, {self.device}, changed {self.changes}{', fixed for AMX' if self.amx else ''}"

    @property
    def must_compile(self) -> bool:
        """Whether a ready-made build is not enough."""
        asked = self.environ.get("SPECLLAMA_BUILD", "") not in ("", "0")
        given = any(self.environ.get(name) for name in ("SPECLLAMA_BACKEND", "CMAKE_ARGS"))
        return self.kind == "dev" or asked or given

    @property
    def wants_demo(self) -> bool:
        return self.kind == "" and self.environ.get("SPECLLAMA_DEMO", "") != "0"

    def stamps(self, compiled: bool) -> list[Path]:
        """The files that say that this request is fulfilled, by a compiled or a ready-made llama.cpp."""
        endings = ["", *(["-compiled"] if compiled else []), *([f"-{self.kind}"] if self.kind else [])]
        return [self.venv / f".installed-{self.stamp}{ending}" for ending in endings]

    def is_fulfilled(self) -> bool:
        """Whether there is nothing to do, as setup.sh decides it."""
        stamps = self.stamps(compiled=self.must_compile and not self.kind)
        there = (self.venv / "bin" / "specllama").exists()
        return there and self.is_own() and all(stamp.exists() for stamp in stamps)

    @property
    def made_for(self) -> Path:
        """The file that says for which checkout .venv was made, and with which Python."""
        return self.venv / ".made-for"

    def is_own(self) -> bool:
        """Whether .venv was made for this checkout and its Python is there: scripts in it, and the path to
        specllama, are those of the checkout that it was made for.
        """
        if not self.python.exists():
            return False
        with contextlib.suppress(OSError):
            return self.made_for.read_text("utf-8") == self.owner_record()
        with contextlib.suppress(OSError):  # made before there was such a file
            made = (self.venv / "pyvenv.cfg").read_text("utf-8")
            return re.search(rf"(?m)^command = .* -m venv {re.escape(str(self.venv))}$", made) is not None
        return False

    def owner_record(self) -> str:
        """The content of `made_for`."""
        return f"{self.root}\n{self.python.resolve()}\n"

    def cmake_arguments(self) -> list[str]:
        """The arguments for CMake, without those of CMAKE_ARGS."""
        options = ["-DGGML_RPC=ON", "-DGGML_RPC_RDMA=OFF", "-DLLAVA_BUILD=OFF"]
        options.append(f"-DCMAKE_PROJECT_ggml_INCLUDE={self.native / 'build.cmake'}")
        if self.device == "cpu" and os.uname().sysname == "Darwin":
            options.append("-DGGML_METAL=OFF")
        return [*options, *CMAKE_OPTIONS[self.device]]


def pinned_version(root: Path) -> str:
    """The version of llama-cpp-python that pyproject.toml demands."""
    with (root / "pyproject.toml").open("rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    found = [match[1] for one in dependencies if (match := re.fullmatch(rf"{PACKAGE}==([\w.]+)", one))]
    if len(found) != 1:
        raise InstallError(f"pyproject.toml pins no version of {PACKAGE}")
    return found[0]
