"""What happens where the kernels cannot be used: one line says why, and nothing else changes. Each case in a
process of its own, since llama.cpp is loaded once.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from specllama.errors import EngineError
from specllama.llama import kernel_build, kernels
from specllama.llama.library import ggml
from tests.support.paths import ROOT
from tests.support.processes import SOON

COMPILER = shutil.which("gcc") or shutil.which("cc")
ANSWER = """
import sys
from pathlib import Path
from specllama.llama import kernels
if len(sys.argv) > 1:
    kernels.OBJECT = Path(sys.argv[1])
from specllama.worker.load_info import KERNELS, build_info
print(KERNELS.level or build_info()["kernels_reason"])
"""
OF_LIBRARY = """
import ctypes, sys
from pathlib import Path
from specllama.llama import kernels
library = ctypes.CDLL(sys.argv[1])
library.ggml_version.restype = ctypes.c_char_p
print(kernels.load(library).reason)
"""

pytestmark = pytest.mark.skipif(
    bool(kernel_build.unsupported()), reason="there are no kernels for this system"
)


def said(program: str, *arguments: object, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def library(directory: Path, *functions: str) -> Path:
    """A library that exports nothing but these functions, and ggml's version."""
    assert COMPILER is not None
    source, to = directory / "library.c", directory / "library.so"
    lines = [f"void {name}(void) {{}}" for name in functions]
    source.write_text("\n".join([f'const char * ggml_version(void) {{ return "{kernels.GGML}"; }}', *lines]))
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", to, source], check=True)
    return to


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("no-such-compiler", "CXX is 'no-such-compiler', which is not on the path"),
        ("g++ 'x", 'CXX is "g++ \'x", which is not a command: No closing quotation'),
        ("true", "CXX=true has compiled nothing"),
        ("false", "CXX=false does not compile them: exit code 1"),
    ],
)
def test_a_compiler_that_compiles_nothing(tmp_path: Path, compiler: str, reason: str) -> None:
    assert said(ANSWER, tmp_path / "none.so", SPECLLAMA_CACHE=str(tmp_path), CXX=compiler) == reason


def slow_compiler(folder: Path) -> Path:
    """One that stands still, as its child does, whose id it writes down."""
    compiler = folder / "slow"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *-fsyntax-only*) exit;; esac\nsleep 60 & echo $! >> {folder}/pids\nwait\n'
    )
    compiler.chmod(0o755)
    return compiler


def pids_in(folder: Path) -> list[int]:
    """Of the two compilers that run at once, when both have written them."""
    file, deadline = folder / "pids", time.monotonic() + SOON
    while not file.exists() or len(file.read_text().splitlines()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return list(map(int, file.read_text().split()))


def test_a_compiler_that_stands_still_is_ended_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_build, "_SECONDS", 0.5)
    compiler = slow_compiler(tmp_path)
    with pytest.raises(kernels.Unusable) as late:
        kernel_build.compile_object(tmp_path / "k.so", {"CXX": str(compiler), "PATH": os.environ["PATH"]})
    ended = "was ended before it had compiled them: it used no processor time for 0.5 s"
    assert str(late.value) == f"{compiler} {ended}"
    assert all(map(has_ended, pids_in(tmp_path)))


def test_nothing_of_a_compiler_stays_without_its_engine_process(tmp_path: Path) -> None:
    """The front has ended, by Ctrl-C say, while the kernels are compiled."""
    code = (
        "from pathlib import Path; from specllama.llama import kernels; from specllama.worker import main; "
        f"kernels.OBJECT = Path({str(tmp_path / 'none.so')!r}); main.main()"
    )
    environ = {"PYTHONPATH": str(ROOT), "SPECLLAMA_CACHE": str(tmp_path), "CXX": str(slow_compiler(tmp_path))}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | environ
    ) as engine:
        pids = pids_in(tmp_path)
        engine.communicate(timeout=SOON)  # closes its stdin
        assert engine.returncode == 0
    assert all(map(has_ended, pids))
    assert not list((tmp_path / "kernels").iterdir())


