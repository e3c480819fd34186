"""The installation of a checkout by scripts/setup.sh and installer, without a network."""

from __future__ import annotations

import ensurepip
import errno
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from installer import demo, errors, main, processes, ready_made, request, wheels
from installer.compilation import wheel_key
from installer.main import locked
from installer.processes import Children
from installer.progress import BuildProgress, Progress
from installer.request import Request
from installer.tools import Tools
from installer.trial import link_duplicates
from specllama.config import store
from specllama.models.demo import SMOLLM2
from specllama.processor_time import TooLongError
from tests.support.fake_checkout import VERSION, FakeCheckout, sdist, wheel
from tests.support.paths import ROOT


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# What the installation knows of other files of the project


@pytest.mark.parametrize(
    "changes",
    [
        {"SPECLLAMA_CACHE": "given here"},
        {"XDG_CACHE_HOME": "/somewhere/with blanks"},
        {"XDG_CACHE_HOME": "relative"},
        {"HOME": "/home of someone"},
    ],
)
def test_the_cache_directory_is_that_of_the_program(
    changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPECLLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    assert store.cache_dir() == wheels.cache_directory(os.environ)


def test_the_demo_model_is_that_of_the_program() -> None:
    assert SMOLLM2.requirement == demo.PACKAGE


def test_the_version_is_that_of_pyproject() -> None:
    from specllama.llama.vision_build import TESTED

    assert request.pinned_version(ROOT) == TESTED


# Keys and the cache of wheels


@pytest.fixture
def compilers(tmp_path: Path) -> dict[str, str]:
    """An environment with a C and a C++ compiler, in a folder whose name has a blank."""
    folder = tmp_path / "bin of compilers"
    for name in ("cc", "c++"):
        executable(folder / name, f"echo {name} 12.2.0")
    return {"PATH": str(folder)}


def make_key(environ: Mapping[str, str], folder: Path, **parts: str) -> str:
    sources = [folder / "build.cmake", folder / "amx.h"]
    folder.mkdir(exist_ok=True)
    for source in sources:
        if not source.exists():
            source.write_text(source.name)
    cpuinfo = folder.parent / "cpuinfo"
    if not cpuinfo.exists():
        cpuinfo.write_text(
            "processor\t: 0\nflags\t\t: avx2\ncpu MHz\t\t: 1\n\nprocessor\t: 1\nflags\t\t: avx2\n"
        )
    return wheels.key({"version": VERSION, "device": "cpu", **parts}, sources, environ, cpuinfo)


def test_a_key_is_of_everything_that_a_compilation_depends_on(
    compilers: dict[str, str], tmp_path: Path
) -> None:
    first = make_key(compilers, tmp_path / "checkout")
    assert make_key(compilers, tmp_path / "another checkout") == first
    found = {first}

    def differs(key: str) -> None:
        assert key not in found
        found.add(key)

    for name in ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "LDFLAGS"):
        differs(make_key(compilers | {name: "-O1"}, tmp_path / "checkout"))
    differs(make_key(compilers, tmp_path / "checkout", version="0.3.37"))
    differs(make_key(compilers, tmp_path / "checkout", device="cuda"))
    differs(make_key(compilers, tmp_path / "checkout", amx="True"))
    clang = executable(tmp_path / "clang++", "echo clang 15")
    differs(make_key(compilers | {"CXX": f"'{clang}' -stdlib=libc++"}, tmp_path / "checkout"))
    executable(Path(compilers["PATH"]) / "cc", "echo cc 12.3.0")
    differs(make_key(compilers, tmp_path / "checkout"))
    (tmp_path / "checkout" / "amx.h").write_text("changed")
    differs(make_key(compilers, tmp_path / "checkout"))
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: avx2 avx512f\n")
    differs(make_key(compilers, tmp_path / "checkout"))
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: avx2 avx512f\ncpu MHz\t: 3\n")
    assert make_key(compilers, tmp_path / "checkout") in found


def test_without_proc_a_wheel_is_of_this_machine_alone(tmp_path: Path) -> None:
    found = wheels.processor(tmp_path / "proc" / "cpuinfo")
    assert found
    assert found == wheels.processor(tmp_path / "proc" / "cpuinfo")


