"""The installation: lock, .venv, llama-cpp-python from the first source that has it, packages, demo model."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from specllama.processor_time import TooLongError
from specllama.python_command import module_command

from . import ready_made
from .background import BackgroundProcess
from .compilation import compile_llama, wheel_key
from .demo import DemoDownload
from .errors import RESOURCES, InstallError, Interrupted, of_system
from .processes import Children
from .progress import Progress
from .ready_made import PACKAGE, ReadyMade
from .request import Request
from .tools import LOCAL, PACKAGES_BYTES, Tools, environment
from .trial import link_duplicates, system_compilers, unusual_compiler, works
from .wheels import WheelCache, cache_directory

SEARCHING = "looking for a compiled llama.cpp"
KERNELS = "compiling specllama's kernels"


def main(arguments: Sequence[str]) -> int:
    """Install; returns the exit code. Messages go to stderr."""
    root = Path(__file__).resolve().parents[1]
    progress = Progress(sys.stderr, sys.stderr.isatty() and os.environ.get("TERM") != "dumb")
    log = root / ".venv" / "install.log"
    before = _changed(log)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        request = Request.parse(arguments, root)
        with locked(root / ".installing", progress):
            if not request.is_fulfilled():
                install(request, progress)
            elif not request.made_for.exists():  # an installation from before there was such a file
                request.made_for.write_text(request.owner_record(), "utf-8")
        return 0
    except InstallError as error:
        found = error
    except OSError as error:
        found = of_system(error, root)
    except Interrupted as stopped:
        progress.say("interrupted; the next call starts the installation again")
        return stopped.code
    progress.say(f"error: {found.message}")
    if found.hint:
        progress.say(found.hint)
    if _changed(log) not in (None, before):  # written by this call
        progress.say(f"the whole log is in {log}")
    return found.code


def _changed(path: Path) -> int | None:
    """When the file was written last, in ns of the time of day, which is only compared; None without it."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return None


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)


@contextlib.contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """One installation at a time. The system releases the lock of a process that ends, however it ends."""
    if path.is_dir():  # the lock of an earlier version of the scripts
        shutil.rmtree(path)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another installation is under way, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(request: Request, progress: Progress) -> None:
    """Install what is missing. Raises InstallError, OSError and Interrupted."""
    request.venv.mkdir(exist_ok=True)
    for stamp in request.venv.glob(".installed-*"):
        stamp.unlink()
    with (request.venv / "install.log").open("wb") as log:
        children = Children(log, environment(request.environ))
        try:
            Installation(Tools(request, progress, children)).run()
        finally:
            progress.clear()
            children.end()
            shutil.rmtree(request.venv / "work", ignore_errors=True)


@dataclass(frozen=True)
class Build:
    """An installed llama.cpp. name: for messages. ready_made: not compiled by this installation or an earlier
    one. system: compiled with the system's compilers because another build did not work.
    """

    name: str
    ready_made: bool = False
    system: bool = False


