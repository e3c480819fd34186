"""A small checkout that scripts/setup.sh installs without a network and without compiling.

Its project is a package `specllama` whose command answers at once; llama-cpp-python is a wheel or a source
package whose "compilation" prints lines of ninja. Both come from a folder given as PIP_FIND_LINKS.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import ROOT

VERSION = "0.3.36"
BACKEND = """
import base64, hashlib, os, sys, time, zipfile

def wheel(folder, name, version, files, entry=""):
    files = dict(files)
    info = f"{name}-{version}.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    if entry:
        files[f"{info}/entry_points.txt"] = entry
    files[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in [*files, f"{info}/RECORD"])
    path = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, path), "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
    return path
"""
COMPILE = """
def build_wheel(folder, config_settings=None, metadata_directory=None):
    print("*** Configuring CMake...")
    print("CMAKE_ARGS is " + os.environ["CMAKE_ARGS"])
    for i in range(1, 11):
        print(f"[{i}/10] c++ -c file{i}.cpp", flush=True)
        if i == 5:
            seconds = float(os.environ.get("FAKE_SECONDS", "0"))
            with open(os.environ["FAKE_PIDS"], "w") as file:
                file.write(str(os.getpid()))
            time.sleep(seconds)
    if message := os.environ.get("FAKE_ERROR"):
        sys.exit(message)
    broken = os.environ.get("FAKE_BROKEN_CXX", "none")
    works = broken not in ("all", os.environ.get("CXX", ""))
    library = "x" * 1000
    files = {
        "llama_cpp/__init__.py": f"WORKS = {works}\\nBUILT = True\\n",
        "llama_cpp/lib/libllama.so": library,
        "llama_cpp/lib/libllama.so.0": library,
    }
    return wheel(folder, "llama_cpp_python", VERSION, files)
"""
KERNELS = """
import os, sys, time
if message := os.environ.get("FAKE_KERNELS"):
    sys.exit(message)
marker = os.environ["FAKE_PIDS"]  # it ends while the packages are installed, if it runs then
for _ in range(300):
    if os.path.exists(marker + ".packages"):
        open(marker + ".overlapped", "w").close()
        sys.exit()
    time.sleep(0.05)
"""
PROJECT = """
def build_editable(folder, config_settings=None, metadata_directory=None):
    open(os.environ["FAKE_PIDS"] + ".packages", "w").close()
    files = {"specllama_of_checkout.pth": os.path.abspath("package")}
    entry = "[console_scripts]\\nspecllama = fake_specllama:main\\n"
    return wheel(folder, "specllama", "0.1.0", files, entry)
"""
COMMAND = """
import os, sys
import llama_cpp

def main():
    if sys.argv[1:3] == ["run", "-m"]:
        print("kernels of the trial:", os.environ.get("SPECLLAMA_KERNELS", "as usual"))
    if sys.argv[1:] == ["pull", "demo"]:
        sys.exit("error: the package index cannot be reached")
    if not llama_cpp.WORKS:
        sys.exit("crash")
    print("built here" if getattr(llama_cpp, "BUILT", False) else "ready-made", *sys.argv[1:])
"""


@dataclass
class FakeCheckout:
    """root: the checkout. home: with the caches. links: PIP_FIND_LINKS."""

    root: Path
    home: Path
    links: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in (
            self.root / "package",
            self.root / "specllama" / "llama" / "native",
            self.home,
            self.links,
        ):
            folder.mkdir(parents=True, exist_ok=True)
        scripts = self.root / "scripts"
        shutil.copytree(ROOT / "installer", self.root / "installer")
        scripts.mkdir()
        for name in ("setup.sh", "specllama", "install.py"):
            shutil.copy2(ROOT / "scripts" / name, scripts / name)
        for name in ("__init__.py", "clock.py", "processor_time.py", "python_command.py"):
            shutil.copy2(ROOT / "specllama" / name, self.root / "specllama" / name)
        (self.root / "constraints.txt").touch()
        (self.root / "specllama/llama/native/build.cmake").write_text("# changes\n")
        (self.root / "specllama/llama/native/amx.h").write_text("/* AMX */\n")
        (self.root / "specllama/llama/native/plugin.cpp").touch()
        (self.root / "specllama/llama/kernel_build.py").write_text(KERNELS)
        (self.root / "backend.py").write_text(BACKEND + PROJECT)
        (self.root / "package" / "fake_specllama.py").write_text(COMMAND)
        system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        (self.root / "pyproject.toml").write_text(
            f'{system}[project]\nname = "specllama"\nversion = "0.1.0"\n'
            f'dependencies = [\n"llama-cpp-python=={VERSION}"]\n'
        )
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("SPECLLAMA_", "PIP_", "CMAKE_", "XDG_"))
        }
        self.env = kept | {
            "HOME": str(self.home),
            "SPECLLAMA_CACHE": str(self.home / "cache of specllama"),
            "SPECLLAMA_PYTHON": sys.executable,
            "SPECLLAMA_DEMO": "0",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": self.links.as_uri(),
            "PIP_CONFIG_FILE": os.devnull,
            "FAKE_PIDS": str(self.home / "pids"),
            "TMPDIR": str(self.home / "missing"),
            **self.env,
        }

    @classmethod
    def existing(cls, like: FakeCheckout, root: Path) -> FakeCheckout:
        """A checkout that is there already, of the same user."""
        found = object.__new__(cls)
        found.__dict__ |= {**like.__dict__, "root": root}
        return found

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def log(self) -> str:
        return (self.venv / "install.log").read_text()

    def start(self, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        """Start scripts/specllama."""
        return subprocess.Popen(
            [str(self.root / "scripts" / "specllama"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env | changes,
            start_new_session=True,
        )

    def run(self, *arguments: str, **changes: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of scripts/specllama."""
        process = self.start(*arguments, **changes)
        try:
            out, err = process.communicate(timeout=60)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, out, err


def sdist(folder: Path, version: str = VERSION) -> Path:
    """A source package of llama-cpp-python that compiles nothing."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": f"{BACKEND}\nVERSION = {version!r}\n{COMPILE}",
        "PKG-INFO": f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {version}\n",
    }
    name = f"llama_cpp_python-{version}"
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
        for member, text in files.items():
            info = tarfile.TarInfo(f"{name}/{member}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return folder / f"{name}.tar.gz"


def wheel(
    folder: Path, version: str = VERSION, works: bool = True, more: Mapping[str, bytes] | None = None
) -> Path:
    """A wheel of llama-cpp-python. works: whether the fake command succeeds with it."""
    info = f"llama_cpp_python-{version}.dist-info"
    files = {
        "llama_cpp/__init__.py": f"WORKS = {works}\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(more or {}),
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(x).digest()).rstrip(b"=") for name, x in files.items()
    }
    record = "".join(f"{name},sha256={digests[name].decode()},{len(x)}\n" for name, x in files.items())
    path = folder / f"llama_cpp_python-{version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path