def test_what_a_killed_process_has_begun_is_removed_by_the_next_one(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; from specllama.llama.kernel_build import folder_for\n"
        f"with folder_for(Path({str(tmp_path)!r}, 'k.so'), 'k.so'): print(flush=True); os.read(0, 1)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    first, other = (subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) for _ in range(2))
    for process in (first, other):
        process.stdout.readline()
    first.kill()
    first.communicate()
    of_another_machine = tmp_path / f".compiling-{platform.node()}-2-{first.pid}-abc_1"
    of_another_machine.mkdir()
    with kernel_build.folder_for(tmp_path / "k.so", "k.so") as folder:
        of_another_machine.rmdir()
        assert {path.name.split("-")[-2] for path in tmp_path.iterdir()} == {str(other.pid), str(os.getpid())}
        (folder / "k.so").touch()
    other.communicate(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["k.so"]


def has_ended(pid: int) -> bool:
    """Whether a process is soon gone, or only waits for its parent to look at it."""
    deadline = time.monotonic() + SOON
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kernels.Unusable, match=r"^no C\+\+ compiler was found to compile them"):
        kernels.compile_object(tmp_path / "k.so", {})


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    reason = said(ANSWER, tmp_path / "none.so", SPECLLAMA_CACHE="/proc/specllama", CXX="true")
    other = "SPECLLAMA_CACHE names another cache directory"
    assert reason == f"/proc/specllama/kernels: No such file or directory; {other}"


def test_an_object_that_cannot_be_loaded(tmp_path: Path) -> None:
    """The ready-made one is made for another system; it is compiled again, or the reason is given."""
    broken = tmp_path / "broken.so"
    broken.write_text(kernel_build.sources())
    assert said(ANSWER, broken, SPECLLAMA_CACHE=str(tmp_path), CXX="true") == "CXX=true has compiled nothing"
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho > "$2"\n')
    compiler.chmod(0o755)
    reason = said(ANSWER, broken, SPECLLAMA_CACHE=str(tmp_path), CXX=str(compiler))
    assert reason.startswith("their object cannot be loaded: ")
    assert "\n" not in reason


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_libraries_that_lack_functions(tmp_path: Path) -> None:
    """Hidden symbols, and loadable backends of which none has been loaded."""
    hidden = library(tmp_path, "ggml_graph_compute_with_ctx", "ggml_barrier")
    name = "_Z39ggml_backend_cpu_get_extra_buffer_typesv"
    assert said(OF_LIBRARY, hidden) == f"this llama.cpp does not export {name}"
    assert said(OF_LIBRARY, library(tmp_path)) == "no CPU backend of ggml has been loaded"


def test_a_loadable_backend_is_found() -> None:
    class Linked:
        """llama.cpp, which is not linked to the CPU backend."""

    with_cpu = kernels._with_cpu(Linked())
    assert ctypes.cast(with_cpu.ggml_graph_compute, ctypes.c_void_p).value is not None
    assert kernels._with_cpu(ggml) is ggml


def test_aarch64_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.platform, "machine", lambda: "aarch64")
    reason = "how fast they are on aarch64 has not been measured; SPECLLAMA_KERNELS=on uses them"
    assert kernels.load(ggml, {}) == kernels.Kernels("", reason, "")
    assert not kernels.must_compile({})
    assert set(kernel_build.objects("aarch64")) == {"plugin.o", "sampling.o", "neon.o"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="for processors of x86-64")
def test_nothing_is_compiled_for_a_processor_without_avx2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu sse2 avx f16c fma\nbugs\t\t: spectre_v1\n")
    monkeypatch.setattr(kernels, "OBJECT", tmp_path / "none.so")
    monkeypatch.setattr(kernels, "compile_object", lambda *_: pytest.fail("it was compiled"))
    environ = {"SPECLLAMA_CACHE": str(tmp_path)}
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    assert kernels.must_compile(environ)
    monkeypatch.setattr(kernels, "CPUINFO", cpuinfo)
    assert not kernels.must_compile(environ)
    assert kernels.load(ggml, environ) == kernels.Kernels("", "this processor lacks AVX2", "")
    with pytest.raises(EngineError, match="cannot be used: this processor lacks AVX2"):
        kernels.load(ggml, environ | {"SPECLLAMA_KERNELS": "on"})


def test_a_compiler_that_does_not_know_an_instruction_set(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"  # like GCC 10; writes down what it is called with
    compiler.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$*" in *-mavxvnni*) exit 1;; esac\n'
        'while [ $# -gt 0 ] && [ "$1" != -o ]; do shift; done\n[ -z "$2" ] || echo compiled > "$2"\n'
    )
    compiler.chmod(0o755)
    kernel_build.compile_object(tmp_path / "k.so", {"CXX": str(compiler)})
    calls = (tmp_path / "calls").read_text().splitlines()
    levels = [call for call in calls if "-DSPECLLAMA_LEVEL=" in call]
    assert len(levels) == 3
    assert ["-mavx512vnni" in call for call in levels].count(True) == 1
    assert not any("-mavxvnni" in call for call in levels)


def test_an_object_is_current_by_its_sources_and_a_longer_file_than_any_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sources = tmp_path / "kernels.so", kernel_build.sources().encode()
    assert not kernel_build.is_current(path)
    monkeypatch.setattr(kernel_build, "_MAX_OBJECT", 1000)
    for data, current in ((bytes(984) + sources, True), (sources + bytes(985), False), (bytes(1000), False)):
        path.write_bytes(data)
        assert kernel_build.is_current(path) == current