class Installation:
    """One installation into .venv, under the lock."""

    def __init__(self, tools: Tools) -> None:
        self.tools, self.request, self.progress = tools, tools.request, tools.progress
        self.cache = WheelCache(cache_directory(tools.request.environ) / "wheels")
        self.demo = DemoDownload(tools)
        self.tried = list[str]()  # names of builds that do not work
        self.has_kernels = False

    def run(self) -> None:
        """Install everything; what is made stays where a later step fails. The processor is measured last."""
        self.make_venv()
        kernels = self.begin_kernels()
        used = self.install_llama()
        self.progress.say("installing Python packages")
        extra = f"[{self.request.kind}]" if self.request.kind else ""
        arguments = self.tools.constrained("install", "-e", f"{self.request.root}{extra}")
        self.tools.call(self.tools.pip_command(*arguments), "installing Python packages")
        self.finish_kernels(kernels)
        self.demo.finish()
        if used is not None:
            self.check(used)
        for stamp in self.request.stamps(compiled=self.recorded.startswith("compiled")):
            stamp.touch()

    def make_venv(self) -> None:
        """Make .venv unless it is there and whole, and remove what a killed installation has left in it."""
        work, python = self.tools.work, self.request.python
        shutil.rmtree(work, ignore_errors=True)
        own = self.request.is_own()
        whole = own and self.tools.run([python, "-c", "import pip"], "checking .venv")[0] == 0
        if not whole:
            self.tools.check_room(PACKAGES_BYTES)
            if python.exists() and not own:
                self.progress.say("the .venv here was made for another checkout, or with another Python")
            self.progress.say(f"making {self.request.venv}")
            for name in ("bin", "lib", "lib64", "include", "pyvenv.cfg", ".backend", ".demo", ".made-for"):
                _remove(self.request.venv / name)
            self.tools.call([sys.executable, "-m", "venv", self.request.venv], "making .venv")
        if not (command := self.request.venv / "bin" / "specllama").exists():
            _remove(command)  # a link that leads nowhere, which pip cannot replace
        work.mkdir()
        self.request.made_for.write_text(self.request.owner_record(), "utf-8")

    @property
    def recorded(self) -> str:
        """How the installed llama.cpp was made, "" if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self.record.read_text("utf-8").strip()
        return ""

    @property
    def record(self) -> Path:
        return self.request.venv / ".backend"

    def install_llama(self) -> Build | None:
        """Install llama-cpp-python. Returns the build, which is to be tried, None if it is there already."""
        fitting = [f"compiled: {self.request.build}"]
        if not self.request.must_compile:
            fitting.append(f"ready-made: {self.request.version}")
        if self.recorded in fitting:
            return None
        self.record.unlink(missing_ok=True)
        if self.install_cached():
            return Build("the llama.cpp that was compiled here before")
        if not self.request.must_compile:
            find = ready_made.ready_made(
                self.request.version,
                lambda *arguments: self.tools.try_pip(SEARCHING, *arguments),
                self.tools.work / "found",
                self.tools.children.write,
            )
            for build in find:
                if self.install_ready_made(build):
                    return Build(f"llama-cpp-python {self.request.version} of {build.where}", ready_made=True)
        return self.compile()

    def install_cached(self) -> bool:
        """Install the wheel of an earlier compilation; False if there is none."""
        wanted = wheel_key(self.tools)
        try:
            wheel = self.cache.find(wanted)
            if wheel is None:
                return False
            if self.tools.try_pip("installing llama.cpp", *LOCAL, wheel)[0]:
                self.cache.remove(wanted)
                raise ValueError(f"the wheel in {wheel.parent} cannot be installed")
        except ValueError as error:
            self.progress.say(f"{error}; it is removed, and llama.cpp compiled again")
            return False
        self.progress.say("llama.cpp was compiled here before; that build is used")
        return True

    def install_ready_made(self, build: ReadyMade) -> bool:
        """Install a ready-made build; False if it does not fit this Python or system."""
        if build.wheel is not None:
            return self.tools.try_pip(SEARCHING, *LOCAL, build.wheel)[0] == 0
        assert build.installed is not None
        self.tools.try_pip(SEARCHING, "uninstall", "-y", PACKAGE)
        ready_made.copy_installed(build.installed, self.tools.packages)
        return True

    def compile(self, compilers: Mapping[str, str] | None = None) -> Build:
        """Compile and install llama.cpp. compilers: variables that name other ones."""
        unusual = "" if compilers else unusual_compiler(self.request.environ)
        if unusual:
            self.progress.say(f"llama.cpp is compiled with '{unusual}', which CXX names, and tried then")
        compile_llama(self.tools, self.cache, self.demo, compilers or {})
        name = (
            f"the llama.cpp compiled with {compilers['CXX']}" if compilers else "the llama.cpp compiled here"
        )
        return Build(name, system=bool(compilers))

    def begin_kernels(self) -> BackgroundProcess:
        """Compile the plug-in for llama.cpp while packages are downloaded and installed, and in the time that
        the compilation of llama.cpp leaves. Where that fails, specllama says why and answers without it.
        """
        return BackgroundProcess(self.tools, "kernels", module_command("specllama.llama.kernel_build"))

    def finish_kernels(self, kernels: BackgroundProcess) -> None:
        """Wait for them, and say why there are none."""
        code, output = kernels.finish(KERNELS)
        self.has_kernels = code == 0
        if code:
            reason = (output.splitlines() or [f"it ended with {code}"])[-1]
            self.progress.say(f"{KERNELS} failed: {reason}; specllama tries again when it starts")

    def check(self, used: Build) -> None:
        """Try a build, and record it if it works, else compile. Raises InstallError where nothing works."""
        saved = link_duplicates(self.tools.packages / "llama_cpp" / "lib")
        if saved:
            self.tools.children.write(
                f"libraries under several names are links now: {saved / 1e6:.0f} MB less"
            )
        if self.works(used):
            if used.ready_made:
                self.progress.say(f"{used.name} is used")
            kind = (
                f"ready-made: {self.request.version}"
                if used.ready_made
                else f"compiled: {self.request.build}"
            )
            self.record.write_text(f"{kind}\n", "utf-8")
            return
        self.check(self.instead_of(used))

    def works(self, used: Build) -> bool:
        """Whether a build answers. Raises InstallError where one that was compiled here takes too long, which
        shows no fault of the compilation: it is kept.
        """
        try:
            return works(self.tools, self.has_kernels)
        except TooLongError as late:
            if used.ready_made:
                return False
            raise InstallError(
                f"testing llama.cpp was ended: in writing eight tokens, {used.name} {late}",
                "what was compiled is kept: call this again; if that does not help, set CC and CXX to "
                "other compilers",
                RESOURCES,
            ) from None

    def instead_of(self, used: Build) -> Build:
        """Another build than one that does not work. Raises InstallError where there is none."""
        self.tried.append(used.name)
        if not used.ready_made:
            self.cache.remove(wheel_key(self.tools))
        if used.ready_made or (len(self.tried) == 1 and used.name.endswith("before")):
            self.progress.say(f"{used.name} does not work on this machine; compiling llama.cpp instead")
            return self.compile()
        compilers = {} if used.system else system_compilers(self.request.environ)
        if compilers:
            self.progress.say(f"{used.name} does not work; compiling it again with {compilers['CXX']}")
            return self.compile(compilers)
        raise InstallError(
            f"llama.cpp does not work here: {' and '.join(self.tried)} failed to write eight tokens",
            "set CC and CXX to other compilers, or SPECLLAMA_BACKEND=cpu to leave the GPU out",
            RESOURCES,
        )


def _remove(path: Path) -> None:
    """Remove a file or directory that may not be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
