"""How libmtmd is compiled, with a compiler that only writes a file: which source, and what goes wrong."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.llama import vision_build
from specllama.llama.kernel_build import Unusable, is_current

NAMES = ("include/llama.h", "ggml/include/ggml.h", "tools/mtmd/mtmd.cpp", "tools/mtmd/models/siglip.cpp")
Compile = Callable[..., Path]


def a_source(folder: Path, text: str = "// 1\n") -> Path:
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def a_package(to: Path, text: str = "// 1\n") -> Path:
    """A source package of llama-cpp-python, with other files beside those that are needed."""
    with tarfile.open(to, "w:gz") as archive:
        for name in (*NAMES, "tools/mtmd/mtmd-cli.cpp", "tools/server/server.cpp", "README.md"):
            member = tarfile.TarInfo(f"llama_cpp_python-0.0/vendor/llama.cpp/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return to


@pytest.fixture
def compile_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """Compiles into a folder of its own. The installation has kept nothing, and there is no download."""
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\necho "$@" >> "$(dirname "$0")/called"\nwhile [ "$1" != -o ]; do shift; done\n'
    )
    compiler.chmod(0o755)
    wanted = vision_build.checksum(a_source(tmp_path / "wanted"))
    monkeypatch.setattr(vision_build, "CHECKSUM", wanted)
    with compiler.open("a") as script:
        script.write(f'echo {vision_build.key()} > "$2"\n')
    monkeypatch.setattr(vision_build, "kept_source", lambda: None)

    def download(*_: object) -> Path:
        raise subprocess.CalledProcessError(1, "pip", stderr="a line\nERROR: no index\n")

    monkeypatch.setattr(vision_build, "download", download)

    def run(
        source: Path | None = None, report: vision_build.Report = lambda *_: None, **environ: str
    ) -> Path:
        given = {} if source is None else {vision_build.VARIABLE: str(source)}
        to = tmp_path / "cache" / "vision.so"
        vision_build.compile_object(to, {"CXX": str(compiler), **given, **environ}, report)
        return to

    return run


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").iterdir())


def test_the_folder_that_is_named(compile_it: Compile, tmp_path: Path) -> None:
    to = compile_it(tmp_path / "wanted")
    assert is_current(to, vision_build.key())
    assert left(tmp_path) == ["vision.so"]
    called = (tmp_path / "called").read_text()
    assert f"-I{tmp_path}/wanted/tools/mtmd" in called
    assert called.count("-shared") == 1


def test_a_folder_with_another_version(compile_it: Compile, tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"^SPECLLAMA_LLAMA_CPP_SOURCE is .*, which is not llama\.cpp as in"):
        compile_it(a_source(tmp_path / "other", "// 2\n"))
    with pytest.raises(Unusable, match="which is not"):
        compile_it(tmp_path / "nothing")
    assert left(tmp_path) == []


def test_what_the_installation_has_kept(
    compile_it: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vision_build, "kept_source", lambda: tmp_path / "wanted")
    assert is_current(compile_it(), vision_build.key())


def test_a_download(compile_it: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version that was kept is not used."""
    monkeypatch.setattr(vision_build, "kept_source", lambda: a_source(tmp_path / "kept", "// 2\n"))
    monkeypatch.setattr(vision_build, "download", lambda _, folder: a_package(folder / "one.tar.gz"))
    stages: list[tuple[str, float]] = []
    assert is_current(compile_it(report=lambda *stage: stages.append(stage)), vision_build.key())
    assert stages == [("source of llama.cpp", 0.0), ("vision encoder", 0.0)]
    assert left(tmp_path) == ["vision.so"]


def test_a_download_of_another_version(compile_it: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        vision_build, "download", lambda _, folder: a_package(folder / "one.tar.gz", "// 2\n")
    )
    with pytest.raises(Unusable, match="is another version of it"):
        compile_it()


def test_no_download(compile_it: Compile, tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"^its source cannot be downloaded: ERROR: no index$"):
        compile_it()
    assert left(tmp_path) == []


def test_a_package_that_is_cut(compile_it: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = a_package(tmp_path / "one.tar.gz").read_bytes()
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(vision_build, "download", lambda *_: cut)
    with pytest.raises(Unusable, match=r"cannot be downloaded|is another version"):
        compile_it()


def test_without_a_compiler(compile_it: Compile, tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="CXX is 'no-such-compiler', which is not on the path"):
        compile_it(tmp_path / "wanted", CXX="no-such-compiler")


def test_a_compiler_that_fails(compile_it: Compile, tmp_path: Path) -> None:
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'clip.cpp:1: error: no memory' >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(Unusable, match=r"does not compile them: clip\.cpp:1: error: no memory"):
        compile_it(tmp_path / "wanted", CXX=str(failing))
    assert left(tmp_path) == []


def test_the_key_is_that_of_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    before = vision_build.key()
    monkeypatch.setattr(vision_build, "CHECKSUM", "0")
    assert vision_build.key() != before