def test_a_wheel_is_found_again_until_it_is_damaged(tmp_path: Path) -> None:
    cache = wheels.WheelCache(tmp_path / "not there yet" / "wheels")
    assert cache.find("key") is None
    cache.store("key", wheel(tmp_path))
    found = cache.find("key")
    assert found is not None
    assert found.read_bytes() == wheel(tmp_path).read_bytes()
    with found.open("r+b") as file:
        file.truncate(20)
    with pytest.raises(ValueError, match="is damaged"):
        cache.find("key")
    assert cache.find("key") is None


def test_a_wheel_whose_hash_is_lost_is_not_used(tmp_path: Path) -> None:
    cache = wheels.WheelCache(tmp_path / "wheels")
    cache.store("key", wheel(tmp_path))
    next(cache.root.rglob("*.sha256")).unlink()
    with pytest.raises(ValueError, match="is damaged"):
        cache.find("key")
    assert not list(cache.root.rglob("*.whl"))


def test_the_three_newest_keys_stay(tmp_path: Path) -> None:
    cache = wheels.WheelCache(tmp_path / "wheels")
    for i, name in enumerate("abc"):
        cache.store(name, wheel(tmp_path))
        os.utime(cache.root / name, (i, i))
    assert cache.find("a") is not None  # a was used now: it is newer than b and c
    cache.store("d", wheel(tmp_path))
    assert {entry.name for entry in cache.root.iterdir()} == {"a", "c", "d"}


def test_a_cache_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        wheels.WheelCache(tmp_path / "file" / "wheels").store("key", wheel(tmp_path))


# Ready-made builds


@pytest.fixture
def no_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python whose environment has no llama-cpp-python. (monkeypatch.syspath_prepend would restore the path
    that is set here.)
    """
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not entry.endswith("site-packages")])


def pip_with(linked: Path | None = None, cached: tuple[Path, ...] = ()) -> Callable[..., tuple[int, str]]:
    """A pip that has a wheel in its find-links and others in its cache."""

    def pip(*arguments: Any) -> tuple[int, str]:
        if arguments[0] == "cache":
            return 0, "".join(f"{path}\n" for path in cached)
        assert "--no-index" in arguments
        if linked is None:
            return 1, "ERROR: No matching distribution found"
        shutil.copy(linked, arguments[arguments.index("-d") + 1])
        return 0, "Saved"

    return pip


def installed_in(folder: Path, version: str, more: Mapping[str, bytes] | None = None) -> Path:
    """A directory of packages with llama-cpp-python."""
    folder.mkdir(exist_ok=True)
    shutil.unpack_archive(wheel(folder / "wheel", version, more=more), folder, "zip")
    shutil.rmtree(folder / "wheel")
    return folder


@pytest.mark.usefixtures("no_llama")
def test_ready_made_builds_and_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = installed_in(tmp_path / "packages", VERSION)
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    linked, cached = wheel(tmp_path / "links"), wheel(tmp_path / "pip's cache")
    found = list(ready_made.ready_made(VERSION, pip_with(linked, (cached,)), tmp_path / "new", print))
    assert [one.where for one in found] == [str(packages), "pip's find-links", "pip's cache"]
    assert found[1].wheel == tmp_path / "new" / linked.name
    assert found[2].wheel == cached


@pytest.mark.usefixtures("no_llama")
def test_another_version_is_ignored_and_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = installed_in(tmp_path / "packages", "0.3.35")
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    cached = (
        wheel(tmp_path, "0.3.3"),
        wheel(tmp_path, "0.3.360"),
        tmp_path / "llama_cpp_python-0.3.36-gone.whl",
    )
    logged: list[str] = []
    assert list(ready_made.ready_made(VERSION, pip_with(None, cached), tmp_path / "new", logged.append)) == []
    assert [line.split(": ")[1] for line in logged] == ["another version than 0.3.36, ignored"] * 3


@pytest.mark.usefixtures("no_llama")
def test_an_installed_build_is_copied_with_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = installed_in(tmp_path / "packages", VERSION, {"llama_cpp/lib/libggml-cpu.so": b"\x7fELF"})
    (packages / "numpy").mkdir()
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    (found,) = ready_made.ready_made(VERSION, pip_with(), tmp_path / "new", print)
    assert found.installed is not None
    ready_made.copy_installed(found.installed, tmp_path / "copy")
    copied = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*")}
    info = f"llama_cpp_python-{VERSION}.dist-info"
    files = {f"{info}/{name}" for name in ("RECORD", "METADATA", "WHEEL")}
    files |= {"llama_cpp/__init__.py", "llama_cpp/lib/libggml-cpu.so"}
    assert copied == files | {"llama_cpp", "llama_cpp/lib", info}


@pytest.mark.usefixtures("no_llama")
def test_an_editable_build_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = installed_in(tmp_path / "packages", VERSION)
    record = packages / f"llama_cpp_python-{VERSION}.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("llama_cpp/__init__.py", "__editable__.pth"))
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    assert list(ready_made.ready_made(VERSION, pip_with(), tmp_path / "new", print)) == []


# Requests


def a_request(root: Path = ROOT, kind: str = "", device: str = "cpu", **environ: str) -> Request:
    arguments = ["--kind", kind, "--device", device, "--changes", "1-2", "--amx", "1", "--stamp", "3"]
    return Request.parse(arguments, root, environ)


def test_when_a_ready_made_build_is_not_enough() -> None:
    assert not a_request().must_compile
    assert not a_request(SPECLLAMA_BUILD="0").must_compile
    assert a_request(kind="dev").must_compile
    assert a_request(SPECLLAMA_BUILD="1").must_compile
    assert a_request(SPECLLAMA_BACKEND="cpu").must_compile
    assert a_request(CMAKE_ARGS="-DGGML_NATIVE=OFF").must_compile


def test_when_the_demo_model_is_fetched() -> None:
    assert a_request().wants_demo
    assert not a_request(kind="dev").wants_demo
    assert not a_request(SPECLLAMA_DEMO="0").wants_demo


@pytest.mark.parametrize("device", ["cuda", "vulkan", "metal", "hip", "sycl"])
def test_a_backend_is_a_cmake_option(device: str) -> None:
    assert a_request(device=device).cmake_arguments()[-1] == f"-DGGML_{device.upper()}=ON"


def test_an_unknown_backend_is_an_error() -> None:
    with pytest.raises(errors.InstallError, match="'opengl', which is not one of cpu, cuda") as raised:
        a_request(device="opengl")
    assert raised.value.code == 2


# Progress

NINJA = """\
Collecting llama_cpp_python==0.3.36
  Downloading llama_cpp_python-0.3.36.tar.gz (76.6 MB)
  Installing build dependencies: started
  Installing build dependencies: finished with status 'done'
  Preparing metadata (pyproject.toml): started
Building wheels for collected packages: llama_cpp_python
  *** scikit-build-core 0.12.0 using CMake 3.25.1 (wheel)
  *** Configuring CMake...
  -- Configuring done
  *** Building project with Ninja...
  Change Dir: /tmp/build
  [1/80] /usr/bin/c++ -O3 -c ggml.cpp
  \x1b[32m[20/80]\x1b[0m /usr/bin/c++ -O3 -c ops.cpp
  [80/80] : && /usr/bin/c++ -shared -o bin/libllama.so
  *** Installing project into wheel...
""".splitlines()


def test_progress_of_a_recorded_compilation() -> None:
    clock = Clock()
    build = BuildProgress(clock)
    seen = [build.text()]
    for line in NINJA:
        clock.now += 2
        build.feed(line)
        if build.text().split(",")[0] != seen[-1].split(",")[0]:
            seen.append(build.text())
    assert seen == [
        "preparing to compile llama.cpp, 0 s",
        "downloading (76.6 MB), 4 s",
        "fetching the tools of the compilation, 6 s",
        "unpacking llama.cpp, 10 s",
        "configuring llama.cpp, 16 s",
        "compiling llama.cpp, 20 s",
        "compiling llama.cpp: 1 % (1 of 80), 24 s",
        "compiling llama.cpp: 25 % (20 of 80), 26 s, about 6 s left",
        "compiling llama.cpp: 100 % (80 of 80), 28 s, about 0 s left",
        "packing the result, 30 s",
    ]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("   Progress 38000000 of 76600000", "downloading (38 of 77 MB)"),
        ("  [ 40%] Building CXX object ops.cpp.o", "compiling llama.cpp: 40 % (40 of 100)"),
        ("  [Errno 2] no such step", "preparing to compile llama.cpp"),
        ("  [a/b] no step", "preparing to compile llama.cpp"),
    ],
)
def test_other_lines(line: str, text: str) -> None:
    build = BuildProgress(Clock())
    build.feed(line)
    assert build.text().split(", ")[0] == text


def test_a_pipe_gets_a_line_every_15_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, False, clock)
    for second in range(1, 40):
        clock.now = second
        progress.show(f"at {second} s")
    assert stream.getvalue() == "specllama: at 15 s\nspecllama: at 30 s\n"


def test_a_terminal_gets_one_line_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, True, clock)
    for text in ("compiling llama.cpp: 43 %", "testing"):
        clock.now += 1
        progress.show(text)
    progress.say("done")
    first, second, erased, last = stream.getvalue().split("\r")[1:]
    assert first == "specllama: compiling llama.c"[:29].ljust(29) or first == "specllama: compiling llama.cp"
    assert second == "specllama: testing".ljust(29)
    assert erased.strip() == ""
    assert last == "specllama: done\n"


# Errors

RETRY = (
    "WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after "
    "connection broken by 'NewConnectionError('<HTTPSConnection object>: Failed to establish a connection: "
    "[Errno -3] Temporary failure in name resolution')': /simple/llama-cpp-python/\n"
)
MISSING = "ERROR: No matching distribution found for llama_cpp_python==0.3.36\n"


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        (5 * RETRY + MISSING, 5, "pip cannot reach its package index"),
        (MISSING, 3, "pip finds no llama_cpp_python==0.3.36"),
        ("ERROR: Could not install packages: [Errno 28] No space left on device\n", 8, "the disk is full"),
        ("ops.cpp: fatal error: error writing to /x.s: No space left on device\n", 8, "the disk is full"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE\n", 6, "another hash"),
        ("c++: fatal error: Killed signal terminated program cc1plus\n", 8, "ran out of memory"),
        ("SSLError(SSLCertVerificationError('[SSL: CERTIFICATE_VERIFY_FAILED]'))\n", 5, "is not trusted"),
        ("ERROR: HTTP error 403 while getting llama.whl\n", 5, "refuses access"),
        ("note\nops.cpp:7:3: error: 'x' was not declared\nERROR: Failed building wheel\n", 1, "'x' was not"),
        ("\n", 1, "it gave no reason"),
    ],
)
def test_errors_are_explained(output: str, code: int, words: str) -> None:
    error = errors.explained(output, "compiling llama.cpp")
    assert error.code == code
    assert error.message.startswith("compiling llama.cpp failed: ")
    assert words in error.message
    assert "\n" not in error.message + error.hint
    assert error.hint


def test_errors_of_the_system(tmp_path: Path) -> None:
    full = errors.of_system(OSError(errno.ENOSPC, "No space left on device", str(tmp_path)), ROOT)
    assert (full.code, "the disk is full" in full.message) == (8, True)
    locked_up = errors.of_system(PermissionError(errno.EROFS, "Read-only file system"), tmp_path)
    assert locked_up.message == f"{tmp_path} cannot be used: Read-only file system"
    assert (locked_up.code, "make the checkout writable" in locked_up.hint) == (8, True)


def test_room_is_checked_before_anything_starts(tmp_path: Path) -> None:
    checkout = FakeCheckout(tmp_path / "checkout", tmp_path / "home", tmp_path / "links")
    checkout.venv.mkdir()
    tools = Tools(a_request(checkout.root), Progress(io.StringIO(), False), None)  # type: ignore[arg-type]
    tools.check_room(1)
    with pytest.raises(
        errors.InstallError, match=r"1000000000\.0 GB are needed, .* GB are free in"
    ) as raised:
        tools.check_room(10**18)
    assert raised.value.code == 8


# The lock and the processes

HOLD = """
import sys, time
from pathlib import Path
from installer.main import locked
from installer.progress import Progress
with locked(Path(sys.argv[1]), Progress(sys.stderr, False)):
    print("locked", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold(lock: Path, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # what comes along with a line stays in the pipe
        cwd=ROOT,
    )


@pytest.mark.skipif(os.name != "posix", reason="flock")
def test_the_second_waits_for_the_first_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    lock = tmp_path / "check out" / ".installing"
    lock.parent.mkdir()
    with hold(lock, 60) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"locked\n"
        with hold(lock, 0) as second:
            assert second.stderr is not None
            waiting = second.stderr.readline()
            assert waiting == b"specllama: another installation is under way, waiting for it\n"
            time.sleep(0.2)
            assert second.poll() is None
            first.kill()
            assert second.communicate(timeout=20) == (b"locked\n", b"")


def test_the_lock_of_an_earlier_version_is_removed(tmp_path: Path) -> None:
    lock = tmp_path / ".installing"
    lock.mkdir()
    (lock / "pid").write_text("1")
    stream = io.StringIO()
    with locked(lock, Progress(stream, False)):
        assert lock.is_file()
    assert stream.getvalue() == ""


NINJA_LIKE = """
import signal, subprocess, sys
compiler = subprocess.Popen(["sleep", "60"], process_group=0)
signal.signal(signal.SIGTERM, lambda *_: (compiler.kill(), sys.exit()))
print(compiler.pid, flush=True)
compiler.wait()
"""
WATCHED = f"""
import os, sys
from installer.processes import Children
children = Children(open(os.devnull, "wb"), os.environ)
children.start([sys.executable, "-c", {NINJA_LIKE!r}], sys.stdout.fileno())
os.read(0, 1)
os.kill(os.getpid(), 9)
"""


def gone(pid: int) -> bool:
    """Whether a process ends within some seconds."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_children_end_with_a_killed_installation() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        os.kill(pid, 0)
        process.stdin.write("x")
        process.stdin.close()
        assert process.wait(20) == -signal.SIGKILL
        assert gone(pid)


def test_no_process_goes_on_in_a_group_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the compilers of a ninja that has no time to end them, on a busy machine."""
    monkeypatch.setattr(processes, "_GRACE_SECONDS", 0.1)
    with open(os.devnull, "wb") as log:
        children = Children(log, {"PATH": os.environ["PATH"]})
        late = NINJA_LIKE.replace("(compiler.kill(), sys.exit())", "None")
        process = children.start([sys.executable, "-c", late])
        assert process.stdout is not None
        with process.stdout as pipe:
            pid = int(pipe.readline())
        children.end()
    assert gone(pid)


def test_output_is_logged_and_a_late_process_is_ended(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        children = Children(log, {"PATH": os.environ["PATH"], "A": "1", "B": "2"})
        try:
            lines: list[str] = []
            command = ["sh", "-c", 'echo "$A$B$C"; echo "two words" >&2; exit 3']
            assert children.run(command, lambda: None, lines.append, {"B": "", "C": "4"}) == (
                3,
                "14\ntwo words\n",
            )
            assert lines == ["14", "two words"]
            with pytest.raises(TooLongError, match=r"^used no processor time for 0\.1 s$"):
                children.run(["sleep", "60"], lambda: None, seconds=0.1)
        finally:
            children.end()
    assert (
        (tmp_path / "log")
        .read_text()
        .endswith("14\ntwo words\n\n$ sleep 60\nended: it used no processor time for 0.1 s\n")
    )


# Whole installations


@pytest.fixture(scope="module")
def plain_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with pip and nothing else."""
    folder = tmp_path_factory.mktemp("python") / "plain python"
    bundled = list(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"))  # Debian keeps it elsewhere
    without = ["--without-pip"] if bundled else []
    subprocess.run([sys.executable, "-m", "venv", *without, folder], check=True)
    for pip in bundled:  # as venv does, but without its seconds
        shutil.unpack_archive(pip, next(folder.glob("lib/*/site-packages")), "zip")
    subprocess.run([folder / "bin" / "python", "-m", "pip", "--version"], check=True, capture_output=True)
    return folder


class Installing:
    """Checkouts, whose paths have blanks, of one user."""

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder, self._python = folder, python
        self.home, self.links = folder / "home of user", folder / "links of user"

    def checkout(self, name: str, ready: bool = True) -> FakeCheckout:
        """A checkout. ready: with a .venv that has no packages yet, which saves seconds."""
        found = FakeCheckout(self._folder / name, self.home, self.links)
        found.env["SPECLLAMA_PYTHON"] = str(self._python / "bin" / "python")
        if ready:
            shutil.copytree(self._python, found.venv, symlinks=True)
            (found.venv / ".made-for").write_text(
                f"{found.root}\n{(found.venv / 'bin' / 'python').resolve()}\n"
            )
        return found


@pytest.fixture
def user(tmp_path: Path, plain_python: Path) -> Installing:
    return Installing(tmp_path, plain_python)


def test_a_build_that_crashes_is_replaced_and_the_result_is_kept(user: Installing) -> None:
    first = user.checkout("first checkout", ready=False)
    executable(first.venv / "bin" / "python", "exit 1")  # left by an interrupted call
    wheel(user.links, works=False)
    sdist(user.links)
    code, out, err = first.run("-p", "hello", SPECLLAMA_DEMO="")
    assert (code, out) == (0, "built here -p hello\n"), err
    assert "of pip's find-links does not work on this machine; compiling llama.cpp instead\n" in err
    assert "the demo model could not be fetched: the package index cannot be reached; the embedded" in err
    assert f"'-DCMAKE_PROJECT_ggml_INCLUDE={first.root}/specllama/llama/native/build.cmake'" in first.log
    assert all(line.startswith("specllama: ") for line in err.splitlines())
    assert not (first.venv / "work").exists()
    assert Path(first.env["FAKE_PIDS"] + ".overlapped").exists(), "the kernels are compiled meanwhile"
    assert "specllama.llama.kernel_build" in first.log
    assert "kernels of the trial: as usual\n" in first.log
    assert not list(user.home.rglob("*.whl.metadata"))
    assert len(list((user.home / "cache of specllama").rglob("*.whl"))) == 1
    assert not list((user.home / ".cache").rglob("*.whl")), "pip's cache got the wheel"
    assert first.run("-p", "again", SPECLLAMA_PYTHON="/nothing") == (0, "built here -p again\n", "")

    # Another checkout takes the compiled wheel, also when two calls come at once.
    (user.links / f"llama_cpp_python-{VERSION}.tar.gz").unlink()
    second = user.checkout("second checkout")
    processes = [second.start("-p", str(i)) for i in range(2)]
    results = [process.communicate(timeout=60) for process in processes]
    assert sorted(out for out, _ in results) == ["built here -p 0\n", "built here -p 1\n"], results
    logged = "".join(err for _, err in results)
    assert logged.count("another installation is under way, waiting for it") == 1
    assert logged.count("installing Python packages") == 1
    assert logged.count("llama.cpp was compiled here before; that build is used") == 1


def test_a_compiled_build_that_crashes_is_compiled_with_the_systems_compilers(user: Installing) -> None:
    checkout = user.checkout("check out")
    sdist(user.links)
    unusual = executable(user.home / "bin of conda" / "c++", "echo 1.0")
    named = shlex.quote(str(unusual))
    broken = {"CXX": named, "FAKE_BROKEN_CXX": named}
    code, out, err = checkout.run(**broken, FAKE_KERNELS="g++ was ended before it had compiled them")
    assert (code, out) == (0, "built here\n"), err
    failed = "specllama's kernels failed: g++ was ended before it had compiled them; specllama tries again"
    assert f"specllama: compiling {failed} when it starts\n" in err
    assert checkout.log.count("kernels of the trial: off\n") == 2, "it compiles nothing itself"
    assert "s for: compiling specllama's kernels\n" in checkout.log
    assert f"llama.cpp is compiled with '{named}', which CXX names, and tried then\n" in err
    assert "the llama.cpp compiled here does not work; compiling it again with /usr/bin/" in err
    library = next(checkout.venv.glob("lib/python3.*/site-packages/llama_cpp/lib"))
    assert os.readlink(library / "libllama.so.0") == "libllama.so"
    assert (library / "libllama.so.0").read_bytes() == b"x" * 1000

    # The build that works is the one that is kept for these compilers.
    shutil.rmtree(checkout.venv)
    code, out, err = checkout.run(**broken)
    assert (code, out) == (0, "built here\n"), err
    assert "does not work" not in err

    code, out, err = checkout.run(SPECLLAMA_BUILD="1", SPECLLAMA_BACKEND="vulkan", FAKE_BROKEN_CXX="all")
    assert (code, out) == (8, ""), err
    assert "error: llama.cpp does not work here: the llama.cpp compiled here failed to write eight" in err
    assert "set CC and CXX to other compilers" in err


def test_a_trial_that_takes_too_long_keeps_what_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows no fault of a build that was compiled here, but of a ready-made one."""

    def works(_tools: Tools, _kernels: bool) -> bool:
        raise TooLongError("used more than 300 s of processor time")

    monkeypatch.setattr(main, "works", works)
    with (tmp_path / "log").open("wb") as log:
        children = Children(log, {"PATH": os.environ["PATH"]})
        try:
            tools = Tools(a_request(SPECLLAMA_CACHE=str(tmp_path)), Progress(io.StringIO(), False), children)
            installation = main.Installation(tools)
            installation.cache.store(wheel_key(tools), wheel(tmp_path))
            with pytest.raises(errors.InstallError, match=r"llama\.cpp compiled here used more than") as late:
                installation.works(main.Build("the llama.cpp compiled here"))
            assert installation.cache.find(wheel_key(tools)) is not None
            assert not installation.works(main.Build("llama-cpp-python of pip's cache", ready_made=True))
        finally:
            children.end()
    assert late.value.code == 8
    assert late.value.message.startswith("testing llama.cpp was ended: in writing eight tokens, ")
    assert late.value.hint.startswith("what was compiled is kept: call this again;")


def test_only_copies_become_links(tmp_path: Path) -> None:
    for name, text in {"liba.so": "a", "liba.so.0": "a", "liba.so.0.1": "a", "libb.so": "b"}.items():
        (tmp_path / name).write_text(text)
    assert link_duplicates(tmp_path) == 2
    links = {path.name: os.readlink(path) for path in tmp_path.iterdir() if path.is_symlink()}
    assert links == {"liba.so.0": "liba.so", "liba.so.0.1": "liba.so"}
    assert link_duplicates(tmp_path) == 0
    assert link_duplicates(tmp_path / "missing") == 0


def test_a_ready_made_build_until_compiling_is_asked_for(user: Installing) -> None:
    checkout = user.checkout("check out")
    wheel(user.links)
    wheel(user.links, "0.3.35", works=False)
    sdist(user.links)
    code, out, err = checkout.run()
    assert (code, out) == (0, "ready-made\n"), err
    assert f"llama-cpp-python {VERSION} of pip's find-links is used" in err
    assert checkout.run() == (0, "ready-made\n", "")

    # An interrupted compilation: one line, no process left, and the next call starts again.
    pids = Path(checkout.env["FAKE_PIDS"])
    process = checkout.start(SPECLLAMA_BUILD="1", FAKE_SECONDS="60")
    while not pids.exists() or not pids.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("specllama: interrupted; the next call starts the installation again\n")
    assert gone(int(pids.read_text()))
    assert not (checkout.venv / "work").exists()

    code, out, err = checkout.run(SPECLLAMA_BUILD="1", FAKE_ERROR="ops.cpp:1:1: error: no such thing")
    assert (code, out) == (1, "")
    assert err.splitlines()[-3:] == [
        "specllama: error: compiling llama.cpp failed: ops.cpp:1:1: error: no such thing",
        "specllama: the log has the details",
        f"specllama: the whole log is in {checkout.venv}/install.log",
    ]
    code, out, err = checkout.run(SPECLLAMA_BUILD="1", SPECLLAMA_CACHE=os.devnull)
    assert (code, out) == (0, "built here\n"), err
    assert f"the compiled wheel is not kept for later: {os.devnull}/wheels: Not a directory\n" in err
    assert checkout.run(SPECLLAMA_BUILD="1") == (0, "built here\n", "")


def test_a_copied_and_a_broken_installation(user: Installing) -> None:
    """Each runs its own code: the one that stays at once, the others after they were made again."""
    first = user.checkout("first checkout")
    wheel(user.links)
    code, out, err = first.run("a")
    assert (code, out) == (0, "ready-made a\n"), err

    folder = shutil.copytree(first.root, first.root.with_name("a copy"), symlinks=True)
    copy = FakeCheckout.existing(first, folder)
    command = copy.root / "package" / "fake_specllama.py"
    command.write_text(command.read_text().replace('"ready-made"', '"of the copy"'))
    code, out, err = copy.run("b")
    assert (code, out) == (0, "of the copy b\n"), err
    assert "was made for another checkout" in err
    assert copy.run("b") == (0, "of the copy b\n", "")
    assert first.run("a") == (0, "ready-made a\n", "")


class Owned:
    """A checkout with a .venv in which nothing works, as far as setup.sh and the installation look at it."""

    def __init__(self, root: Path) -> None:
        self.root, self.python = root, root.parent / "python3.11"
        executable(self.python, "")
        executable(root / ".venv" / "bin" / "specllama", "")
        (root / ".venv" / "bin" / "python").symlink_to(self.python)
        (root / "scripts").mkdir()
        shutil.copy2(ROOT / "scripts" / "setup.sh", root / "scripts")
        self.made_for = root / ".venv" / ".made-for"
        self.made_for.write_text(f"{root}\n{self.python}\n")

    def is_own(self, at: Path | None = None) -> bool:
        """What both find, which is the same."""
        root = at or self.root
        shell = subprocess.run(["bash", "-c", '. "$0/scripts/setup.sh"; is_own', root], check=False)
        request = Request(root.resolve(), "", "cpu", "", False, "", {}, "")
        assert (shell.returncode == 0) == request.is_own()
        return request.is_own()


def test_whose_an_installation_is(tmp_path: Path) -> None:
    owned = Owned(tmp_path / "check out")
    assert owned.is_own()
    (tmp_path / "link").symlink_to(owned.root)
    assert owned.is_own(tmp_path / "link")
    copy = Path(shutil.copytree(owned.root, tmp_path / "copy", symlinks=True))
    assert not owned.is_own(copy)
    renamed = owned.root.rename(tmp_path / "renamed")
    assert not owned.is_own(renamed)
    renamed.rename(owned.root)
    assert owned.is_own()
    newer = executable(tmp_path / "python3.12", "")
    python = owned.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(newer)
    assert not owned.is_own(), "another Python has its place"
    python.unlink()
    python.symlink_to(owned.python)
    owned.made_for.write_text("")
    assert not owned.is_own()
    owned.made_for.write_text(f"{owned.root}\n{owned.python}\n")
    request = Request(owned.root, "", "cpu", "", False, "7", {}, "")
    (owned.root / ".venv" / ".installed-7").touch()
    assert request.is_fulfilled()
    (owned.root / ".venv" / "bin" / "specllama").rename(tmp_path / "away")
    assert not request.is_fulfilled()
    (tmp_path / "away").rename(owned.root / ".venv" / "bin" / "specllama")
    owned.python.unlink()
    assert not owned.is_own(), "its Python was removed"


def test_an_installation_from_before_there_was_such_a_record(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    executable(root / ".venv" / "bin" / "python", "")
    request = Request(root, "", "cpu", "", False, "", {}, "")
    for venv, own in ((root / ".venv", True), (tmp_path / "other" / ".venv", False)):
        (root / ".venv" / "pyvenv.cfg").write_text(
            f"home = /usr/bin\ncommand = /usr/bin/python3 -m venv {venv}\n"
        )
        assert request.is_own() == own


def test_no_python(user: Installing) -> None:
    checkout = user.checkout("check out", ready=False)
    code, out, err = checkout.run(SPECLLAMA_PYTHON="/not there/python3")
    assert (code, out) == (8, "")
    assert err == (
        "specllama: error: SPECLLAMA_PYTHON is '/not there/python3', which is no Python >= 3.11 with the "
        "venv module\n"
    )
    tools = [shutil.which(name) for name in ("bash", "dirname", "cat", "cksum", "tr", "uname", "grep", "env")]
    folder = user.home / "few tools"
    folder.mkdir()
    for tool in tools:
        assert tool is not None
        (folder / Path(tool).name).symlink_to(tool)
    code, out, err = checkout.run(SPECLLAMA_PYTHON="", PATH=str(folder))
    assert (code, out) == (8, "")
    assert err.startswith("specllama: error: no Python >= 3.11 with the venv module was found\n")


def test_no_compiler(user: Installing) -> None:
    checkout = user.checkout("check out")
    sdist(user.links)
    code, out, err = checkout.run(CXX="no-such-compiler -O2")
    assert (code, out) == (8, "")
    assert "specllama: error: CXX is 'no-such-compiler -O2', which is not on the path\n" in err
    assert "(Debian: apt install g++;" in err
    assert "compiling" not in err


def test_a_checkout_that_cannot_be_written(user: Installing) -> None:
    checkout = user.checkout("check out", ready=False)
    checkout.venv.write_text("a file in its place")
    code, out, err = checkout.run()
    assert (code, out) == (8, "")
    assert f"specllama: error: {checkout.venv} cannot be used: File exists\n" in err
    assert "make the checkout writable" in err
